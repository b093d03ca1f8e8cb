"""Time dense matrix products by tiles in registers and Strassen's algorithm, beside the same as a 1x1 convolution.

    python benchmarks/kernels/dense_product.py [--layer 30522x1024 4096x4096] [--tokens 16 128 1024] [--threads 1 2]

In turns: the median rate of both in GFLOP/s, of all the operations that the product is defined by, the median ratio of
neighbouring runs, and the root mean square of both's errors as a share of the outputs' standard deviation.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time

import numpy as np
from convolutions import LANES, page_aligned

from sift_onnx.backends.cpu import _kernels

# Rows of weights whose products are compared with those in double precision.
COMPARED = 500


def measure(rows: int, columns: int, tokens: int, threads: int, isa: str, seconds: float) -> str:
    """One row of the table."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((rows, columns), np.float32) / np.float32(math.sqrt(columns))
    weights = _kernels.SparseWeights.from_dense(rows, columns, values)
    ops = (_kernels.Conv(weights, isa=isa), _kernels.DenseProduct(weights, isa=isa))
    pool = _kernels.ThreadPool(threads)
    groups = -(-tokens // LANES)
    x = np.zeros((groups * LANES, columns), np.float32)
    x[:tokens] = rng.standard_normal((tokens, columns), np.float32)
    blocks = page_aligned(x.size)
    blocks[:] = x.reshape(groups, LANES, columns).transpose(0, 2, 1).ravel()
    exact = x[:tokens].astype(np.float64) @ values[:COMPARED].T.astype(np.float64)
    shape = (tokens, columns, 1, 1)
    y = page_aligned(groups * LANES * rows)
    errors = []
    for op in ops:
        op.run(pool, shape, blocks, y)
        found = y.reshape(groups, rows, LANES).transpose(0, 2, 1).reshape(-1, rows)[:tokens, : len(exact[0])]
        errors.append(math.sqrt(((found - exact) ** 2).mean()) / exact.std())
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 3:
        for op, own in zip(ops, times, strict=True):
            start = time.perf_counter()
            op.run(pool, shape, blocks, y)
            own.append(time.perf_counter() - start)
    rates = [2e-9 * tokens * rows * columns / statistics.median(own) for own in times]
    gain = statistics.median(a / b for a, b in zip(*times, strict=True))
    kind = "strassen" if ops[1].halves(shape) else "tiles"
    return (
        f"{isa:8} {rows:5} x {columns:5} {tokens:7} {threads:7} {rates[0]:9.0f} {rates[1]:9.0f} {kind:8} {gain:6.2f} "
        f"{errors[0]:9.1e} {errors[1]:9.1e}"
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer", nargs="+", default=["30522x1024"], help="rows x columns of the weights")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 128, 1024])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--isa", nargs="+", default=[_kernels.detected_isa()])
    parser.add_argument("--seconds", type=float, default=3.0, help="per row")
    arguments = parser.parse_args()
    print("isa             layer  tokens threads  conv rate      rate of         gain error     and of")
    for isa in arguments.isa:
        for layer in arguments.layer:
            rows, columns = map(int, layer.split("x"))
            for tokens in arguments.tokens:
                for threads in arguments.threads:
                    print(measure(rows, columns, tokens, threads, isa, arguments.seconds), flush=True)


if __name__ == "__main__":
    main()
