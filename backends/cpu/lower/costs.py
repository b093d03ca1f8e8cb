"""How long a region takes in the kernels, and its nodes in onnxruntime, estimated from measured rates.

A layer with weights takes ``step_seconds + flops / rate``. The rate is that of its kind, its positions and its density:
kernels leave zeros out, onnxruntime multiplies them. Any other operator takes ``step_seconds + bytes / rate``, and so
does an activation in a layer that is more than a comparison. Weights of products that are more than a cache holds
take at least as long as memory takes to deliver them. A region costs the change of layout of what crosses its
border besides, where images or rows are in the lanes. Each region and each session of onnxruntime costs its call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.algorithms import multiplies_zeros
from sift_onnx.backends.cpu.lower.layouts import LANES, LANES_PAY
from sift_onnx.backends.cpu.lower.rates import Entry, Rates
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import (
    NO_ACTIVATION,
    Attention,
    BatchedMatmul,
    Conv,
    Depthwise,
    Elementwise,
    GlobalPool,
    LayerNormalization,
    LinearLayer,
    Matmul,
    Pool,
    QuantizedAverage,
    QuantizedConv,
    QuantizedMatmul,
    QuantizedMean,
    Recurrent,
    Reshaped,
    Sliced,
    Softmax,
    result_dims,
)
from sift_onnx.backends.lowering.weights import WeightMatrix

__all__ = [
    "BORDER",
    "CACHED_BYTES",
    "MEMORY",
    "SMALL_BYTES",
    "Estimate",
    "Work",
    "plan_estimate",
    "region_estimate",
    "step_work",
]

Shape = tuple[int, ...]

# What crosses a region's border, as a kind of bytes.
BORDER = "border"
# What is read that no cache holds, as a kind of bytes.
MEMORY = "memory"
_NORMALIZATION, _POOL, _ELEMENTWISE, _ACTIVATION = "normalization", "pool", "elementwise", "activation"
# Dense weights that stay in a core's cache from run to run: with few rows, a product of others waits for memory.
SMALL_BYTES = 1 << 19
# onnxruntime multiplies int8 weights of a file by operands that it quantizes to 8 bits: a quarter of the bytes.
_INT8_SHARE = 0.25
# Weights of a region's products that are more, as dense floats, come from memory in each run.
CACHED_BYTES = 8 << 20
# Weights that the second-level cache keeps from step to step, beside what else passes through it. Of twice as many, it
# keeps none: each step reads them from behind it. Between the two, time grows with the bytes (measured).
_KEPT_BYTES = 3 * _kernels.cache_bytes()[1] // 4
# Products of recurrent layers by a lookup in registers, and the columns that these hold.
_LOOKUP = "lookup"
_LOOKUP_COLUMNS = 31
# Of a step of a sequence there, besides its product.
_LOOKUP_SECONDS = 0.25e-6
# Of a step of a recurrent layer in the kernels, besides its product.
_STEP_SECONDS = 2.5e-6
_VALUE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
# Activations that cost next to nothing where a result is stored.
_COMPARISONS = ("none", "clip", "leaky")
# Functions that cost as much as an activation that is more.
_SLOW_FUNCTIONS = ("exponential", "softplus", "logarithm", "sine", "cosine", "power")


@dataclass(frozen=True)
class Estimate:
    """Seconds of the same work done in two ways.

    Attributes:
        kernels: in the kernels, with what the border costs.
        onnxruntime: in onnxruntime.
    """

    kernels: float
    onnxruntime: float

    def times(self, factor: float) -> Estimate:
        """On a machine that takes ``factor`` times as long."""
        return Estimate(factor * self.kernels, factor * self.onnxruntime)

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(self.kernels + other.kernels, self.onnxruntime + other.onnxruntime)


@dataclass(frozen=True)
class Work:
    """What a step does.

    Attributes:
        kind: of the rate that it has.
        positions: pixels of an image, rows of a matrix, or tokens of a sequence.
        density: share of the weights that kernels multiply.
        flops: on all weights; for kinds whose rate is of flops.
        nbytes: that are read and written, without weights.
        activated: bytes of results that get an activation which is more than a comparison.
        usual: kind of a side that has no rates for ``kind``, as onnxruntime for values of fewer bits.
        elsewhere: share of the dense product's time that onnxruntime takes.
        weights: bytes of a product's weights in the kernels, and in onnxruntime.
        steps: of all directions of a recurrent layer, one after the other.
        kept: share of a recurrent layer's weights that a cache keeps from step to step; others are as those of a large
            product.
        is_quantized: whether it multiplies bytes; the rates are those of floats, and ``Entry.quantized`` times as high.
    """

    kind: str
    positions: float
    density: float
    flops: float
    nbytes: float
    activated: float = 0.0
    usual: str = ""
    elsewhere: float = 1.0
    weights: tuple[float, float] = (0.0, 0.0)
    is_quantized: bool = False
    steps: int = 0
    kept: float = 1.0

    def seconds(self, side: Entry, density: float) -> float:
        """On one side, which multiplies ``density`` of the weights."""
        seconds = side.step_seconds
        kind = self.kind if self.kind in side.flops or not self.usual else self.usual
        if kind in side.flops:
            rate = side.flops[kind].at(self.positions, density) * (side.quantized if self.is_quantized else 1)
            if self.kept < 1 and kind != _LOOKUP:
                rate = 1 / (self.kept / rate + (1 - self.kept) / side.flops["product"].at(self.positions, density))
            seconds += 1e-9 * density * self.flops / rate
        else:
            seconds += 1e-9 * self.nbytes / side.bytes[self.kind].at(self.nbytes)
        if self.activated:
            seconds += 1e-9 * self.activated / side.bytes[_ACTIVATION].at(self.activated)
        return seconds


def step_work(step: Step, operand: Shape, result: Shape, second: Shape | None = None) -> Work | None:
    """What a step does for operands and a result of these sizes; None for what is not executed."""
    spec = step.spec
    if isinstance(spec, Reshaped) or (step.is_extra and isinstance(spec, Sliced)):
        return None
    read = step.dtype.itemsize * len(step.inputs) * math.prod(operand)
    nbytes = float(read + step.result_dtype.itemsize * math.prod(result))
    if isinstance(spec, Attention):
        tokens = operand[-2] if second is None else second[-1]  # with a key each
        flops = 2.0 * math.prod(operand[:-1]) * tokens * (spec.depth + spec.value_depth)
        return Work("attention", tokens, 1.0, flops, nbytes)
    if isinstance(spec, BatchedMatmul):
        # As that of queries and keys.
        return Work("attention", result[-1], 1.0, 2.0 * math.prod(result) * operand[-1], nbytes)
    if isinstance(spec, Recurrent):
        # Each step is a product of as many rows as there are sequences, and each gate has an activation.
        direction = step.dtype.itemsize * spec.weights.size / len(spec.reversed)
        density = 1.0 if multiplies_zeros(spec.weights) else spec.weights.density
        flops = 2.0 * spec.weights.size * math.prod(operand[:-1])
        gates = float(step.dtype.itemsize * math.prod(operand))
        kind = _LOOKUP if _looks_up(spec, operand[1]) else "small product"
        return Work(kind, operand[1], density, flops, nbytes, 2.0 * gates, usual="small product",
                    steps=operand[0] * len(spec.reversed),
                    kept=min(max(2 - direction / _KEPT_BYTES, 0.0), 1.0))  # fmt: skip
    if isinstance(spec, QuantizedMatmul):
        return _integer_work(spec, operand, result, nbytes)
    if isinstance(spec, LinearLayer):
        weights = spec.weights
        density = 1.0 if multiplies_zeros(weights) else weights.density
        outputs = math.prod(result)
        if isinstance(spec, Conv) and spec.pool is not None:
            outputs = math.prod(_sizes(spec.geometry.positions(operand))) * operand[0] * weights.rows
        flops = 2.0 * weights.columns * outputs
        # Read and written, as by an operator of its own.
        activated = 0.0 if spec.activation[0] in _COMPARISONS else 2.0 * step.dtype.itemsize * outputs
        if isinstance(spec, Matmul):
            usual = "product" if step.dtype.itemsize * weights.size > SMALL_BYTES else "small product"
            kind = usual if weights.values == "float32" else f"product {weights.values}"
            return Work(kind, outputs / max(weights.rows, 1), density, flops, nbytes, activated, usual,
                        _INT8_SHARE if weights.is_stored and weights.values == "int8" else 1.0,
                        _weight_bytes(weights))  # fmt: skip
        images = operand[0]
        kind = _window_kind(spec)
        return Work(kind if images < LANES_PAY else f"{kind} in lanes", outputs / max(images * weights.rows, 1),
                    density, flops, nbytes, activated, elsewhere=weights.filled)  # fmt: skip
    if isinstance(spec, (Pool, GlobalPool, QuantizedAverage, QuantizedMean)):
        kind = _POOL
    elif isinstance(spec, LayerNormalization):
        kind = _NORMALIZATION
    elif isinstance(spec, Softmax):
        kind = _ACTIVATION
    else:
        is_plain = getattr(spec, "activation", NO_ACTIVATION)[0] in _COMPARISONS
        is_function = isinstance(spec, Elementwise) and spec.kind in _SLOW_FUNCTIONS
        kind = _ELEMENTWISE if is_plain and not is_function else _ACTIVATION
    return Work(kind, 0.0, 1.0, 0.0, nbytes)


def _looks_up(spec: Recurrent, sequences: int) -> bool:
    """Whether the kernels look states up, where their instruction set can (``products/recurrent.cpp``)."""
    density, rows = spec.weights.density, spec.weights.rows / len(spec.reversed)
    # Of sixteen rows, the one with the most entries in 31 columns decides, in whole groups of four.
    most = _LOOKUP_COLUMNS * density + 1.77 * math.sqrt(_LOOKUP_COLUMNS * density * (1 - density))
    groups = math.ceil(rows / LANES) * math.ceil(spec.weights.columns / _LOOKUP_COLUMNS) * (most / 4 + 0.5)
    few = sequences < (16 if density > 0.25 else 12)
    return few and density <= 0.55 and spec.weights.columns >= _LOOKUP_COLUMNS and groups * 322 <= _KEPT_BYTES / 3 * 5


def _integer_work(spec: QuantizedMatmul, operand: Shape, result: Shape, nbytes: float) -> Work:
    """Kernels skip quads, whose weights are all zero."""
    weights = spec.weights
    flops = 2.0 * weights.channels * weights.taps * math.prod(result)
    images = operand[0] if isinstance(spec, QuantizedConv) else 1
    if isinstance(spec, QuantizedConv):
        kind = _window_kind(spec)
        # Positions of all images share the lanes.
        kind = kind if images < LANES_PAY else f"{kind} in lanes"
    else:
        kind = "product" if weights.size > SMALL_BYTES else "small product"
    positions = math.prod(result) / max(images * weights.rows, 1)
    return Work(kind, positions, weights.quad_density, flops, nbytes, is_quantized=True)


def _weight_bytes(weights: WeightMatrix) -> tuple[float, float]:
    """Of a product, in the kernels for few rows, and in onnxruntime."""
    value = _VALUE_BYTES[weights.values]
    plain = 4.0 * weights.size
    dense = plain * (_INT8_SHARE if weights.is_stored and weights.values == "int8" else 1.0)
    return weights.size * min(value, 1 / 8 + value * weights.density), dense


def _window_kind(spec: Conv | Depthwise | QuantizedConv) -> str:
    if isinstance(spec, Depthwise) or (isinstance(spec, QuantizedConv) and spec.is_depthwise):
        return "depthwise"
    return "pointwise" if spec.geometry.kernel == (1, 1) else "window"


def region_estimate(
    steps: Sequence[Step],
    inputs: Mapping[str, Shape],
    outputs: Sequence[str],
    rates: Rates,
    cached: int = CACHED_BYTES,
    known: Mapping[str, Shape] | None = None,
) -> Estimate:
    """Seconds of a region's steps, and of its border.

    Args:
        steps: fused, in order.
        inputs: sizes of the values from outside that the steps take as operands.
        outputs: names of the results that are read outside.
        rates: of the machine.
        cached: bytes of dense weights up to which they do not come from memory in each run.
        known: sizes of results, by name, where they need not be found.
    """
    shapes = {**inputs, **(known or {})}
    # Layers that follow each other do the same work.
    found: dict[Work, tuple[float, float]] = {}
    kernels = onnxruntime = 0.0
    products = [step.spec.weights.size for step in steps if isinstance(step.spec, Matmul)]
    from_memory = 4 * sum(products) > cached
    crossing = {name: step.dtype.itemsize for step in steps for name in step.inputs if name in inputs}
    for step in steps:
        operand = shapes[step.inputs[0]]
        # Constants are not among the inputs: they have the result's sizes, or less.
        others = [shapes[name] for name in step.inputs[1:2] if name in shapes]
        if step.output not in shapes:
            shapes[step.output] = _sizes(result_dims(step.spec, operand, *others))
        work = step_work(step, operand, shapes[step.output], *others)
        if work is not None:
            if work not in found:
                found[work] = _seconds(work, rates, from_memory)
            own, other = found[work]
            kernels += own
            onnxruntime += 0.0 if step.is_extra else other
        if step.output in outputs:
            crossing[step.output] = step.result_dtype.itemsize
    if any(_are_in_lanes(step, shapes) for step in steps):
        nbytes = sum(size * math.prod(shapes[name]) for name, size in crossing.items())
        kernels += 1e-9 * nbytes / rates.kernels.bytes[BORDER].at(nbytes)
    return Estimate(kernels, onnxruntime)


def _seconds(work: Work, rates: Rates, from_memory: bool) -> tuple[float, float]:
    """In the kernels and in onnxruntime; ``from_memory``: whether no cache holds the weights of the products."""
    is_lookup = work.kind == _LOOKUP and _LOOKUP in rates.kernels.flops
    own = work.seconds(rates.kernels, work.density)
    own += work.steps * (_LOOKUP_SECONDS * work.positions if is_lookup else _STEP_SECONDS)
    other = work.seconds(rates.onnxruntime, 1.0) * work.elsewhere
    if from_memory and any(work.weights):
        # Both wait for the same memory.
        read = 1e9 * rates.kernels.bytes[MEMORY].at(sum(work.weights))
        own, other = max(own, work.weights[0] / read), max(other, work.weights[1] / read)
    return own, other


def plan_estimate(steps: Estimate, regions: int, sessions: int, rates: Rates) -> Estimate:
    """Of a plan against one session of onnxruntime, without the nodes that run there either way.

    Args:
        steps: of all of its regions.
        regions: how many there are.
        sessions: how many sessions of onnxruntime are between them.
        rates: of the machine.
    """
    own, other = rates.kernels, rates.onnxruntime
    parts = regions * own.turn_seconds + sessions * other.turn_seconds if sessions else regions * own.call_seconds
    return steps + Estimate(parts, other.call_seconds)


def _are_in_lanes(step: Step, shapes: Mapping[str, Shape]) -> bool:
    sizes = shapes[step.inputs[0]]
    return (math.prod(sizes[:-1]) if step.view == "rows" else sizes[0]) >= LANES_PAY


def _sizes(dims: Sequence[object]) -> Shape:
    """Sizes of a result: numbers, where those of the operands are; 1 where a quotient is not whole."""
    return tuple(size if isinstance(size, int) else 1 for size in dims)
