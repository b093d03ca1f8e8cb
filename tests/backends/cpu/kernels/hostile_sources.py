"""Random sizes, arrays and options, most of them sensible, for programs that call the kernels with them."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

SMALL = (0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 33)
EDGES = (-1, -16, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**56, 2**60, 2**62, 2**63 - 1, -(2**63))
ISAS = ("", "", "", "", "", "portable", "portable", "avx2", "avx2", "none")
LAYOUTS = ("planes", "images16")
# What one call may compute.
MOST_WORK = 1 << 22


class Sources:
    """A source of arguments, most of them sensible."""

    def __init__(self, kernels: Any, rng: Random) -> None:
        self.kernels, self.rng = kernels, rng
        self.pools = [kernels.ThreadPool(n) for n in (1, 2)]

    def size(self, edge: float = 0.01) -> int:
        return self.rng.choice(EDGES) if self.rng.random() < edge else self.rng.choice(SMALL[self.rng.random() < 0.9 :])

    def positive(self, edge: float = 0.02) -> int:
        return self.size(1) if self.rng.random() < edge else self.rng.choice((1, 1, 1, 2, 3))

    def pair(self) -> tuple[int, int]:
        return self.positive(), self.positive()

    def pads(self) -> tuple[int, ...]:
        return tuple(self.size(1) if self.rng.random() < 0.02 else self.rng.choice((0, 0, 1, 2, 5)) for _ in range(4))

    def shape(self, channels: int | None = None) -> tuple[int, ...]:
        n, c, h, w = (self.size() for _ in range(4))
        return (n, c if channels is None or self.rng.random() < 0.1 else channels, h, w)

    def floats(self, count: int) -> Any:
        """An array of about ``count`` floats; aligned to 64 bytes or not, some between two floats or not contiguous."""
        count = max(0, count + (self.rng.choice((-1, 1, 16)) if self.rng.random() < 0.03 else 0))
        if count > MOST_WORK:
            count = 4
        buffer = np.zeros(count + 32, np.float32)
        skip = -buffer.ctypes.data % 64 // 4 + (self.rng.random() < 0.02)
        array = buffer[skip : skip + count]
        array[:] = self.rng.choice((0.0, 1.0, -3.5, np.nan, np.inf, 1e38))
        if self.rng.random() < 0.5:
            array[: count // 2] = np.arange(count // 2)
        kind = self.rng.random()
        if kind < 0.02:
            return np.frombuffer(b"\0" + array.tobytes(), np.float32, offset=1)
        return np.repeat(array, 2)[::2] if kind < 0.03 else array

    def layout(self) -> str:
        return self.rng.choice(LAYOUTS) if self.rng.random() < 0.98 else "rows"

    def activation(self) -> tuple[str, float, float]:
        kinds = ("none", "none", "clip", "leaky", "hard_sigmoid", "sigmoid", "silu", "tanh", "gelu", "gelu_tanh")
        return (self.rng.choice(kinds), self.rng.choice((0.0, -1.0, float("nan"))), self.rng.choice((0.0, 6.0)))

    def indices(self, rows: int, columns: int) -> Any:
        """Sorted and in range, or anything but that."""
        count = self.rng.choice((0, 1, 2, 10, 60))
        size = max(1, min(rows * columns, 2**62))
        found = sorted({self.rng.randrange(size) for _ in range(count)})
        wrong = self.rng.choice(("shuffled", "twice", "outside", "negative", "any")) if self.rng.random() < 0.1 else ""
        if wrong == "shuffled":
            self.rng.shuffle(found)
        elif wrong == "twice":
            found += found
        elif wrong == "outside":
            found.append(self.rng.choice((rows * columns, rows * columns + 1, 2**63 - 1)) % 2**63)
        elif wrong == "negative":
            found.insert(0, -self.rng.choice((1, 2**63)))
        elif wrong == "any":
            found = [self.rng.randrange(-(2**63), 2**63) for _ in range(count)]
        return np.array(found, np.int64)

    def weights(self, rows: int, columns: int) -> Any:
        if self.rng.random() < 0.6:
            indices = self.indices(rows, columns)
            return self.kernels.SparseWeights.from_indices(rows, columns, indices, self.floats(len(indices)))
        dense = self.floats(rows * columns)
        mask = self.bits(rows * columns) if self.rng.random() < 0.5 else None
        return self.kernels.SparseWeights.from_dense(rows, columns, dense, self.rng.random() < 0.5, mask)

    def bits(self, count: int) -> Any:
        """A mask of this number of weights, at times of another."""
        size = self.rng.choice((-(-count // 8),) * 4 + (-(-count // 8) + 1, count // 8, 0))
        return np.frombuffer(self.rng.randbytes(max(0, min(size, 1 << 16))), np.uint8)


def work(shape: tuple[int, ...]) -> int:
    n, *rest = shape
    count = (n + 15) // 16 * 16
    for size in rest:
        count *= max(size, 1)
    return count


def count_of(shape: tuple[int, ...], layout: str) -> int:
    """Floats, or words of four bytes."""
    n, c, h, w = shape
    match layout:
        case "images16":
            return (n + 15) // 16 * 16 * c * h * w
        case "bytes":
            return (n * c * h * w + 3) // 4
        case "integers":
            return 2 * n * c * h * w
        case "quads" | "dynamic_quads" | "float_quads":
            quads = (n * h * w + 15) // 16 * 16 * ((c + 3) // 4)
            return quads * (5 if layout == "float_quads" else 1) + 16 * (layout == "dynamic_quads")
    return n * c * h * w
