"""Fusion where values are quantized: what reads dequantized bytes and is quantized again computes on the bytes.

Eleven rules, applied after those of ``fusion``. "Sole" is meant as there. A value is "dequantized" if a Dequantize
makes it; that step goes once nothing reads its floats.

1. A layer of integers whose sole result is quantized makes bytes; a clip before that is a range of bytes.
2. An activation, or one factor and one shift for all channels, of a dequantized value whose sole result is quantized
   is a table. So is quantizing a dequantized value, and a sum or a product of functions of one value.
3. A sum of two dequantized values whose sole result is quantized is one of bytes.
4. So are the maximum of a window, the mean of an image, and what moves values; where the scales differ, a table makes
   bytes of the result's scale of an operand's.
5. A table after a table is one table; one that only cuts off at both ends joins a layer or sum of bytes before it.
6. A table that changes nothing is none.
7. A sum of bytes joins the layer that makes one of its operands, if that is sole and not clamped.
8. The maximum of a window after a layer of integers, of a sole result that is quantized, is that of bytes. Quantizing
   keeps the order, so that it may come before: each float makes the byte that it would make behind.
9. A sum of floats that is left joins a layer of integers that makes one of its operands, if that is sole.
10. A number for each channel that is added to the sole bytes of a layer, before they get another scale, joins it.
11. Bytes that are reshaped or transposed right before they are dequantized, or right after they were quantized, are
    moved as floats: those are views, and cost at most one copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from sift_onnx.backends.lowering.byte_functions import function_values
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.quantization import Quantization
from sift_onnx.backends.lowering.region_steps import Merged, RegionSteps, merged
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import (
    ALL_BYTES,
    NO_ACTIVATION,
    Activation,
    ByteShift,
    ByteTable,
    ChannelScale,
    Dequantize,
    DynamicQuantize,
    Elementwise,
    GlobalPool,
    Moving,
    Pair,
    PixelCopy,
    Pool,
    Quantize,
    QuantizedAdd,
    QuantizedAverage,
    QuantizedMatmul,
    QuantizedMean,
    Reshaped,
    Spec,
    Transposed,
)
from sift_onnx.backends.lowering.weights import Floats

__all__ = ["QUANTIZED_RULES", "with_dynamic_bytes"]

_INT32 = np.iinfo(np.int32)
_OPERATIONS: dict[str, Callable[[Floats, Floats], Floats]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
}


def _requantize(region: RegionSteps, step: Step) -> Merged:
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
    clamp = _clamp(layer.activation, after.y)
    if clamp is None or layer.x_zero is None or layer.y is not None:
        return None
    bias = layer.bias
    if layer.shift is not None:
        if layer.is_divided:
            return None  # its floats have been rounded before the shift is added
        sums = np.rint(layer.shift.astype(np.float64) / layer.scale)
        sums += 0 if bias is None else bias
        if not (np.isfinite(sums).all() and sums.min() >= _INT32.min and sums.max() <= _INT32.max):
            return None
        bias = sums.astype(np.int32)
    return replace(layer, bias=bias, shift=None, activation=NO_ACTIVATION, y=after.y, clamp=clamp)


def _tabulate(region: RegionSteps, step: Step) -> Merged:
    """Rule 2."""
    if not isinstance(step.spec, Quantize):
        return None
    found = _values_of_byte(region, step.inputs[0])
    before = region.sole_producer(step.inputs[0], step)
    if found is None or (before is None and not isinstance(_maker(region, step.inputs[0]), Dequantize)):
        return None
    operand, values = found
    if not np.isfinite(values).all():
        return None
    gone = [before] if before is not None and not isinstance(before.spec, Dequantize) else []
    nodes = (*step.nodes, *(index for other in gone for index in other.nodes))
    table = ByteTable(step.spec.y.bytes_of(values))
    return replace(step, spec=table, inputs=(operand,), nodes=nodes, dtype=DType.UINT8), gone


def _maker(region: RegionSteps, name: str) -> Spec | None:
    step = region.producer(name)
    return None if step is None else step.spec


def _values_of_byte(region: RegionSteps, name: str) -> tuple[str, Floats] | None:
    """The bytes that a value is a function of, element by element, and its 256 values."""
    step = region.producer(name)
    if step is None:
        return None
    spec = step.spec
    if isinstance(spec, Dequantize):
        return _through_tables(region, step.inputs[0], spec.x.values())
    if isinstance(spec, ChannelScale):
        found = _values_of_byte(region, step.inputs[0])
        if found is None or spec.slopes is not None or np.ptp(spec.scale) or np.ptp(spec.shift):
            return None
        return found[0], function_values(spec.activation, found[1] * spec.scale[0] + spec.shift[0])
    if not isinstance(spec, Elementwise) or spec.broadcasts or spec.repeats:
        return None
    operands = [_values_of_byte(region, operand) for operand in step.inputs]
    first = operands[0]
    if first is None:
        return None
    values = first[1]
    if spec.kind != "first":
        second = operands[1]
        if second is None or second[0] != first[0]:
            return None
        values = _OPERATIONS[spec.kind](values, second[1])
    return first[0], function_values(spec.activation, values)


def _through_tables(region: RegionSteps, name: str, values: Floats) -> tuple[str, Floats]:
    """Bytes before tables that made ``name``, for whose bytes these are the values."""
    step = region.producer(name)
    while step is not None and isinstance(step.spec, ByteTable):
        name, values = step.inputs[0], values[step.spec.values]
        step = region.producer(name)
    return name, values


def _add_bytes(region: RegionSteps, step: Step) -> Merged:
    """Rule 3."""
    found = _between(region, step)
    if found is None:
        return None
    before, operands, y = found
    spec = before.spec
    if not isinstance(spec, Elementwise) or spec.kind != "add" or spec.broadcasts or spec.repeats:
        return None
    clamp = _clamp(spec.activation, y)
    if clamp is None or len(operands) != 2:
        return None
    (first, a), (second, b) = operands
    return _on_bytes(before, step, QuantizedAdd(a, b, y, clamp), (first, second))


def _move_bytes(region: RegionSteps, step: Step) -> Merged:
    """Rule 4."""
    found = _between(region, step)
    if found is None:
        return None
    before, operands, y = found
    spec: Spec = before.spec
    if isinstance(spec, GlobalPool):
        ((name, x),) = operands
        is_image = before.view == "image" and spec.axes == (2, 3)
        return _on_bytes(before, step, QuantizedMean(x, y, spec.keep_axes), (name,)) if is_image else None
    if isinstance(spec, Pool) and spec.kind == "average":
        ((name, x),) = operands
        return _on_bytes(before, step, QuantizedAverage(spec, x, y), (name,))
    if isinstance(spec, PixelCopy):
        if spec.follows or spec.fill != 0:
            return None
        spec = replace(spec, fill=float(y.zero))
    elif not isinstance(spec, Moving) and not (isinstance(spec, Pool) and spec.kind == "max"):
        return None
    names = [_of_scale(region, before, name, x, y) for name, x in operands]
    return _on_bytes(before, step, spec, names)


def _of_scale(region: RegionSteps, reader: Step, name: str, x: Quantization, y: Quantization) -> str:
    """Bytes of the scale ``y`` that stand for the same as those of ``x``, made before the reader."""
    table = ByteTable(y.bytes_of(x.values()))
    if table.is_identity:
        return name
    made = f"{reader.output}/{name}"
    if region.producer(made) is None:
        step = Step(table, (name,), made, reader.view, reader.view, reader.nodes, dtype=DType.UINT8,
                    result_dtype=DType.UINT8)  # fmt: skip
        region.insert_before(reader, step)
    return made


def _between(region: RegionSteps, step: Step) -> tuple[Step, list[tuple[str, Quantization]], Quantization] | None:
    """Of a step that quantizes a sole result: the step that makes it, its operands' bytes, and the scale it gets."""
    if not isinstance(step.spec, Quantize):
        return None
    before = region.sole_producer(step.inputs[0], step)
    if before is None or before.dtype.is_bytes or before.mask:
        return None
    operands = []
    for name in before.inputs:
        maker = region.producer(name)
        if maker is None or not isinstance(maker.spec, Dequantize):
            return None
        operands.append((maker.inputs[0], maker.spec.x))
    return before, operands, step.spec.y


def _on_bytes(before: Step, step: Step, spec: Spec, names: Sequence[str]) -> tuple[Step, list[Step]]:
    made, gone = merged(before, step, spec)
    return replace(made, inputs=tuple(names), dtype=DType.UINT8, result_dtype=DType.UINT8), gone


def _clamp(activation: Activation, y: Quantization) -> Pair | None:
    """The range of bytes that an activation leaves; None for one that does more than cut off."""
    kind, low, high = activation
    if kind == "none":
        return ALL_BYTES
    return (y.byte(low), y.byte(high)) if kind == "clip" and low <= high else None


def _join_tables(region: RegionSteps, step: Step) -> Merged:
    """Rule 5."""
    if not isinstance(step.spec, ByteTable):
        return None
    before = region.sole_producer(step.inputs[0], step)
    if before is None:
        return None
    if isinstance(before.spec, ByteTable):
        return merged(before, step, before.spec.then(step.spec))
    if not isinstance(before.spec, (QuantizedMatmul, QuantizedAdd)) or before.spec.y is None:
        return None
    table = step.spec.values
    low, high = before.spec.clamp
    ends = (int(table[low]), int(table[high]))
    own = np.arange(low, high + 1)
    if low > high or not np.array_equal(table[own], np.clip(own, *ends)):
        return None
    return merged(before, step, replace(before.spec, clamp=ends))


def _drop_identity(region: RegionSteps, step: Step) -> Merged:
    """Rule 6."""
    is_identity = isinstance(step.spec, ByteTable) and step.spec.is_identity
    return (replace(step, spec=Reshaped()), []) if is_identity else None


def _add_to_layer(region: RegionSteps, step: Step) -> Merged:
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


def _pool_bytes(region: RegionSteps, step: Step) -> Merged:
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
    made = f"{before.output}/bytes"
    first = replace(step, inputs=before.inputs, output=made, view=before.view, result_view=before.view)
    region.insert_before(before, first)
    return _on_bytes(before, step, before.spec, (made,))


def _add_floats(region: RegionSteps, step: Step) -> Merged:
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


def _shift_bytes(region: RegionSteps, step: Step) -> Merged:
    """Rule 10."""
    found = _between(region, step)
    if found is None:
        return None
    before, _, y = found
    spec = before.spec
    if not isinstance(spec, ChannelScale) or spec.slopes is not None or np.any(spec.scale != 1):
        return None
    reader = region.sole_producer(before.inputs[0], before)
    layer = None if reader is None else region.sole_producer(reader.inputs[0], reader)
    clamp = _clamp(spec.activation, y)
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


def _move_floats_behind(region: RegionSteps, step: Step) -> Merged:
    """Rule 11, of bytes that are dequantized."""
    if not isinstance(step.spec, Dequantize):
        return None
    chain: list[Step] = []
    reader = step
    while (before := _sole_move(region, reader)) is not None:
        chain.append(before)
        reader = before
    if not chain:
        return None
    name = f"{chain[-1].inputs[0]}/floats of {step.output}"
    first = replace(step, inputs=chain[-1].inputs, output=name, view=reader.view, result_view=reader.view)
    region.insert_before(reader, first)
    for number, move in enumerate(chain[:0:-1]):
        made = f"{step.output}/moved {number}"
        region.insert_before(move, _of_floats(move, name, made))
        name = made
    return replace(_of_floats(chain[0], name, step.output), result_view=step.result_view), chain


def _move_floats_before(region: RegionSteps, step: Step) -> Merged:
    """Rule 11, of bytes that have been quantized."""
    if not _is_move(step):
        return None
    before = region.sole_producer(step.inputs[0], step)
    if before is None or not isinstance(before.spec, Quantize):
        return None
    made = f"{step.output}/floats"
    region.insert_before(step, _of_floats(step, before.inputs[0], made))
    return replace(before, inputs=(made,), output=step.output, view=step.result_view, result_view=step.result_view), [
        before
    ]


def _is_move(step: Step) -> bool:
    return step.dtype.is_bytes and isinstance(step.spec, (Reshaped, Transposed))


def _sole_move(region: RegionSteps, reader: Step) -> Step | None:
    """The step that only moved the bytes that ``reader`` reads, if they are sole."""
    before = region.sole_producer(reader.inputs[0], reader)
    return before if before is not None and _is_move(before) else None


def _of_floats(move: Step, operand: str, result: str) -> Step:
    return replace(move, inputs=(operand,), output=result, dtype=DType.FLOAT32, result_dtype=DType.FLOAT32)


QUANTIZED_RULES = (
    _pool_bytes,
    _requantize,
    _tabulate,
    _add_bytes,
    _move_bytes,
    _join_tables,
    _drop_identity,
    _add_to_layer,
    _shift_bytes,
    _add_floats,
    _move_floats_behind,
    _move_floats_before,
)


def with_dynamic_bytes(steps: Sequence[Step]) -> list[Step]:
    """The steps, and before layers of integers that read floats one that makes bytes of these, once for all readers."""
    made: dict[tuple[str, str], str] = {}
    result: list[Step] = []
    for step in steps:
        if isinstance(step.spec, QuantizedMatmul) and step.spec.x_zero is None and not step.dtype.is_bytes:
            name, *others = step.inputs
            key = (name, step.view)
            if key not in made:
                made[key] = f"{name}/bytes of {step.view}"
                result.append(Step(DynamicQuantize(), (name,), made[key], step.view, step.view, step.nodes,
                                   result_dtype=DType.UINT8))  # fmt: skip
            step = replace(step, inputs=(made[key], *others), dtype=DType.UINT8)
        result.append(step)
    return result
