"""Measure what the estimates of the CPU back end are made of: ``backends/cpu/lower/measured_rates.json``.

    python benchmarks/kernels/fit_costs.py [--threads 1 2] [--isa avx512 avx2 portable] [--seconds 0.1] [--improve]
    python benchmarks/kernels/fit_costs.py --only "product *"    # these kinds of layers; the others keep their rates

Each rate is that of a model of a few operators of one kind, in the kernels and in onnxruntime: the least time of
several rounds. The file is replaced when all is done. It takes some minutes; nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import datetime as dt
import math
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from fnmatch import fnmatch
from importlib.metadata import version

import msgspec
import numpy as np
import onnx
from chains import LAYERS, OTHERS, Operator, attention_model, chain, quantized_chain, turns

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower import rates
from sift_onnx.backends.cpu.lower.lowered_model import weights_of
from sift_onnx.backends.cpu.lower.plan import Region, lower
from sift_onnx.backends.cpu.lower.profitability import Setting
from sift_onnx.backends.cpu.lower.rates import TABLE, Entry, Grid, Rates, Table
from sift_onnx.backends.cpu.run.parts import PartProgram, Parts
from sift_onnx.backends.cpu.run.peak import Peak
from sift_onnx.backends.cpu.run.region_program import RegionProgram, StepTime
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.subgraph import Subgraph
from sift_onnx.backends.lowering.weights import ValueType
from sift_onnx.backends.measure import host
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram
from sift_onnx.model import Model
from sift_onnx.shapes.random_inputs import Feeds, random_feeds
from sift_onnx.shapes.tensor_specs import graph_inputs

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
_MEMORY_BYTES = 1 << 30
_COUNT = 4
# Of the layers by which bytes are compared with floats.
QUANTIZED, QUANTIZED_DENSITY = (1, 192, 28, 28), 0.2
# Of operators without weights: in a core's caches, in what cores share, and beyond.
MATRICES = ((8, 768), (128, 768), (4096, 768))
IMAGES = ((1, 32, 28, 28), (1, 64, 56, 56), (16, 64, 112, 112))
BORDERS = ((LANES, 8, 14, 14), (LANES, 64, 28, 28), (LANES, 64, 112, 112))
# Of the chain whose operators do next to nothing.
_TINY, _FEW, _MANY = (1, 16), 1, 33


# Rates of which none is asked for: everything that can be is left to the kernels.
_ONE = Grid((1.0,), (1.0,), ((1.0,),))
_ANY = Entry("avx512", 1, 1.0, defaultdict(lambda: _ONE), defaultdict(lambda: _ONE), 0.0, 0.0, 0.0)


class Kernels:
    """The kernels with one instruction set and number of threads."""

    def __init__(self, isa: str, threads: int, seconds: float) -> None:
        self.isa, self.threads, self.seconds = isa, threads, seconds
        self._pool = _kernels.ThreadPool(threads)

    @property
    def memory(self) -> Grid:
        """What a plain loop reads of memory that no cache holds."""
        memory = np.ones(_MEMORY_BYTES // 8, np.uint64)
        seconds = _least(lambda: _kernels.read_memory(self._pool, memory), 5 * self.seconds)
        return _grid([(float(memory.nbytes), _rounded(1e-9 * memory.nbytes / seconds))])

    @property
    def peak_gflops(self) -> float:
        peak = Peak(self._pool, self.isa)
        for _ in range(10):
            peak.sample()
        return peak.gflops

    def region(self, model: onnx.ModelProto, values: ValueType = "float32") -> tuple[RegionProgram, Feeds]:
        """All of a model in the kernels, and inputs for it."""
        setting = Setting(Rates(_ANY, _ANY), slack=math.inf)
        plan = lower(GraphView(Model.load(model)), self.threads, setting, values=values)
        (part,) = plan.parts
        program = self._program(part)
        assert isinstance(program, RegionProgram)
        return program, random_feeds(graph_inputs(model))

    def _program(self, part: Region | Subgraph) -> PartProgram:
        if isinstance(part, Region):
            return RegionProgram(
                part, weights_of(part), self._pool, _kernels.Workspace(), _kernels.ArrayPool(), self.isa
            )
        return OnnxRuntimeProgram(part.model, CompileOptions(self.threads), part.arrays)

    def steps(self, model: onnx.ModelProto, values: ValueType = "float32") -> dict[int | None, float]:
        """The least time of each step of a model, in seconds; None is a change of layout."""
        program, feeds = self.region(model, values)
        best: dict[int | None, float] = {}

        def run() -> None:
            times: list[StepTime] = []
            program.run(feeds, times)
            sums: dict[int | None, float] = {}
            for item in times:
                sums[item.step] = sums.get(item.step, 0.0) + item.seconds
            for step, seconds in sums.items():
                best[step] = min(best.get(step, math.inf), seconds)

        _least(run, self.seconds)
        return best

    def turn_seconds(self) -> tuple[float, float]:
        """What a region and a session of onnxruntime take besides their operators, where they take turns."""
        model = turns(_COUNT)
        plan = lower(GraphView(Model.load(model)), self.threads, Setting(Rates(_ANY, _ANY), slack=math.inf))
        programs = [self._program(part) for part in plan.parts]
        parts, feeds = Parts(programs, [model.graph.output[0].name]), random_feeds(graph_inputs(model))
        best = [math.inf] * len(programs)

        def run() -> None:
            for number, part in enumerate(parts.run_timed(feeds)[1]):
                besides = part.seconds - sum(step.seconds for step in part.steps)
                best[number] = min(best[number], besides)

        _least(run, self.seconds)
        own = [seconds for seconds, part in zip(best, plan.parts, strict=True) if isinstance(part, Region)]
        # The operator of a session is too small to be told from its call.
        other = [seconds for seconds, part in zip(best, plan.parts, strict=True) if not isinstance(part, Region)]
        return statistics.mean(own), statistics.mean(other)

    def wall(self, model: onnx.ModelProto) -> float:
        """The least time of a run, in seconds."""
        program, feeds = self.region(model)
        return _least(lambda: program.run(feeds), self.seconds)


def _least(run: Callable[[], object], seconds: float) -> float:
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
            rates.append(_rate(flops(operator, shape, density), seconds, step))
        known = rows.setdefault(kind, ([], []))
        known[0].append(float(positions))
        known[1].append(tuple(rates))
        print(f"  {kind:20} {positions:5}  " + "  ".join(f"{rate:7.1f}" for rate in rates), flush=True)
    return {
        kind: Grid(tuple(positions), (1.0,) if kind.startswith("depthwise") else densities, tuple(gflops))
        for kind, (positions, gflops) in rows.items()
    }


def _rate(amount: float, seconds: float, step: float) -> float:
    """In 10**9 per second; at most half of a short operator's time is taken for what any operator costs."""
    return _rounded(amount / max(seconds - step, seconds / 2) / 1e9)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def attention_flops(tokens: int) -> float:
    """As ``costs.step_work`` counts them."""
    return 4.0 * tokens * tokens * 8 * 64


def layer_grids(kernels: Kernels, step: float, is_wanted: Callable[[str], bool] = lambda kind: True) -> dict[str, Grid]:
    """Rates of layers with weights in the kernels."""

    def layer(kind: str, operator: str, shape: tuple[int, ...], density: float) -> float:
        anchor = LAYERS["product" if operator == "product" else "pointwise"]
        values = next((values for values in VALUES if kind.endswith(values)), "float32")
        times = kernels.steps(chain(LAYERS[operator], shape, _COUNT, density, anchor), values)
        return sum(times[i] for i in range(1, _COUNT + 1)) / _COUNT

    return grids(DENSITIES, layer, step, is_wanted)


def kernels_entry(kernels: Kernels) -> Entry:
    """All rates of the kernels."""
    few, many = (kernels.wall(chain(LAYERS["product"], _TINY, count, 0.2)) for count in (_FEW, _MANY))
    step = max((many - few) / (_MANY - _FEW), 1e-7)
    layers = layer_grids(kernels, step)
    attention = []
    for tokens in TOKENS:
        times = kernels.steps(attention_model(tokens, True))
        attention.append((_rate(attention_flops(tokens), sum(v for k, v in times.items() if k), step),))
    layers["attention"] = Grid(tuple(map(float, TOKENS)), (1.0,), tuple(attention))

    def operators(operator: Operator, shape: tuple[int, ...], anchor: Operator) -> float:
        # An addition may join the layer before it.
        times = kernels.steps(chain(operator, shape, _COUNT, anchor=anchor))
        return statistics.mean(seconds for number, seconds in times.items() if number)

    rates = other_grids(operators, step)
    moved = [(4.0 * 2 * math.prod(shape), kernels.steps(chain(LAYERS["pointwise"], shape, 1, 0.1))[None])
             for shape in BORDERS]  # fmt: skip
    # What a change of layout costs per byte that crosses: it is read and written, in two layouts.
    rates["memory"] = kernels.memory
    rates["border"] = _grid([(nbytes, _rounded(1e-9 * nbytes / seconds)) for nbytes, seconds in moved])
    return Entry(
        kernels.isa,
        kernels.threads,
        _rounded(kernels.peak_gflops),
        layers,
        rates,
        _rounded(step),
        call_seconds=_rounded(few - step),
        turn_seconds=_rounded(max(kernels.turn_seconds()[0], few - step)),
        quantized=_rounded(quantized_gain(kernels)),
    )


def quantized_gain(kernels: Kernels) -> float:
    """How many times as fast a layer of bytes is as one of floats whose weights are as dense as its quads."""
    floats = kernels.steps(chain(LAYERS["pointwise"], QUANTIZED, _COUNT, QUANTIZED_DENSITY))
    of_bytes = kernels.steps(quantized_chain(QUANTIZED, _COUNT, QUANTIZED_DENSITY))
    # The first and the last step of these change the type.
    inner = [seconds for number, seconds in of_bytes.items() if number is not None and 0 < number <= _COUNT]
    return statistics.mean(seconds for number, seconds in floats.items() if number is not None) / statistics.mean(inner)


def other_grids(seconds_of: Callable[[Operator, tuple[int, ...], Operator], float], step: float) -> dict[str, Grid]:
    """GB/s of operators without weights, once ``step`` seconds of each are taken off."""
    found = {}
    for kind, operator in OTHERS.items():
        shapes, anchor = (IMAGES, LAYERS["pointwise"]) if kind == "pool" else (MATRICES, LAYERS["product"])
        points = []
        for shape in shapes:
            nbytes = 4.0 * (3 if kind == "elementwise" else 2) * math.prod(shape)
            points.append((nbytes, _rate(nbytes, seconds_of(operator, shape, anchor), step)))
        found[kind] = _grid(points)
        print(f"  {kind:20} " + "  ".join(f"{rate:7.1f}" for _, rate in points), flush=True)
    return found


def _grid(points: list[tuple[float, float]]) -> Grid:
    return Grid(tuple(size for size, _ in points), (1.0,), tuple((rate,) for _, rate in points))


def onnxruntime_entry(isa: str, threads: int, peak_gflops: float, seconds: float) -> Entry:
    """All rates of onnxruntime."""

    def wall(model: onnx.ModelProto) -> float:
        program, feeds = OnnxRuntimeProgram(model, CompileOptions(threads)), random_feeds(graph_inputs(model))
        return _least(lambda: program.run_unchecked(feeds), seconds)

    few, many = (wall(chain(LAYERS["product"], _TINY, count)) for count in (_FEW, _MANY))
    step = max((many - few) / (_MANY - _FEW), 1e-7)
    call = few - step

    def operators(operator: Callable[..., str], shape: tuple[int, ...]) -> float:
        return (wall(chain(operator, shape, _COUNT)) - call) / _COUNT

    layers = grids(
        (1.0,),
        lambda _, operator, shape, __: operators(LAYERS[operator], shape),
        step,
        lambda kind: not kind.endswith(VALUES),
    )
    attention = [
        (_rate(attention_flops(tokens), wall(attention_model(tokens, False)) - call, step),) for tokens in TOKENS
    ]
    layers["attention"] = Grid(tuple(map(float, TOKENS)), (1.0,), tuple(attention))
    rates = other_grids(lambda operator, shape, _: operators(operator, shape), step)
    turn = max(Kernels(isa, threads, seconds).turn_seconds()[1], call)
    floats, of_bytes = (
        wall(make(QUANTIZED, 1 + _COUNT)) - wall(make(QUANTIZED, 1))
        for make in (lambda shape, count: chain(LAYERS["pointwise"], shape, count), quantized_chain)
    )
    return Entry(
        isa, threads, _rounded(peak_gflops), layers, rates, _rounded(step), _rounded(call), _rounded(turn),
        _rounded(floats / of_bytes),
    )  # fmt: skip


def write(table: Table) -> None:
    """Replace the file; numbers of a list are on one line, so that a difference shows which rates changed."""
    text = msgspec.json.format(msgspec.json.encode(table), indent=1).decode()
    text = re.sub(
        r"\[[-\d.e,\s]+\]", lambda found: re.sub(r"\s+", " ", found[0]).replace("[ ", "[").replace(" ]", "]"), text
    )
    TABLE.write_text(text + "\n", encoding="utf-8")


def renewed(known: Table, arguments: argparse.Namespace) -> Table:
    """``known``, with other rates of some kinds of layers in the kernels."""
    entries = []
    for entry in known.kernels:
        if entry.isa in arguments.isa and entry.threads in arguments.threads:
            print(f"{entry.isa}, {entry.threads} threads", flush=True)
            kernels = Kernels(entry.isa, entry.threads, arguments.seconds)
            found = layer_grids(kernels, entry.step_seconds, lambda kind: fnmatch(kind, arguments.only))
            nbytes = {"memory": kernels.memory} if fnmatch("memory", arguments.only) else {}
            renewed_entry = replace(entry, flops={**entry.flops, **found}, bytes={**entry.bytes, **nbytes})
            entry = _better(renewed_entry, (entry,)) if arguments.improve else renewed_entry
        entries.append(entry)
    return replace(known, kernels=tuple(entries))


def improved(measured: Table, known: Table) -> Table:
    """``measured``, with the better of both rates and seconds where ``known`` has them of the same processor.

    Other programs only make rates worse, so that several measurements beside them come nearer to the machine's.
    """
    if known.processor != measured.processor:
        return measured
    return replace(
        measured,
        kernels=tuple(_better(entry, known.kernels) for entry in measured.kernels),
        onnxruntime=tuple(_better(entry, known.onnxruntime) for entry in measured.onnxruntime),
    )


def _better(entry: Entry, known: tuple[Entry, ...]) -> Entry:
    other = next((one for one in known if (one.isa, one.threads) == (entry.isa, entry.threads)), entry)
    return replace(
        entry,
        peak_gflops=max(entry.peak_gflops, other.peak_gflops),
        flops={kind: _better_grid(grid, other.flops.get(kind, grid)) for kind, grid in entry.flops.items()},
        bytes={kind: _better_grid(grid, other.bytes.get(kind, grid)) for kind, grid in entry.bytes.items()},
        step_seconds=min(entry.step_seconds, other.step_seconds),
        call_seconds=min(entry.call_seconds, other.call_seconds),
        turn_seconds=min(entry.turn_seconds, other.turn_seconds),
        quantized=max(entry.quantized, other.quantized),
    )


def _better_grid(grid: Grid, other: Grid) -> Grid:
    if (grid.sizes, grid.densities) != (other.sizes, other.densities):
        return grid
    pairs = zip(grid.rates, other.rates, strict=True)
    return replace(grid, rates=tuple(tuple(map(max, *rows)) for rows in pairs))


def main() -> None:
    """Measure, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    supported = _kernels.supported_isas()
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--isa", nargs="+", default=supported, choices=supported)
    parser.add_argument("--seconds", type=float, default=0.1, help="of each model")
    parser.add_argument(
        "--improve", action="store_true", help="keep rates of the file that are better: beside other programs"
    )
    parser.add_argument(
        "--only", metavar="GLOB", help="measure these kinds of layers in the kernels, or memory, and keep the rest"
    )
    arguments = parser.parse_args()
    if arguments.only:
        write(renewed(rates.read_table(), arguments))
        return
    kernels, onnxruntime = [], []
    for threads in arguments.threads:
        print(f"onnxruntime, {threads} threads", flush=True)
        isa = _kernels.detected_isa()
        peak = Kernels(isa, threads, arguments.seconds).peak_gflops
        onnxruntime.append(onnxruntime_entry(isa, threads, peak, arguments.seconds))
        for isa in arguments.isa:
            print(f"{isa}, {threads} threads", flush=True)
            kernels.append(kernels_entry(Kernels(isa, threads, arguments.seconds)))
    table = Table(
        host()["cpu"], version("onnxruntime"), dt.date.today().isoformat(), tuple(kernels), tuple(onnxruntime)
    )
    if arguments.improve:
        table = improved(table, rates.read_table())
    write(table)


if __name__ == "__main__":
    main()
