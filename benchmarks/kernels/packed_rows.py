"""Time products of a few rows with packed int8 weights, with each extension of the instruction set, beside fp32.

Each extension has the form that it prefers. "rounded" has all extensions of this machine and activations of 16 bits,
and "bits" is int8 as bits and values with all extensions.

    python benchmarks/kernels/packed_rows.py [--weights 512x2048] [--density 0.5 0.3 0.1] [--rows 1 2 4 8 16]
        [--threads 1] [--rounds 40]

In turns: the least microseconds of each, nanoseconds per 64 columns of a row of weights on one thread, and ratios to
int8 without extensions.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from sift_onnx.backends.cpu import _kernels

# Products in turns, so that a row of weights is not in the first-level cache.
_COPIES = 4


def measure(rows: int, columns: int, density: float, x_rows: int, threads: int, rounds: int) -> str:
    """One row of the table."""
    rng = np.random.default_rng(0)
    integers = rng.integers(-127, 128, (rows, columns)).astype(np.float32)
    integers[rng.random(integers.shape) >= density] = 0
    weights = _kernels.SparseWeights.from_dense(rows, columns, integers)
    scales = np.full((rows, 1), 0.01, np.float32)

    def products(values: str, isa: str = "", extension: str = "amx", *, rounds: bool = False) -> list[_kernels.Matmul]:
        own = scales if values == "int8" else None
        return [
            _kernels.Matmul(
                _kernels.PackedRows(weights, values, own, isa=isa, extension=extension),
                rounds_activations=rounds,
                extension=extension,
            )
            for _ in range(_COPIES)
        ]

    ways = {name: products("int8", extension=name) for name in ("none", "vnni", "vbmi2", "amx")}
    ways["rounded"] = products("int8", rounds=True)
    ways["bits"] = products("int8", "portable")  # whose kernels have no other form of sparse int8
    ways["fp32"] = products("float32")
    pool = _kernels.ThreadPool(threads)
    x = rng.standard_normal((x_rows, columns)).astype(np.float32)
    y = np.empty((x_rows, rows), np.float32)
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, ops in ways.items():
            for op in ops:
                begin = time.perf_counter()
                op.run(pool, (x_rows, columns, 1, 1), x, y)
                least[name] = min(least[name], time.perf_counter() - begin)
    words = rows * columns / 64 / threads
    cells = "".join(f"{1e6 * s:10.0f} {1e9 * s / words:6.2f} {s / least['none']:5.2f}" for s in least.values())
    return f"{density:7.2f} {x_rows:5}{cells}"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="512x2048", help="rows x columns")
    parser.add_argument("--density", type=float, nargs="+", default=[0.5, 0.3, 0.1])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="of activations")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    rows, columns = map(int, arguments.weights.split("x"))
    names = ("none", "vnni", "vbmi2", "amx", "rounded", "bits", "fp32")
    print("density  rows" + "".join(f"{name + ' us':>10}     ns ratio" for name in names))
    for density in arguments.density:
        for x_rows in arguments.rows:
            print(measure(rows, columns, density, x_rows, arguments.threads, arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
