"""What a step that quantizes finds before it, and the step on bytes that replaces both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.quantization import Quantization
from sift_onnx.backends.lowering.region_steps import RegionSteps, merged
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import ALL_BYTES, Activation, Dequantize, Pair, Quantize, Spec

__all__ = ["between", "clamp_of", "on_bytes"]


def between(region: RegionSteps, step: Step) -> tuple[Step, list[tuple[str, Quantization]], Quantization] | None:
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


def on_bytes(before: Step, step: Step, spec: Spec, names: Sequence[str]) -> tuple[Step, list[Step]]:
    """The step ``before`` with the operator ``spec`` on bytes, in place of it and of ``step``, which quantizes."""
    made, gone = merged(before, step, spec)
    return replace(made, inputs=tuple(names), dtype=DType.UINT8, result_dtype=DType.UINT8), gone


def clamp_of(activation: Activation, y: Quantization) -> Pair | None:
    """The range of bytes that an activation leaves; None for one that does more than cut off."""
    kind, low, high = activation
    if kind == "none":
        return ALL_BYTES
    return (y.byte(low), y.byte(high)) if kind == "clip" and low <= high else None
