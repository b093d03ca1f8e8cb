"""Rules for sums, pools and moves of dequantized values, which are computed on the bytes."""

from __future__ import annotations

from dataclasses import replace

from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.names import made_name
from sift_onnx.backends.lowering.quantization import Quantization
from sift_onnx.backends.lowering.quantized_fusion.between import between, clamp_of, on_bytes
from sift_onnx.backends.lowering.region_steps import Merged, RegionSteps
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import (
    ByteTable,
    Dequantize,
    Elementwise,
    GlobalPool,
    Moving,
    PixelCopy,
    Pool,
    Quantize,
    QuantizedAdd,
    QuantizedAverage,
    QuantizedConv,
    QuantizedMean,
    Reshaped,
    Spec,
    Transposed,
)

__all__ = ["add_bytes", "move_bytes", "move_floats_before", "move_floats_behind", "pad_bytes", "read_through"]


def add_bytes(region: RegionSteps, step: Step) -> Merged:
    """Rule 3."""
    found = between(region, step)
    if found is None:
        return None
    before, operands, y = found
    spec = before.spec
    if not isinstance(spec, Elementwise) or spec.kind != "add" or spec.broadcasts or spec.repeats:
        return None
    clamp = clamp_of(spec.activation, y)
    if clamp is None or len(operands) != 2:
        return None
    (first, a), (second, b) = operands
    return on_bytes(before, step, QuantizedAdd(a, b, y, clamp), (first, second))


def move_bytes(region: RegionSteps, step: Step) -> Merged:
    """Rule 4."""
    found = between(region, step)
    if found is None:
        return None
    before, operands, y = found
    spec: Spec = before.spec
    if isinstance(spec, GlobalPool):
        ((name, x),) = operands
        is_image = before.view == "image" and spec.axes == (2, 3) and not spec.sums
        return on_bytes(before, step, QuantizedMean(x, y, spec.keep_axes), (name,)) if is_image else None
    if isinstance(spec, Pool) and spec.kind == "average":
        ((name, x),) = operands
        return on_bytes(before, step, QuantizedAverage(spec, x, y), (name,))
    if isinstance(spec, PixelCopy):
        if spec.follows or spec.fill != 0:
            return None
        spec = replace(spec, fill=float(y.zero))
    elif not isinstance(spec, Moving) and not (isinstance(spec, Pool) and spec.kind == "max"):
        return None
    names = [_of_scale(region, before, name, x, y) for name, x in operands]
    return on_bytes(before, step, spec, names)


def _of_scale(region: RegionSteps, reader: Step, name: str, x: Quantization, y: Quantization) -> str:
    """Bytes of the scale ``y`` that stand for the same as those of ``x``, made before the reader."""
    table = ByteTable(y.bytes_of(x.values()))
    if table.is_identity:
        return name
    made = made_name(reader.output, name)
    if region.producer(made) is None:
        step = Step(table, (name,), made, reader.view, reader.view, reader.nodes, dtype=DType.UINT8,
                    result_dtype=DType.UINT8)  # fmt: skip
        region.insert_before(reader, step)
    return made


def read_through(region: RegionSteps, step: Step) -> Merged:
    """Rule 6, of the readers."""
    names = tuple(_source(region, name) for name in step.inputs)
    return (replace(step, inputs=names), []) if names != step.inputs else None


def _source(region: RegionSteps, name: str) -> str:
    """Where bytes come from that steps only hand on."""
    step = region.producer(name)
    while step is not None and step.dtype.is_bytes and step.spec == Reshaped() and step.view == step.result_view:
        name = step.inputs[0]
        step = region.producer(name)
    return name


def pad_bytes(region: RegionSteps, step: Step) -> Merged:
    """Rule 12."""
    if not isinstance(step.spec, QuantizedConv):
        return None
    before = region.sole_producer(step.inputs[0], step)
    if before is None or not isinstance(before.spec, PixelCopy) or before.spec.fill != step.spec.x_zero:
        return None
    pads = before.spec.pads
    if pads is None or not before.dtype.is_bytes:
        return None
    spec = replace(step.spec, geometry=step.spec.geometry.padded(pads))
    nodes = (*step.nodes, *before.nodes)
    return replace(step, spec=spec, inputs=(before.inputs[0], *step.inputs[1:]), nodes=nodes), [before]


def move_floats_behind(region: RegionSteps, step: Step) -> Merged:
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
    name = made_name(chain[-1].inputs[0], f"floats of {step.output}")
    first = replace(step, inputs=chain[-1].inputs, output=name, view=reader.view, result_view=reader.view)
    region.insert_before(reader, first)
    for number, move in enumerate(chain[:0:-1]):
        made = made_name(step.output, f"moved {number}")
        region.insert_before(move, _of_floats(move, name, made))
        name = made
    return replace(_of_floats(chain[0], name, step.output), result_view=step.result_view), chain


def move_floats_before(region: RegionSteps, step: Step) -> Merged:
    """Rule 11, of bytes that have been quantized."""
    if not _is_move(step):
        return None
    before = region.sole_producer(step.inputs[0], step)
    if before is None or not isinstance(before.spec, Quantize):
        return None
    made = made_name(step.output, "floats")
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
