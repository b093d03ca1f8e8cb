"""Recurrent layers: the rows of a step and of all sequences follow each other."""

from __future__ import annotations

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.layouts import LANES, Layout
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import input_key
from sift_onnx.backends.cpu.run.schedules.placed_views import PlacedView
from sift_onnx.backends.cpu.run.schedules.values import Values
from sift_onnx.backends.lowering.names import stored_key
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.errors import UsageError

__all__ = ["walk_steps"]


def walk_steps(values: Values, index: int, step: Step) -> None:
    """In lanes where each step begins a group of sixteen rows.

    Raises:
        UsageError: there is not a length for each sequence.
    """
    views = [values.view(step, position) for position in range(len(step.inputs))]
    batch = views[0].dims[1]
    lengths = values.dims[input_key(step.mask, "array")] if step.mask else (batch,)
    if lengths != (batch,):
        raise UsageError(f"{step.mask!r} has {list(lengths)} lengths, and there are {batch} sequences")
    layout: Layout = "images16" if batch and batch % LANES == 0 else "planes"
    operands = [values.operand(step, position, view, "rows", layout) for position, view in enumerate(views)]
    shared = values.op_of(index, "planes")
    assert isinstance(shared, _kernels.Recurrent)
    op = shared.for_batch(max(batch, 1))
    result: tuple[str, Layout] = (stored_key(step.output, layout), layout)
    made = values.compute(index, step, op, operands, result, values.masks.get(step.mask, ""))
    values.check_result(step, made)
    values.views[step.output] = PlacedView.of(made, values.dims[step.output])
