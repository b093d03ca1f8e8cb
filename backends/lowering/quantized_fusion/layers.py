"""Rules for layers of integers: what joins them, so that they store bytes or sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.names import made_name
from sift_onnx.backends.lowering.quantized_fusion.between import between, clamp_of, on_bytes
from sift_onnx.backends.lowering.region_steps import Merged, RegionSteps, merged
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import (
    ALL_BYTES,
    NO_ACTIVATION,
    ByteShift,
    ChannelScale,
    DynamicQuantize,
    Elementwise,
    Pool,
    Quantize,
    QuantizedAdd,
    QuantizedMatmul,
)

__all__ = ["add_floats", "add_to_layer", "pool_bytes", "requantize", "shift_bytes", "with_dynamic_bytes"]

_INT32 = np.iinfo(np.int32)


def requantize(region: RegionSteps, step: Step) -> Merged:
    """Rule 1."""
    if not isinstance(step.spec, Quantize):
        return None
    before = region.sole_producer(step.inputs[0], step)
    if before is None or not isinstance(before.spec, QuantizedMatmul) or len(before.inputs) != 1:
        return None
    made = _quantized(before.spec, step.spec)
    return None if made is None else merged(before, step, made)


def _quantized(layer: QuantizedMatmul, after: Quantize) -> QuantizedMatmul | None:
    """The layer that makes bytes of its floats, if it can."""
    clamp = clamp_of(layer.activation, after.y)
    if clamp is None or layer.x_zero is None or layer.y is not None:
        return None
    bias = layer.bias
    if layer.shift is not None:
        if layer.is_divided:
            return None  # its floats have been rounded before the shift is added
        with np.errstate(divide="ignore", invalid="ignore"):  # a normalization may have factors of zero
            sums = np.rint(layer.shift.astype(np.float64) / layer.scale)
        sums += 0 if bias is None else bias
        if not (np.isfinite(sums).all() and sums.min() >= _INT32.min and sums.max() <= _INT32.max):
            return None
        bias = sums.astype(np.int32)
    return replace(layer, bias=bias, shift=None, activation=NO_ACTIVATION, y=after.y, clamp=clamp)


def add_to_layer(region: RegionSteps, step: Step) -> Merged:
    """Rule 7."""
    spec = step.spec
    if not isinstance(spec, QuantizedAdd):
        return None
    first, second = step.inputs
    found: list[tuple[int, Step, str, QuantizedAdd]] = []
    for own, other, addition in ((first, second, spec), (second, first, replace(spec, a=spec.b, b=spec.a))):
        before = region.sole_producer(own, step)
        if before is None or not isinstance(before.spec, QuantizedMatmul) or own == other:
            continue
        if before.spec.y is not None and before.spec.clamp == ALL_BYTES and len(before.inputs) == 1:
            found.append((region.place(before), before, other, addition))
    if not found:
        return None
    # The later of the two: the other one's result is there by then.
    _, before, other, addition = max(found, key=lambda item: item[0])
    assert isinstance(before.spec, QuantizedMatmul)
    made, gone = merged(before, step, replace(before.spec, added=addition))
    return replace(made, inputs=(before.inputs[0], other)), gone


def pool_bytes(region: RegionSteps, step: Step) -> Merged:
    """Rule 8: quantized before the maximum is taken."""
    if not isinstance(step.spec, Quantize):
        return None
    before = region.sole_producer(step.inputs[0], step)
    if before is None or not isinstance(before.spec, Pool) or before.spec.kind != "max" or before.dtype.is_bytes:
        return None
    layer = region.sole_producer(before.inputs[0], before)
    # Of a layer that keeps floats, whose maxima are fewer to quantize.
    if layer is None or not isinstance(layer.spec, QuantizedMatmul) or _quantized(layer.spec, step.spec) is None:
        return None
    made = made_name(before.output, "bytes")
    first = replace(step, inputs=before.inputs, output=made, view=before.view, result_view=before.view)
    region.insert_before(before, first)
    return on_bytes(before, step, before.spec, (made,))


def add_floats(region: RegionSteps, step: Step) -> Merged:
    """Rule 9."""
    spec = step.spec
    if not isinstance(spec, Elementwise) or spec.kind != "add" or spec.broadcasts or spec.repeats:
        return None
    if spec.activation[0] not in ("none", "clip"):
        return None
    found: list[tuple[int, Step, str]] = []
    for own, other in (step.inputs, step.inputs[::-1]):
        before = region.sole_producer(own, step)
        if before is None or not isinstance(before.spec, QuantizedMatmul) or own == other:
            continue
        plain = before.spec.y is None and before.spec.activation == NO_ACTIVATION and len(before.inputs) == 1
        # What comes from outside of the region is read as the layer's operand is, as bytes.
        if plain and region.producer(other) is not None:
            found.append((region.place(before), before, other))
    if not found:
        return None
    _, before, other = max(found, key=lambda item: item[0])
    assert isinstance(before.spec, QuantizedMatmul)
    made, gone = merged(before, step, replace(before.spec, is_added=True, activation=spec.activation))
    return replace(made, inputs=(before.inputs[0], other)), gone


def shift_bytes(region: RegionSteps, step: Step) -> Merged:
    """Rule 10."""
    found = between(region, step)
    if found is None:
        return None
    before, _, y = found
    spec = before.spec
    if not isinstance(spec, ChannelScale) or spec.slopes is not None or np.any(spec.scale != 1):
        return None
    reader = region.sole_producer(before.inputs[0], before)
    layer = None if reader is None else region.sole_producer(reader.inputs[0], reader)
    clamp = clamp_of(spec.activation, y)
    if reader is None or layer is None or clamp is None or not isinstance(layer.spec, QuantizedMatmul):
        return None
    own = layer.spec
    if own.y is None or own.clamp != ALL_BYTES or own.added is not None or own.shifted is not None:
        return None
    shifted = ByteShift(own.y, spec.shift, y, clamp)
    if not np.isfinite(shifted.rests).all() or len(spec.shift) != own.weights.rows:
        return None
    made, gone = merged(layer, step, replace(own, shifted=shifted))
    return replace(made, nodes=(*made.nodes, *before.nodes, *reader.nodes)), [*gone, before, reader]


def with_dynamic_bytes(steps: Sequence[Step]) -> list[Step]:
    """The steps, and before layers of integers that read floats one that makes bytes of these, once for all readers."""
    made: dict[tuple[str, str], str] = {}
    result: list[Step] = []
    for step in steps:
        if isinstance(step.spec, QuantizedMatmul) and step.spec.x_zero is None and not step.dtype.is_bytes:
            name, *others = step.inputs
            key = (name, step.view)
            if key not in made:
                made[key] = made_name(name, f"bytes of {step.view}")
                result.append(Step(DynamicQuantize(), (name,), made[key], step.view, step.view, step.nodes,
                                   result_dtype=DType.UINT8))  # fmt: skip
            step = replace(step, inputs=(made[key], *others), dtype=DType.UINT8)
        result.append(step)
    return result
