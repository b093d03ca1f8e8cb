"""Time the first layer of ResNet-18, 7x7 with stride 2, by Winograd's algorithm, and the max pooling behind it.

    python benchmarks/kernels/first_layer.py [--rows 202] [--batch 1 16] [--threads 1 2] [--isa avx512 avx2]

In turns: the layer as a sum of products and by Winograd's algorithm, and this with the pooling, one after the other and
in one. Of each the best time, and of both pairs the median ratio of two neighbouring runs. Then the errors of products
and of Winograd's algorithm on a small image of random pixels, as a share of the outputs' standard deviation.
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
    conv = _kernels.Conv(weights, bias, **shared)
    winograd = _kernels.Winograd(weights, bias, **shared)
    window, window_stride, window_pads = (3, 3), (2, 2), (1, 1, 1, 1)
    max_pool = _kernels.MaxPool(kernel=window, stride=window_stride, pads=window_pads, layout=layout, isa=isa)
    pooled = _kernels.PooledWinograd(
        weights, bias, window=window, window_stride=window_stride, window_pads=window_pads, **shared
    )
    pool = _kernels.ThreadPool(threads)
    shape = (batch, CHANNELS, PIXELS, PIXELS)
    images = batch if layout == "planes" else -(-batch // LANES) * LANES
    x = page_aligned(images * CHANNELS * PIXELS**2)
    x[:] = rng.standard_normal(x.size, dtype=np.float32)
    between = winograd.output_shape(shape)
    y = page_aligned(images * math.prod(between[1:]))
    z = page_aligned(images * math.prod(pooled.output_shape(shape)[1:]))

    def winograd_and_pool() -> None:
        winograd.run(pool, shape, x, y)
        max_pool.run(pool, between, y, z)

    programs = (
        lambda: conv.run(pool, shape, x, y),
        lambda: winograd.run(pool, shape, x, y),
        winograd_and_pool,
        lambda: pooled.run(pool, shape, x, z),
    )
    times: tuple[list[float], ...] = ([], [], [], [])
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 3:
        for program, own in zip(programs, times, strict=True):
            start = time.perf_counter()
            program()
            own.append(time.perf_counter() - start)
    best = [1e3 * min(own[1:]) for own in times]  # the first runs pack weights
    gains = [statistics.median(a / b for a, b in zip(times[i][1:], times[i + 1][1:], strict=True)) for i in (0, 2)]
    return (
        f"{isa:8} {batch:5} {threads:7} {best[0]:12.2f} {best[1]:11.2f} {gains[0]:6.2f} "
        f"{best[2]:15.2f} {best[3]:13.2f} {gains[1]:6.2f}"
    )


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
    print("isa      batch threads  products ms winograd ms   gain  and pooling ms     in one ms   gain")
    for isa in arguments.isa:
        for batch in arguments.batch:
            for threads in arguments.threads:
                print(measure(arguments.rows, batch, threads, isa, arguments.seconds), flush=True)
    for isa in arguments.isa:
        print(errors(isa))


if __name__ == "__main__":
    main()
