"""Time how a layer's lists are made out of those for other tiles, in its first run of another size.

    python benchmarks/kernels/list_packing.py [--density 0.1] [--copies 6]

Nanoseconds per weight on one thread, choosing the tile included: the median and the least over sizes and copies of the
layer. Of processors that generate code, without it.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from sift_onnx.backends.cpu import _kernels

# Rows, columns and sides of the kernel.
_LAYERS = ((2048, 512, 1), (512, 2048, 1), (512, 512, 3), (512, 512, 1), (128, 128, 3))
_TOKENS = (56, 72, 104, 128, 24, 200, 90)
_SIDES = (14, 20, 28, 8, 10, 16, 40)


def measure(rows: int, channels: int, side: int, density: float, copies: int) -> list[float]:
    """Nanoseconds per weight of each packing."""
    rng = np.random.default_rng(0)
    columns = channels * side * side
    dense = rng.standard_normal((rows, columns), np.float32)
    dense[rng.random(dense.shape) >= density] = 0
    sizes = [(1, n) for n in _TOKENS] if side == 1 else [(n, n) for n in _SIDES]
    layers = []
    for _ in range(copies):
        weights = _kernels.SparseWeights.from_dense(rows, columns, dense)
        layer = _kernels.Conv(weights, kernel=(side, side), pads=(side // 2,) * 4, layout="planes", algorithm="single")
        layer.prepare((1, channels, *sizes[0]), 2)
        layer.release_source()
        layers.append(layer)
    times = []
    for size in sizes[1:]:
        for layer in layers:
            packed, start = layer.times_packed, time.perf_counter()
            layer.prepare((1, channels, *size), 2)
            if layer.times_packed > packed:
                times.append((time.perf_counter() - start) / np.count_nonzero(dense) * 1e9)
    return times


def main() -> None:
    """Measure and print a row per layer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--density", type=float, default=0.1)
    parser.add_argument("--copies", type=int, default=6)
    arguments = parser.parse_args()
    print("weights | median, ns | least, ns | packings")
    for rows, channels, side in _LAYERS:
        times = measure(rows, channels, side, arguments.density, arguments.copies)
        name = f"{rows} x {channels}, {side}x{side}"
        print(name, f"{statistics.median(times):.1f}", f"{min(times):.1f}", len(times), sep=" | ", flush=True)


if __name__ == "__main__":
    main()
