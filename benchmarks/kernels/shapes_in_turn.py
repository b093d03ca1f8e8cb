"""Time one layer on inputs of many shapes in turn, beside the same shapes each by itself.

    python benchmarks/kernels/shapes_in_turn.py [--sparsity 0.9] [--threads 2] [--rounds 12]

Per case: milliseconds of all shapes, of each the best round; the ratio in turn : alone; the first run of a shape : its
best in turn, median and largest over the shapes behind the first; and how often the weights were packed. Rounds alone
and in turn alternate, so that both see the same machine.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
from convolutions import page_aligned

from sift_onnx.backends.cpu import _kernels

Shape = tuple[int, int, int, int]

_LENGTHS = (16, 24, 32, 48, 56, 64, 72, 80, 96, 104, 112, 128)
_SIZES = (14, 20, 24, 28, 32, 40, 48, 56)
CASES = {
    "1024 x 1024, lengths 16 to 128": (1024, 1, [(1, 1024, 1, n) for n in _LENGTHS]),
    "3x3, 202 channels, 14 to 56 pixels": (202, 3, [(1, 202, n, n) for n in _SIZES]),
}


class Layer:
    """A layer, and tensors of each shape."""

    def __init__(self, channels: int, kernel: int, shapes: list[Shape], sparsity: float) -> None:
        rng = np.random.default_rng(0)
        weights = rng.standard_normal((channels, channels * kernel * kernel), np.float32)
        weights *= rng.random(weights.shape) >= sparsity
        self._source = _kernels.SparseWeights.from_dense(*weights.shape, weights)
        self._window = {"kernel": (kernel, kernel), "pads": (kernel // 2,) * 4}
        self.tensors = [
            (shape, self._tensor(rng, shape), page_aligned(channels * shape[2] * shape[3])) for shape in shapes
        ]

    def op(self) -> _kernels.Conv:
        """The layer without any packing."""
        return _kernels.Conv(self._source, layout="planes", **self._window)

    @staticmethod
    def _tensor(rng: np.random.Generator, shape: Shape) -> np.ndarray:
        x = page_aligned(int(np.prod(shape)))
        x[:] = rng.standard_normal(x.size, np.float32)
        return x


def measure(name: str, layer: Layer, threads: int, rounds: int) -> str:
    """One row of the table."""
    pool = _kernels.ThreadPool(threads)

    def timed(op: _kernels.Conv, tensors: tuple[Shape, np.ndarray, np.ndarray]) -> float:
        start = time.perf_counter()
        op.run(pool, *tensors)
        return 1e3 * (time.perf_counter() - start)

    alone_ops = [layer.op() for _ in layer.tensors]
    for op, tensors in zip(alone_ops, layer.tensors, strict=True):
        timed(op, tensors)
    shared = layer.op()
    first = [timed(shared, tensors) for tensors in layer.tensors]
    alone, in_turn = [], []
    for _ in range(rounds):
        # Twice, and the second counts: a shape by itself finds its weights in the caches.
        alone.append([(timed(op, t), timed(op, t))[1] for op, t in zip(alone_ops, layer.tensors, strict=True)])
        in_turn.append([timed(shared, tensors) for tensors in layer.tensors])
    best_alone, best = (np.min(times, axis=0) for times in (alone, in_turn))
    starts = [a / b for a, b in zip(first[1:], best[1:], strict=True)]
    return (
        f"{name:36} {best_alone.sum():8.2f} {best.sum():8.2f} {best.sum() / best_alone.sum():6.2f} "
        f"{statistics.median(starts):6.2f} {max(starts):6.2f} {shared.times_packed:7}"
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    print(f"{'case':36} {'alone':>8} {'in turn':>8} {'ratio':>6} {'first':>6} {'most':>6} packings")
    for name, (channels, kernel, shapes) in CASES.items():
        layer = Layer(channels, kernel, shapes, arguments.sparsity)
        print(measure(name, layer, arguments.threads, arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
