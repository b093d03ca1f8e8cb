"""Grids of rates, by what is measured: kinds of layers, positions, densities, bytes; see ``fit_costs.py``."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

from chains import LAYERS, OTHERS, Operator

from sift_onnx.backends.cpu.lower.rates import Grid
from sift_onnx.backends.lowering.weights import ValueType

__all__ = [
    "COUNT",
    "DENSITIES",
    "FEW",
    "LANES",
    "MANY",
    "QUANTIZED",
    "QUANTIZED_DENSITY",
    "TINY",
    "TOKENS",
    "VALUES",
    "attention_flops",
    "grid_of",
    "grids",
    "least",
    "other_grids",
    "rate_of",
    "rounded",
]

DENSITIES = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
ROWS = (1, 4, 16, 64, 256)
SIDES = (4, 7, 14, 28, 56)
TOKENS = (16, 64, 128, 256)
# Columns of products, channels of convolutions.
PRODUCTS = {"small product": 256, "product": 768}
CHANNELS = {"pointwise": 192, "window": 96, "depthwise": 192}
# How products hold their values, beside float32.
VALUES: tuple[ValueType, ...] = ("bfloat16", "float16", "int8")
LANES = 16
# Operators of a model.
COUNT = 4
# Of the layers by which bytes are compared with floats.
QUANTIZED, QUANTIZED_DENSITY = (1, 192, 28, 28), 0.2
# Of operators without weights: in a core's caches, in what cores share, and beyond.
MATRICES = ((8, 768), (128, 768), (4096, 768))
IMAGES = ((1, 32, 28, 28), (1, 64, 56, 56), (16, 64, 112, 112))
# Of the chain whose operators do next to nothing.
TINY, FEW, MANY = (1, 16), 1, 33


def least(run: Callable[[], object], seconds: float) -> float:
    """The least time of a run, in seconds."""
    run()
    best, end = math.inf, time.perf_counter() + seconds
    for rounds in range(100_000):
        if rounds >= 3 and time.perf_counter() > end:
            break
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def shapes() -> Iterator[tuple[str, str, int, tuple[int, ...]]]:
    """Kinds as ``costs.py`` has them, their operator, positions, and the shape of their operands."""
    for kind, width in PRODUCTS.items():
        for rows in ROWS:
            yield kind, "product", rows, (rows, width)
    for values in VALUES:
        for rows in ROWS:
            yield f"product {values}", "product", rows, (rows, PRODUCTS["product"])
    for operator, channels in CHANNELS.items():
        for images, kind in ((1, operator), (LANES, f"{operator} in lanes")):
            for side in SIDES:
                yield kind, operator, side * side, (images, channels, side, side)


def flops(operator: str, shape: tuple[int, ...], density: float) -> float:
    """Of one layer, on active weights."""
    width = shape[1]
    weights = {"depthwise": 9 * width, "window": 9 * width**2}.get(operator, width**2)
    return 2.0 * density * weights * math.prod(shape) / width


def grids(
    densities: tuple[float, ...],
    seconds_of: Callable[[str, str, tuple[int, ...], float], float],
    step: float,
    is_wanted: Callable[[str], bool] = lambda kind: True,
) -> dict[str, Grid]:
    """GFLOP/s of all kinds of layers, once ``step`` seconds of each are taken off."""
    rows: dict[str, tuple[list[float], list[tuple[float, ...]]]] = {}
    for kind, operator, positions, shape in shapes():
        if not is_wanted(kind):
            continue
        own = (1.0,) if operator == "depthwise" else densities
        rates = []
        for density in own:
            seconds = seconds_of(kind, operator, shape, density)
            rates.append(rate_of(flops(operator, shape, density), seconds, step))
        known = rows.setdefault(kind, ([], []))
        known[0].append(float(positions))
        known[1].append(tuple(rates))
        print(f"  {kind:20} {positions:5}  " + "  ".join(f"{rate:7.1f}" for rate in rates), flush=True)
    return {
        kind: Grid(tuple(positions), (1.0,) if kind.startswith("depthwise") else densities, tuple(gflops))
        for kind, (positions, gflops) in rows.items()
    }


def rate_of(amount: float, seconds: float, step: float) -> float:
    """In 10**9 per second; at most half of a short operator's time is taken for what any operator costs."""
    return rounded(amount / max(seconds - step, seconds / 2) / 1e9)


def rounded(value: float) -> float:
    """Three digits: more are noise."""
    return float(f"{value:.3g}")


def attention_flops(tokens: int) -> float:
    """As ``costs.step_work`` counts them."""
    return 4.0 * tokens * tokens * 8 * 64


def other_grids(seconds_of: Callable[[Operator, tuple[int, ...], Operator], float], step: float) -> dict[str, Grid]:
    """GB/s of operators without weights, once ``step`` seconds of each are taken off."""
    found = {}
    for kind, operator in OTHERS.items():
        shapes, anchor = (IMAGES, LAYERS["pointwise"]) if kind == "pool" else (MATRICES, LAYERS["product"])
        points = []
        for shape in shapes:
            nbytes = 4.0 * (3 if kind == "elementwise" else 2) * math.prod(shape)
            points.append((nbytes, rate_of(nbytes, seconds_of(operator, shape, anchor), step)))
        found[kind] = grid_of(points)
        print(f"  {kind:20} " + "  ".join(f"{rate:7.1f}" for _, rate in points), flush=True)
    return found


def grid_of(points: list[tuple[float, float]]) -> Grid:
    """Of what has a size and a rate."""
    return Grid(tuple(size for size, _ in points), (1.0,), tuple((rate,) for _, rate in points))
