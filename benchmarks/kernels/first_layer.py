"""Time the first layer of ResNet-18, 7x7 with stride 2, by Winograd's algorithm and as a sum of products, in turns.

    python benchmarks/kernels/first_layer.py [--rows 202] [--batch 1 16] [--threads 1 2] [--isa avx512 avx2]

Of each: the best time, and of both the median ratio of two neighbouring runs. Then the errors of each on a small image
of random pixels, as a share of the outputs' standard deviation.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time

import numpy as np
from convolutions import LANES, PLANES_UNTIL, page_aligned

from sift_onnx.backends.cpu import _kernels

CHANNELS, PIXELS, KERNEL, STRIDE, PAD = 3, 224, 7, 2, 3


def measure(rows: int, batch: int, threads: int, isa: str, seconds: float) -> str:
    """One row of the table."""
    rng = np.random.default_rng(0)
    weights = _kernels.SparseWeights.from_dense(
        rows, CHANNELS * KERNEL**2, rng.standard_normal((rows, CHANNELS * KERNEL**2), np.float32)
    )
    layout = "planes" if batch <= PLANES_UNTIL else "images16"
    shared = {
        "kernel": (KERNEL, KERNEL),
        "stride": (STRIDE, STRIDE),
        "pads": (PAD,) * 4,
        "activation": ("clip", 0.0, math.inf),
        "layout": layout,
        "isa": isa,
    }
    bias = np.zeros(rows, np.float32)
    ops = (_kernels.Conv(weights, bias, **shared), _kernels.Winograd(weights, bias, **shared))
    pool = _kernels.ThreadPool(threads)
    shape = (batch, CHANNELS, PIXELS, PIXELS)
    images = batch if layout == "planes" else -(-batch // LANES) * LANES
    x = page_aligned(images * CHANNELS * PIXELS**2)
    x[:] = rng.standard_normal(x.size, dtype=np.float32)
    y = page_aligned(images * rows * (PIXELS // STRIDE) ** 2)
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 3:
        for op, own in zip(ops, times, strict=True):
            start = time.perf_counter()
            op.run(pool, shape, x, y)
            own.append(time.perf_counter() - start)
    direct, winograd = (1e3 * min(own[1:]) for own in times)  # the first runs pack weights
    gain = statistics.median(a / b for a, b in zip(times[0][1:], times[1][1:], strict=True))
    return f"{isa:8} {batch:5} {threads:7} {direct:12.2f} {winograd:11.2f} {gain:6.2f}"


def errors(isa: str) -> str:
    """Root mean squares of what 64 rows of outputs differ from products added up in double precision."""
    rng = np.random.default_rng(0)
    size, rows = 64, 64
    x = page_aligned(CHANNELS * size**2)
    x[:] = rng.standard_normal(x.size, dtype=np.float32)
    values = rng.standard_normal((rows, CHANNELS * KERNEL**2), np.float32)
    weights = _kernels.SparseWeights.from_dense(rows, values.shape[1], values)
    padded = np.pad(x.reshape(CHANNELS, size, size).astype(np.float64), ((0, 0), (PAD, PAD), (PAD, PAD)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (KERNEL, KERNEL), (1, 2))[:, ::STRIDE, ::STRIDE]
    exact = np.einsum("chwij,rcij->rhw", windows, values.reshape(rows, CHANNELS, KERNEL, KERNEL).astype(np.float64))
    shared = {
        "kernel": (KERNEL, KERNEL),
        "stride": (STRIDE, STRIDE),
        "pads": (PAD,) * 4,
        "layout": "planes",
        "isa": isa,
    }
    found = []
    for op in (_kernels.Conv(weights, **shared), _kernels.Winograd(weights, **shared)):
        y = page_aligned(exact.size)
        op.run(_kernels.ThreadPool(1), (1, CHANNELS, size, size), x, y)
        found.append(math.sqrt(((y.reshape(exact.shape) - exact) ** 2).mean()) / exact.std())
    return f"{isa:8} error of products {found[0]:.1e}, of winograd {found[1]:.1e}"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=202, help="output channels")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--isa", nargs="+", default=[_kernels.detected_isa()])
    parser.add_argument("--seconds", type=float, default=3.0, help="per row")
    arguments = parser.parse_args()
    print("isa      batch threads  products ms winograd ms   gain")
    for isa in arguments.isa:
        for batch in arguments.batch:
            for threads in arguments.threads:
                print(measure(arguments.rows, batch, threads, isa, arguments.seconds), flush=True)
    for isa in arguments.isa:
        print(errors(isa))


if __name__ == "__main__":
    main()
