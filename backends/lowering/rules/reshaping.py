"""Operators that only change the axes: Flatten, Reshape, Squeeze, Unsqueeze, and those that change nothing."""

from __future__ import annotations

from sift_onnx.backends.lowering.dims import Dim, Dims, names_in, product
from sift_onnx.backends.lowering.rules.comparing import comparison, is_comparison
from sift_onnx.backends.lowering.rules.moving import view_of_result
from sift_onnx.backends.lowering.rules.selection import cast_integers, makes_integers
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step, View
from sift_onnx.backends.lowering.sizes import reshaped
from sift_onnx.backends.lowering.specs import Reshaped, result_dims

__all__ = ["cast", "flatten", "identity", "reshape", "squeeze", "unsqueeze"]


def identity(node: NodeView) -> Step:
    """Identity, and Dropout at inference."""
    view = node.operand(0)
    if node.op == "Dropout" and node.input(2):
        training = node.array(2)
        if training is None or bool(training):
            raise NotLowered("it may be in training mode")
    return node.step(Reshaped(), view)


def cast(node: NodeView) -> Step | tuple[Step, ...]:
    """Cast of floats to floats, of the integers that kernels make, and of comparisons of activations."""
    if makes_integers(node, 0):
        return cast_integers(node)
    if is_comparison(node):
        return comparison(node)
    view = node.operand(0)
    if node.graph.elem_type(node.output) != node.graph.elem_type(node.input(0)):
        raise NotLowered("it makes numbers of another type")
    return node.step(Reshaped(), view)


def flatten(node: NodeView) -> Step:
    """Flatten into a matrix."""
    dims = node.dims(0)
    axis = int(node.attribute("axis", 1))
    axis = axis + len(dims) if axis < 0 else axis
    return _step(node, ((0, axis), (axis, len(dims))))


def reshape(node: NodeView) -> Step:
    """Reshape to sizes that are constant, or those of the operand."""
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


def _computed_target(node: NodeView) -> tuple[Dim | tuple[int, int], ...]:
    """Where the target is computed from sizes: those of the operand, or others that a run knows."""
    listed, dims = node.graph.vector(node.input(1)), node.dims(0)
    copies_zeros = not node.attribute("allowzero", 0)
    if listed is None:
        raise NotLowered("its target is computed during the run")
    sizes = reshaped(listed, dims, copies_zeros, lambda size: node.graph.usual((size,))[0]) or listed
    ranges = [(i, end) for i in range(len(dims)) for end in range(i + 1, len(dims) + 1)]
    target: list[Dim | tuple[int, int]] = []
    for axis, size in enumerate(sizes):
        if isinstance(size, int):
            target.append((axis, axis + 1) if size == 0 and copies_zeros and axis < len(dims) else size)
        else:
            target.append(next((pair for pair in ranges if product(dims[slice(*pair)]) == size), size))
    named = [axis for axis, size in enumerate(target) if not isinstance(size, int) and names_in(size)]
    if len(named) == 1 and -1 not in target:
        target[named[0]] = -1
    return tuple(target)


def squeeze(node: NodeView) -> Step:
    """Squeeze of axes of one position."""
    dims = node.dims(0)
    axes = node.axes()
    if not axes:
        raise NotLowered("which axes it drops depends on the run")
    dropped = {axis % len(dims) for axis in axes}
    if any(dims[axis] != 1 for axis in dropped):
        raise NotLowered("it drops axes that are not known to be 1")
    return _step(node, tuple((axis, axis + 1) for axis in range(len(dims)) if axis not in dropped))


def unsqueeze(node: NodeView) -> Step:
    """Unsqueeze by constant axes."""
    dims = node.dims(0)
    axes = node.axes()
    rank = len(dims) + len(axes)
    added = {axis % rank for axis in axes}
    left = iter(range(len(dims)))
    kept = [None if axis in added else next(left) for axis in range(rank)]
    return _step(node, tuple(1 if axis is None else (axis, axis + 1) for axis in kept))


def _step(node: NodeView, target: tuple[Dim | tuple[int, int], ...]) -> Step:
    """The step to axes ``target``."""
    node.check_activation(node.input(0))
    if node.input(0) in node.graph.constants:
        raise NotLowered(f"{node.input(0)!r} is a constant")
    dims = node.dims(0)
    if not dims or not target:
        raise NotLowered("it is of a number")
    if target.count(-1) > 1:
        raise NotLowered("its target is no shape")
    spec = Reshaped(target)
    result = result_dims(spec, dims)
    total, wanted = product(result), product(dims)
    if total != wanted and isinstance(total, int) and isinstance(wanted, int):
        raise NotLowered(f"its target has {total} values, its operand {wanted}")
    if result == dims:
        return node.step(spec, node.operand(0))
    view = node.views.get(node.input(0)) or _view_outside(dims, result)
    # A row per image is an image of one pixel, unless readers want it otherwise.
    axis = 1 if result[2:] == (1, 1) else None
    return node.step(spec, view, view_of_result(node, node.output, result, axis=axis))


def _view_outside(dims: Dims, result: Dims) -> View:
    """How a value from outside is read: as images where these stay apart."""
    return "image" if len(dims) == 4 and len(result) == 2 and result[0] == dims[0] else "rows"
