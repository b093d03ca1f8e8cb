"""Recurrent layers: the rows of a step and of all sequences follow each other."""

from __future__ import annotations

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.layouts import LANES, Layout
from sift_onnx.backends.cpu.run.schedules.placed_views import PlacedView
from sift_onnx.backends.cpu.run.schedules.values import Values
from sift_onnx.backends.lowering.rules import Step

__all__ = ["walk_steps"]


def walk_steps(values: Values, index: int, step: Step) -> None:
    """In lanes where each step begins a group of sixteen rows."""
    views = [values.view(step, position) for position in range(len(step.inputs))]
    batch = views[0].dims[1]
    layout: Layout = "images16" if batch and batch % LANES == 0 else "planes"
    operands = [values.operand(step, position, view, "rows", layout) for position, view in enumerate(views)]
    shared = values.op_of(index, "planes")
    assert isinstance(shared, _kernels.Recurrent)
    op = shared.for_batch(max(batch, 1))
    made = values.compute(index, step, op, operands, (f"{step.output}:{layout}", layout))
    values.check_result(step, made)
    values.views[step.output] = PlacedView.of(made, values.dims[step.output])
