"""Rates of the kernels, with an instruction set and a number of threads; see ``fit_costs.py``."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable
from functools import partial

import numpy as np
import onnx
from chains import LAYERS, Operator, attention_model, chain, quantized_chain, turns
from rate_grids import (
    COUNT,
    DENSITIES,
    FEW,
    LANES,
    MANY,
    QUANTIZED,
    QUANTIZED_DENSITY,
    TINY,
    TOKENS,
    VALUES,
    attention_flops,
    grid_of,
    grids,
    least,
    other_grids,
    rate_of,
    rounded,
)

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.lowered_model import weights_of
from sift_onnx.backends.cpu.lower.plan import lower
from sift_onnx.backends.cpu.lower.profitability import Setting
from sift_onnx.backends.cpu.lower.rates import Entry, Grid, Rates
from sift_onnx.backends.cpu.lower.region import Region
from sift_onnx.backends.cpu.run.parts import PartProgram, Parts
from sift_onnx.backends.cpu.run.peak import Peak
from sift_onnx.backends.cpu.run.region_program import RegionProgram, StepTime
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.subgraph import Subgraph
from sift_onnx.backends.lowering.weights import ValueType
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram
from sift_onnx.model import Model
from sift_onnx.shapes.random_inputs import Feeds, random_feeds
from sift_onnx.shapes.tensor_specs import graph_inputs

__all__ = ["Kernels", "kernels_entry", "layer_grids"]

# Of a plain read loop.
_MEMORY_BYTES = 1 << 30
# Shapes of what enters and leaves a region.
BORDERS = ((LANES, 8, 14, 14), (LANES, 64, 28, 28), (LANES, 64, 112, 112))

# Of a recurrent layer whose weights a cache keeps.
LOOKUP_UNITS, LOOKUP_STEPS = 512, 20
LOOKUP_ROWS = (1, 2, 6)
LOOKUP_DENSITIES = (0.05, 0.1, 0.2, 0.5)

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
        seconds = least(lambda: _kernels.read_memory(self._pool, memory), 5 * self.seconds)
        return grid_of([(float(memory.nbytes), rounded(1e-9 * memory.nbytes / seconds))])

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

        least(run, self.seconds)
        return best

    def turn_seconds(self) -> tuple[float, float]:
        """What a region and a session of onnxruntime take besides their operators, where they take turns."""
        model = turns(COUNT)
        plan = lower(GraphView(Model.load(model)), self.threads, Setting(Rates(_ANY, _ANY), slack=math.inf))
        programs = [self._program(part) for part in plan.parts]
        parts, feeds = Parts(programs, [model.graph.output[0].name]), random_feeds(graph_inputs(model))
        best = [math.inf] * len(programs)

        def run() -> None:
            for number, part in enumerate(parts.run_timed(feeds)[1]):
                besides = part.seconds - sum(step.seconds for step in part.steps)
                best[number] = min(best[number], besides)

        least(run, self.seconds)
        own = [seconds for seconds, part in zip(best, plan.parts, strict=True) if isinstance(part, Region)]
        # The operator of a session is too small to be told from its call.
        other = [seconds for seconds, part in zip(best, plan.parts, strict=True) if not isinstance(part, Region)]
        return statistics.mean(own), statistics.mean(other)

    def lookups(self) -> Grid:
        """Rates of steps of a recurrent layer of one gate, for few sequences."""
        rng = np.random.default_rng(0)
        rates = []
        for rows in LOOKUP_ROWS:
            x = rng.standard_normal((LOOKUP_STEPS * rows, LOOKUP_UNITS, 1, 1), np.float32)
            out, found = np.empty_like(x), []
            for density in LOOKUP_DENSITIES:
                kept = rng.random((LOOKUP_UNITS, LOOKUP_UNITS)) < density
                weights = _kernels.SparseWeights.from_dense(LOOKUP_UNITS, LOOKUP_UNITS, kept / np.float32(LOOKUP_UNITS))
                op = _kernels.Recurrent(weights, cell="tanh", reversed=[False], batch=rows, isa=self.isa)
                seconds = least(partial(op.run, self._pool, x.shape, x, out), self.seconds)
                found.append(rounded(2e-9 * float(kept.sum()) * LOOKUP_STEPS * rows / seconds))
            rates.append(tuple(found))
        return Grid(tuple(map(float, LOOKUP_ROWS)), LOOKUP_DENSITIES, tuple(rates))

    def wall(self, model: onnx.ModelProto) -> float:
        """The least time of a run, in seconds."""
        program, feeds = self.region(model)
        return least(lambda: program.run(feeds), self.seconds)


def layer_grids(kernels: Kernels, step: float, is_wanted: Callable[[str], bool] = lambda kind: True) -> dict[str, Grid]:
    """Rates of layers with weights in the kernels."""

    def layer(kind: str, operator: str, shape: tuple[int, ...], density: float) -> float:
        anchor = LAYERS["product" if operator == "product" else "pointwise"]
        values = next((values for values in VALUES if kind.endswith(values)), "float32")
        times = kernels.steps(chain(LAYERS[operator], shape, COUNT, density, anchor), values)
        return sum(times[i] for i in range(1, COUNT + 1)) / COUNT

    found = grids(DENSITIES, layer, step, is_wanted)
    # Other instruction sets have no lookup in registers.
    if kernels.isa == "avx512" and is_wanted("lookup"):
        found["lookup"] = kernels.lookups()
    return found


def kernels_entry(kernels: Kernels) -> Entry:
    """All rates of the kernels."""
    few, many = (kernels.wall(chain(LAYERS["product"], TINY, count, 0.2)) for count in (FEW, MANY))
    step = max((many - few) / (MANY - FEW), 1e-7)
    layers = layer_grids(kernels, step)
    attention = []
    for tokens in TOKENS:
        times = kernels.steps(attention_model(tokens, True))
        attention.append((rate_of(attention_flops(tokens), sum(v for k, v in times.items() if k), step),))
    layers["attention"] = Grid(tuple(map(float, TOKENS)), (1.0,), tuple(attention))

    def operators(operator: Operator, shape: tuple[int, ...], anchor: Operator) -> float:
        # An addition may join the layer before it.
        times = kernels.steps(chain(operator, shape, COUNT, anchor=anchor))
        return statistics.mean(seconds for number, seconds in times.items() if number)

    rates = other_grids(operators, step)
    moved = [(4.0 * 2 * math.prod(shape), kernels.steps(chain(LAYERS["pointwise"], shape, 1, 0.1))[None])
             for shape in BORDERS]  # fmt: skip
    # What a change of layout costs per byte that crosses: it is read and written, in two layouts.
    rates["memory"] = kernels.memory
    rates["border"] = grid_of([(nbytes, rounded(1e-9 * nbytes / seconds)) for nbytes, seconds in moved])
    return Entry(
        kernels.isa,
        kernels.threads,
        rounded(kernels.peak_gflops),
        layers,
        rates,
        rounded(step),
        call_seconds=rounded(few - step),
        turn_seconds=rounded(max(kernels.turn_seconds()[0], few - step)),
        quantized=rounded(quantized_gain(kernels)),
    )


def quantized_gain(kernels: Kernels) -> float:
    """How many times as fast a layer of bytes is as one of floats whose weights are as dense as its quads."""
    floats = kernels.steps(chain(LAYERS["pointwise"], QUANTIZED, COUNT, QUANTIZED_DENSITY))
    of_bytes = kernels.steps(quantized_chain(QUANTIZED, COUNT, QUANTIZED_DENSITY))
    # The first and the last step of these change the type.
    inner = [seconds for number, seconds in of_bytes.items() if number is not None and 0 < number <= COUNT]
    return statistics.mean(seconds for number, seconds in floats.items() if number is not None) / statistics.mean(inner)
