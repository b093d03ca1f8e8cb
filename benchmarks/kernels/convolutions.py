"""Time the 3x3 convolutions of Sparse Wide ResNet-18, as a share of the multiply-add peak measured beside them.

    python benchmarks/kernels/convolutions.py --sparsity 0.9 0.75 0.5 --batch 1 64 --threads 1 2

Rates count the multiply-adds of non-zero weights only, two operations each. Peak, wall and convolution run in turns.
Peak is a loop of multiply-adds whose operands stay in registers; in that of the wall, each loads an operand from the
first-level cache, as each non-zero of a sparse row does, and nothing else happens. Neighbours on a shared processor
take loads and cache away, but not registers. Rate, peak and wall are each represented by their best time, `of wall` by
the median of its turns. `--cpu-time` counts the processor time of the one thread instead of the clock's.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sift_onnx.backends.cpu import _kernels

STAGES = ((64, 56), (128, 28), (256, 14), (512, 7))  # channels and pixels of ResNet-18
LANES = 16
PLANES_UNTIL = 11  # images: larger batches are better off with idle lanes
PEAK_ITERATIONS = 400_000
WALL_ITERATIONS = 20_000
RELU = ("clip", 0.0, math.inf)


@dataclass(frozen=True)
class Row:
    """One measurement; rates in GFLOP/s, times in ms."""

    sparsity: float
    channels: int
    pixels: int
    batch: int
    threads: int
    algorithm: str
    tile: str
    best_ms: float
    rate: float
    peak: float
    share: float
    wall: float
    of_wall: float


def page_aligned(size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Zeros that begin at a page."""
    memory = np.zeros(size + 1024, np.float32)
    first = -memory.ctypes.data // 4 % 1024
    return memory[first : first + size]


def sparse_weights(channels: int, density: float, rng: np.random.Generator) -> _kernels.SparseWeights:
    """A 3x3 convolution from `channels` to as many, non-zeros at random places."""
    columns = channels * 9
    kept = np.flatnonzero(rng.random(channels * columns, dtype=np.float32) < density)
    values = rng.standard_normal(kept.size, dtype=np.float32) / math.sqrt(columns * density)
    return _kernels.SparseWeights.from_indices(channels, columns, kept, values)


def measure(
    stage: tuple[int, int],
    sparsity: float,
    batch: int,
    pool: _kernels.ThreadPool,
    seconds: float,
    clock: Callable[[], float],
    isa: str,
    algorithm: str,
) -> Row:
    """Run one stage's convolution and the peak in turns for `seconds`."""
    rng = np.random.default_rng(0)
    # Wider by 1 / sqrt(density), a layer has the multiply-adds that it had when it was dense.
    channels, pixels = int(stage[0] / math.sqrt(1 - sparsity)), stage[1]
    weights = sparse_weights(channels, 1 - sparsity, rng)
    layout = "planes" if batch <= PLANES_UNTIL else "images16"
    op = _kernels.Conv(
        weights,
        np.zeros(channels, np.float32),
        kernel=(3, 3),
        pads=(1, 1, 1, 1),
        activation=RELU,
        layout=layout,
        isa=isa,
        algorithm=algorithm,
    )
    images = batch if layout == "planes" else -(-batch // LANES) * LANES
    shape = (batch, channels, pixels, pixels)
    x = page_aligned(images * channels * pixels * pixels)
    x[:] = rng.standard_normal(x.size, dtype=np.float32)
    y = page_aligned(x.size)
    op.prepare(shape, pool.threads)
    flops = 2 * weights.nnz * pixels * pixels * batch
    peaks, walls, rates = [], [], []

    def timed(run: Callable[[], float]) -> float:
        start = clock()
        done = run()
        return done / (clock() - start)

    def convolve() -> float:
        op.run(pool, shape, x, y)
        return flops

    def load() -> float:
        return _kernels.run_multiply_adds(pool, WALL_ITERATIONS, isa, load=True)

    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        peaks.append(timed(lambda: _kernels.run_multiply_adds(pool, PEAK_ITERATIONS, isa)))
        # Before and after, for neighbours that come in between.
        before = statistics.median(timed(load) for _ in range(9))
        rates.append(timed(convolve))
        walls.append((before + statistics.median(timed(load) for _ in range(9))) / 2)
    peak, wall, rate = max(peaks), max(walls), max(rates)
    how = op.describe(shape, pool.threads)
    tile = " of ".join("x".join(map(str, how[key])) for key in ("tile", "lanes")) + " " + how["form"].replace("_", " ")
    return Row(
        sparsity=sparsity,
        channels=channels,
        pixels=pixels,
        batch=batch,
        threads=pool.threads,
        algorithm=how["algorithm"],
        tile=tile,
        best_ms=1e3 * flops / rate,
        rate=rate / 1e9,
        peak=peak / 1e9,
        share=rate / peak,
        wall=wall / 1e9,
        of_wall=statistics.median(r / w for r, w in zip(rates, walls, strict=True)),
    )


def main() -> None:
    """Print a table, and with ``--json`` one line per row of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.9, 0.75, 0.5])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--stage", type=int, nargs="+", default=[0, 1, 2, 3], choices=range(len(STAGES)))
    parser.add_argument("--seconds", type=float, default=2.0, help="per row")
    parser.add_argument("--isa", default="", help="instruction set; the machine's best by default")
    parser.add_argument("--algorithm", default="auto", choices=("auto", "single", "pair", "dense"))
    parser.add_argument("--cpu-time", action="store_true", help="processor time; one thread only")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.cpu_time and arguments.threads != [1]:
        parser.error("--cpu-time knows the calling thread only: add --threads 1")
    clock = time.thread_time if arguments.cpu_time else time.perf_counter
    print(f"{platform.processor() or platform.machine()}, {_kernels.detected_isa()}", file=sys.stderr)
    if not arguments.json:
        print("sparsity  layer     batch threads algorithm        ms  GFLOP/s   peak  share   wall  of wall  tile")
    for threads in arguments.threads:
        pool = _kernels.ThreadPool(threads)
        for sparsity in arguments.sparsity:
            for stage in arguments.stage:
                for batch in arguments.batch:
                    row = measure(
                        STAGES[stage],
                        sparsity,
                        batch,
                        pool,
                        arguments.seconds,
                        clock,
                        arguments.isa,
                        arguments.algorithm,
                    )
                    if arguments.json:
                        print(json.dumps(asdict(row)), flush=True)
                        continue
                    layer = f"{row.channels}@{row.pixels}"
                    print(
                        f"{row.sparsity:8.2f}  {layer:8}  {row.batch:5} {row.threads:7} {row.algorithm:9} "
                        f"{row.best_ms:9.3f} {row.rate:8.1f} {row.peak:6.0f} {row.share:6.1%} {row.wall:6.0f} "
                        f"{row.of_wall:8.1%}  {row.tile}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
