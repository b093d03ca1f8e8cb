"""Operators that repeat values: Expand, and Tile.

An axis of one position is repeated as a view. One of several gets an axis of one position before it, which is repeated;
then both are one axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sift_onnx.backends.lowering.dims import Dim, Dims
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.rules.moving import moved, view_of_result
from sift_onnx.backends.lowering.rules.pairs import is_count
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step
from sift_onnx.backends.lowering.specs import Repeated, Reshaped, result_dims
from sift_onnx.backends.lowering.specs.windows import Pair

__all__ = ["before_repeating", "expand", "tile"]


def expand(node: NodeView) -> Step | tuple[Step, ...]:
    """Expand of axes of one position, as heads of keys are repeated for groups of queries, and to more axes."""
    dims, target = node.dims(0), node.vector(1)
    if target is None:
        raise NotLowered("its target is computed during the run")
    added = max(len(target) - len(dims), 0)
    own = (*[1] * added, *dims)
    counts: dict[int, Dim] = {}
    for axis, wanted in enumerate(target, len(own) - len(target)):
        if own[axis] == 1 and wanted != 1:
            counts[axis] = wanted
        elif wanted not in (1, own[axis]):
            raise NotLowered("its target is computed during the run")
    return _repeated(node, (*[1] * added, *((axis, axis + 1) for axis in range(len(dims)))), counts)


def tile(node: NodeView) -> Step | tuple[Step, ...]:
    """Tile by repeats that are constant or follow from sizes."""
    dims, repeats = node.dims(0), node.vector(1)
    if len(node.proto.input) != 2:
        raise NotLowered("its number of tiles is that of one axis, as before opset 6")
    if repeats is None:
        raise NotLowered(f"its repeats are {node.why_not_constant(1)}")
    if len(repeats) != len(dims):
        raise NotLowered(f"it has {len(repeats)} repeats for {len(dims)} axes")
    parted: list[Dim | Pair] = []
    counts: dict[int, Dim] = {}
    merged: list[Pair] = []
    for axis, (size, count) in enumerate(zip(dims, repeats, strict=True)):
        first = len(parted)
        if count != 1:
            counts[first] = count
            if size != 1:
                parted.append(1)
        parted.append((axis, axis + 1))
        merged.append((first, len(parted)))
    return _repeated(node, tuple(parted), counts, tuple(merged))


def _repeated(
    node: NodeView, parted: tuple[Dim | Pair, ...], counts: Mapping[int, Dim], merged: tuple[Pair, ...] = ()
) -> Step | tuple[Step, ...]:
    """The steps that part the operand's axes, repeat some of one position, and merge them.

    Args:
        node: that repeats values.
        parted: axes of the operand, as :class:`Reshaped` has them.
        counts: how many positions an axis of ``parted`` gets.
        merged: which of these are one axis of the result; none are, if it is empty.
    """
    node.check_activation(node.input(0))
    if any(not is_count(count) for count in counts.values()):
        raise NotLowered("it may repeat values less than once")
    if not counts and len(parted) == len(node.dims(0)):
        return node.step(Reshaped(), node.operand(0))
    if counts and node.types == (DType.INT64,):
        raise NotLowered("the kernels repeat no integers")
    spec = Repeated(tuple(counts.items()))
    if len(parted) == len(node.dims(0)):
        return moved(node, spec, node.output)
    if node.input(0) in node.graph.constants:
        raise NotLowered(f"{node.input(0)!r} is a constant")
    specs: list[Reshaped | Repeated] = [Reshaped(parted), spec] if counts else [Reshaped(parted)]
    if len(merged) < len(parted) and merged:
        specs.append(Reshaped(merged))
    return _chain(node, specs)


def _chain(node: NodeView, specs: Sequence[Reshaped | Repeated]) -> tuple[Step, ...]:
    """Steps one after the other, of rows but for what enters and leaves them."""
    steps: list[Step] = []
    name, dims, view = node.input(0), node.dims(0), node.views.get(node.input(0), "rows")
    for number, spec in enumerate(specs, 1):
        dims = result_dims(spec, dims)
        is_last = number == len(specs)
        made = node.output if is_last else node.between(f"repeated {number}")
        result_view = view_of_result(node, made, dims) if is_last else "rows"
        steps.append(Step(spec, (name,), made, view, result_view, (node.index,)))
        name, view = made, result_view
    return tuple(steps)


def before_repeating(graph: GraphView, name: str, axis: int) -> str:
    """The constant that an Expand or Tile repeats along other axes than ``axis``; ``name`` for anything else.

    Those axes have one position in the constant, which has as many axes as the result.
    """
    index = graph.producers.get(name)
    if index is None or not is_standard_op(graph.nodes[index], "Expand", "Tile") or len(graph.nodes[index].input) != 2:
        return name
    before = graph.nodes[index].input[0]
    own, dims = graph.dims(before), graph.dims(name)
    is_constant = before in graph.constants or before in graph.derived
    return before if is_constant and own and dims and _is_repeated_beside(own, dims, axis) else name


def _is_repeated_beside(own: Dims, dims: Dims, axis: int) -> bool:
    if len(own) != len(dims) or not -len(dims) <= axis < len(dims) or own[axis] != dims[axis]:
        return False
    return all(size in (1, other) for size, other in zip(own, dims, strict=True))
