"""Which floats of layers of integers lie beside the bytes that they are quantized to.

A sum of residuals between layers of integers is read twice: it is quantized for the next layer, and it is added to the
result of a later one. The layer that makes it stores both then, and keeps the floats as its sums lie, sixteen positions
of a channel side by side (the layout `float_quads`). So do layers whose results are only added to others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sift_onnx.backends.cpu.lower.layouts import Layout
from sift_onnx.backends.lowering.quantization import Quantization
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import Quantize, QuantizedMatmul

__all__ = ["added_layout", "floats_beside_bytes"]


def floats_beside_bytes(steps: Sequence[Step], outputs: Collection[str]) -> Mapping[str, Quantization | None]:
    """Floats that no other operators read than those that take them in `float_quads`, and the scale of their bytes.

    Args:
        steps: of a region, after fusion.
        outputs: values that leave it.

    Returns:
        By the name of the floats, what they are quantized to; None where they are only added.
    """
    found: dict[str, Quantization | None] = {
        step.output: None for step in steps if _makes_floats(step) and step.output not in outputs
    }
    views = {step.output: step.result_view for step in steps}
    read: set[str] = set()
    for step in steps:
        for position, name in enumerate(step.inputs):
            if name not in found:
                continue
            own = found[name]
            if isinstance(step.spec, Quantize) and step.view == step.result_view == views[name]:
                is_taken = own is None or own == step.spec.y
                found[name] = step.spec.y
            else:
                is_added = isinstance(step.spec, QuantizedMatmul) and step.spec.is_added and position == 1
                is_taken = is_added and step.result_view == views[name]
            read.add(name)
            if not is_taken:
                del found[name]
    return {name: y for name, y in found.items() if name in read}


def added_layout(is_beside_bytes: bool, result: Layout) -> Layout:
    """The layout in which a layer whose result is in ``result`` reads the floats that it adds."""
    if is_beside_bytes:
        return "float_quads"
    return "planes" if result == "float_quads" else result


def _makes_floats(step: Step) -> bool:
    spec = step.spec
    return isinstance(spec, QuantizedMatmul) and spec.y is None and spec.x_zero is not None and step.dtype.is_bytes
