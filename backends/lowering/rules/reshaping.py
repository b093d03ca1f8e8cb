"""Operators that only change the axes: Flatten, Reshape, Squeeze, Unsqueeze, Identity, Dropout."""

from __future__ import annotations

from sift_onnx.backends.lowering.dims import product
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step
from sift_onnx.backends.lowering.specs import Reshaped, result_dims

__all__ = ["flatten", "identity", "reshape", "squeeze", "unsqueeze"]


def identity(node: NodeView) -> Step:
    """Identity, and Dropout at inference."""
    view = node.operand(0)
    if node.op == "Dropout" and node.input(2):
        training = node.array(2)
        if training is None or bool(training):
            raise NotLowered("it may be in training mode")
    return node.step(Reshaped(), view)


def flatten(node: NodeView) -> Step:
    """Flatten all axes after the batch."""
    dims = node.dims(0)
    axis = int(node.attribute("axis", 1)) % max(len(dims), 1)
    if axis != 1 and not (axis == len(dims) - 1 and axis):
        raise NotLowered(f"it flattens from axis {axis}; the kernels keep rows or images apart")
    return _step(node, ((0, axis), (axis, len(dims))))


def reshape(node: NodeView) -> Step:
    """Reshape to constant sizes that keep rows, or images, apart."""
    listed = node.array(1)
    if listed is None:
        return _step(node, _computed_target(node))
    dims = node.dims(0)
    target: list[int | tuple[int, int]] = []
    for axis, size in enumerate(int(n) for n in listed.reshape(-1)):
        if size == 0 and not node.attribute("allowzero", 0):
            if axis >= len(dims):
                raise NotLowered("its target copies an axis that is not there")
            target.append((axis, axis + 1))
        else:
            target.append(size)
    return _step(node, tuple(target))


def _computed_target(node: NodeView) -> tuple[int | tuple[int, int], ...]:
    """Where the target is computed from sizes that the operand has as well."""
    sizes = node.graph.vector(node.input(1))
    if sizes is None:
        raise NotLowered("its target is computed during the run")
    dims = node.dims(0)
    target: list[int | tuple[int, int]] = []
    for size in sizes:
        if isinstance(size, int):
            target.append(size)
        elif size in dims:
            target.append((dims.index(size), dims.index(size) + 1))
        elif size == product(dims[:-1]):
            target.append((0, len(dims) - 1))
        else:
            raise NotLowered("its target is computed during the run")
    return tuple(target)


def squeeze(node: NodeView) -> Step:
    """Squeeze of height and width that are one pixel."""
    dims = node.dims(0)
    axes = node.axes()
    if not axes:
        raise NotLowered("which axes it drops depends on the run")
    dropped = {axis % len(dims) for axis in axes}
    if any(dims[axis] != 1 for axis in dropped):
        raise NotLowered("it drops axes that are not known to be 1")
    return _step(node, tuple((axis, axis + 1) for axis in range(len(dims)) if axis not in dropped))


def unsqueeze(node: NodeView) -> Step:
    """Unsqueeze of a value per channel to an image of one pixel."""
    dims = node.dims(0)
    axes = {axis % (len(dims) + len(node.axes())) for axis in node.axes()}
    left = [(axis, axis + 1) for axis in range(len(dims))]
    return _step(node, tuple(1 if axis in axes else left.pop(0) for axis in range(len(dims) + len(axes))))


def _step(node: NodeView, target: tuple[int | tuple[int, int], ...]) -> Step:
    """The step to axes ``target``, which keeps the first axis of images, and all that are rows of a matrix.

    A row per image may become an image of one pixel.
    """
    view = node.operand(0)
    dims = node.dims(0)
    if len(target) < 2:
        raise NotLowered("the result has less than two axes")
    if target.count(-1) > 1:
        raise NotLowered("its target is no shape")
    spec = Reshaped(target)
    result = result_dims(spec, dims)
    if result == dims:
        return node.step(Reshaped(), view)
    if view == "rows" and result == (*dims, 1, 1):
        return node.step(spec, view, "image")
    keeps_images = view == "image" and len(result) == 2 and result[0] == dims[0]
    keeps_rows = view == "rows" and result[-1] == dims[-1]
    if not (keeps_images or keeps_rows) or product(result) != product(dims):
        raise NotLowered("it moves values between rows or images")
    return node.step(spec, view, "rows")
