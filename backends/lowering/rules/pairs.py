"""Two operands of any sizes: each may have one position, or lack an axis in front, where the other has more.

Kernels repeat the second operand. The first one is repeated by a step of its own, which is a view and copies nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sift_onnx.backends.lowering.dims import Dim, Dims, are_counts, terms
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.names import made_name
from sift_onnx.backends.lowering.rules.moving import view_of_result
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step, View, check_type
from sift_onnx.backends.lowering.specs import Elementwise, Moving, Repeated, Reshaped, result_dims

__all__ = ["Operand", "combined", "is_count", "operand_at"]

_COMMUTATIVE = ("add", "multiply", "maximum", "minimum")


@dataclass(frozen=True)
class Operand:
    """A value that a step reads.

    Attributes:
        name: of the value.
        dims: its sizes.
        view: in which steps before make it; None for a constant, and for what comes from outside.
        is_constant: whether it is one, which cannot be the first operand.
    """

    name: str
    dims: Dims
    view: View | None = None
    is_constant: bool = False


def operand_at(node: NodeView, position: int) -> Operand:
    """An input of ``node``: an activation, or a constant of float32.

    Raises:
        NotLowered: it is of another type, or nothing is known of its axes.
    """
    name = node.input(position)
    is_constant = node.graph.fold(name)
    if is_constant:
        check_type(node.graph, name, (DType.FLOAT32,))
    else:
        node.check_activation(name)
    return Operand(name, node.dims(position), node.views.get(name), is_constant)


def combined(
    node: NodeView, spec: Elementwise, operands: tuple[Operand, Operand], output: str
) -> tuple[tuple[Step, ...], Operand]:
    """The steps that make ``output`` of two operands, and what they make.

    Args:
        node: that they are for.
        spec: what is done; whether the second operand is repeated is found here.
        operands: at most one of them is constant.
        output: name of the result.

    Raises:
        NotLowered: they are not known to fit each other.
    """
    first, second = operands
    result = _broadcast(first.dims, second.dims)
    is_turned = spec.kind in _COMMUTATIVE and (first.is_constant or (first.dims != result and second.dims == result))
    if is_turned and not second.is_constant:
        first, second = second, first
    if first.is_constant:
        raise NotLowered(f"its first operand {first.name!r} is a constant")
    steps: list[Step] = []
    if first.dims != result:
        steps, first = _repeated(node, first, result, made_name(output, "repeated"))
    view = _common_view(node, first, second, output)
    spec = replace(spec, repeats=second.dims != result)
    step = Step(spec, (first.name, second.name), output, view, view, (node.index,))
    return (*steps, step), Operand(output, result, view)


def _broadcast(first: Dims, second: Dims) -> Dims:
    """The sizes of the result, where it is known which operand has each of them."""
    rank = max(len(first), len(second))
    axes = zip(*((*[1] * (rank - len(own)), *own) for own in (first, second)), strict=True)
    return tuple(_broadcast_axis(a, b) for a, b in axes)


def _broadcast_axis(first: Dim, second: Dim) -> Dim:
    for own, other in ((first, second), (second, first)):
        # A table that is cut to a length has that length, or is too short, which a run finds out.
        if own in (1, other) or (isinstance(own, tuple) and own[0] == "cut" and own[2] == other):
            return other
    raise NotLowered("its operands are not known to be of one shape")


def _repeated(node: NodeView, operand: Operand, result: Dims, name: str) -> tuple[list[Step], Operand]:
    """The steps that repeat an operand to the sizes of the result."""
    added = len(result) - len(operand.dims)
    dims: Dims = (*[1] * added, *operand.dims)
    # What was cut to a length is not repeated: it has that length.
    counts = tuple((axis, size) for axis, size in enumerate(result) if dims[axis] == 1 and size != 1)
    if not all(is_count(size) for _, size in counts):
        raise NotLowered("its operands are not known to be of one shape")
    specs: list[Moving] = []
    if added:
        specs.append(Reshaped((*[1] * added, *((axis, axis + 1) for axis in range(len(operand.dims))))))
    if counts:
        specs.append(Repeated(counts))
    return _chain(node, operand, specs, name)


def _chain(node: NodeView, operand: Operand, specs: Sequence[Moving], name: str) -> tuple[list[Step], Operand]:
    steps: list[Step] = []
    for number, spec in enumerate(specs, 1):
        dims = result_dims(spec, operand.dims)
        made = name if number == len(specs) else f"{name} {number}"
        view: View = operand.view or ("image" if len(operand.dims) == len(dims) == 4 else "rows")
        result_view: View = view if len(dims) == 4 else "rows"
        steps.append(Step(spec, (operand.name,), made, view, result_view, (node.index,)))
        operand = Operand(made, dims, result_view)
    return steps, operand


def _common_view(node: NodeView, first: Operand, second: Operand, output: str) -> View:
    """How both operands are read: one that comes from outside, or in another view, is read as the other one is."""
    known = {own.view for own in (first, second) if own.view is not None}
    if len(known) == 1:
        (found,) = known
    elif known or len(first.dims) != 4:
        found = view_of_result(node, output, first.dims)
    else:
        found = "image"
    if found == "image" and len(first.dims) != 4:
        found = "rows"
    if len(first.dims) < 2:
        raise NotLowered(f"{first.name!r} has {len(first.dims)} axes; the kernels take two and more")
    return found


def is_count(size: Dim) -> bool:
    """Whether there are as many positions in any run: one or more, or none only where an input has none."""
    if isinstance(size, int):
        return size > 0
    number = size[1] if isinstance(size, tuple) and size[0] == "sum" else 0
    return are_counts(terms(size)) and isinstance(number, int) and number >= 0
