"""Steps that sample images at computed positions."""

from __future__ import annotations

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.run.schedules.placed_views import PlacedView
from sift_onnx.backends.cpu.run.schedules.values import Values
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import GridSample

__all__ = ["sample"]


def sample(values: Values, index: int, step: Step, spec: GridSample) -> None:
    """Add the call of a GridSample, which reads images and their positions in planes."""
    dims = values.dims[step.output]
    operands = [values.operand(step, position, values.view(step, position), "image", "planes") for position in range(2)]
    op = _kernels.GridSample(
        *dims[2:], is_nearest=spec.is_nearest, clamps=spec.clamps, aligns_corners=spec.aligns_corners
    )
    made = values.compute(index, step, op, operands, (values.result_key(step.output, "planes"), "planes"))
    values.views[step.output] = PlacedView.of(made, dims)
