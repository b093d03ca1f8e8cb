"""Operators that move values: Transpose, Expand and Concat; what those that move them share.

What they make is a view of their operand where that is possible; values are copied when an operator reads it.
"""

from __future__ import annotations

from sift_onnx.backends.lowering.dims import Dims
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step, View, dims_of
from sift_onnx.backends.lowering.specs import Joined, Repeated, Sliced, Transposed, result_dims

__all__ = ["concat", "expand", "moved", "transpose", "view_of_moved", "view_of_result"]

# Operators of images and of rows, which say how their readers want a value.
_IMAGES = frozenset({
    "AveragePool", "BatchNormalization", "Conv", "ConvInteger", "ConvTranspose", "DepthToSpace", "GlobalAveragePool",
    "GroupNormalization", "InstanceNormalization", "MaxPool", "QLinearConv", "Resize", "Upsample",
})  # fmt: skip
_ROWS = frozenset({"MatMul", "MatMulInteger", "Gemm", "LayerNormalization", "QLinearMatMul", "Softmax"})
# Nodes that are looked at to find such a reader.
_MOST_NODES = 32


def transpose(node: NodeView) -> Step:
    """Transpose of any axes."""
    rank = len(node.dims(0))
    order = tuple(int(axis) for axis in node.attribute("perm") or range(rank)[::-1])
    if sorted(order) != list(range(rank)):
        raise NotLowered(f"its order {list(order)} is none of {rank} axes")
    return moved(node, Transposed(order), node.output)


def expand(node: NodeView) -> Step:
    """Expand of axes of one position to constant sizes, as heads of keys are repeated for groups of queries."""
    dims, target = node.dims(0), node.graph.vector(node.input(1))
    if target is None or len(target) > len(dims):
        raise NotLowered("its target is computed during the run, or has more axes")
    sizes = []
    for axis, wanted in enumerate(target, len(dims) - len(target)):
        if dims[axis] == 1 and isinstance(wanted, int):
            sizes.append((axis, wanted))
        elif wanted not in (1, dims[axis]):
            raise NotLowered("its target is computed during the run")
    return moved(node, Repeated(tuple((axis, size) for axis, size in sizes if size != 1)), node.output)


def concat(node: NodeView) -> Step:
    """Concat of activations and constants; those may be repeated before it, as a class token is."""
    names = [_before_expand(node.graph, name) for name in node.proto.input]
    main = next((i for i, name in enumerate(names) if not _is_constant(node.graph, name)), None)
    if main is None:
        raise NotLowered("its operands are constants")
    dims = dims_of(node.graph, names[main], node.known_dims)
    axis = int(node.attribute("axis", 0)) % len(dims)
    starts, repeated, total = [], [], 0
    for number, name in enumerate(names):
        node.check_activation(name)
        own = dims_of(node.graph, name, node.known_dims)
        size = own[axis] if len(own) == len(dims) else None
        if not isinstance(size, int) or size < 1:
            raise NotLowered("it joins along an axis of unknown size")
        if not _fits(own, dims, axis):
            if not (_is_constant(node.graph, name) and _is_repeated(own, dims, axis)):
                raise NotLowered("its operands are not known to have the same other axes")
            repeated.append(number)
        starts.append(total)
        total += size
    result_view = view_of_result(node, node.output, (*dims[:axis], total, *dims[axis + 1 :]), names[main], axis)
    order = [main, *(i for i in range(len(names)) if i != main)]
    spec = Joined(axis, tuple(starts[i] for i in order), total, tuple(order.index(i) for i in repeated))
    view = view_of_moved(node, names[main], result_view)
    return Step(spec, tuple(names[i] for i in order), node.output, view, result_view, _with_expands(node, names))


def _fits(dims: Dims, first: Dims, axis: int) -> bool:
    """Whether operands are alike but along ``axis``, as far as is known of height and width: a run compares them."""
    for i, (size, other) in enumerate(zip(dims, first, strict=True)):
        is_open = len(first) == 4 and axis == 1 and i > 1 and not (isinstance(size, int) and isinstance(other, int))
        if i != axis and size != other and not is_open:
            return False
    return True


def _is_repeated(dims: Dims, first: Dims, axis: int) -> bool:
    return all(own in (1, size) for i, (own, size) in enumerate(zip(dims, first, strict=True)) if i != axis)


def moved(node: NodeView, spec: Transposed | Sliced | Repeated, output: str, position: int = 0) -> Step:
    """The step that makes ``output`` of the node's operand at ``position``."""
    name = node.input(position)
    node.check_activation(name)
    if name in node.graph.constants:
        raise NotLowered(f"{name!r} is a constant")
    dims = node.dims(position)
    if not dims:
        raise NotLowered("its operand is a number")
    axis = spec.ranges[0].axis if isinstance(spec, Sliced) and len(spec.ranges) == 1 and not spec.drops else None
    result_view = view_of_result(node, output, result_dims(spec, dims), name, axis)
    return Step(spec, (name,), output, view_of_moved(node, name, result_view), result_view, (node.index,))


def view_of_moved(node: NodeView, name: str, result_view: View) -> View:
    """How an operand of a step that moves values is read: one from outside as the result is, where that is possible."""
    is_image = result_view == "image" and len(dims_of(node.graph, name, node.known_dims)) == 4
    return node.views.get(name) or ("image" if is_image else "rows")


def view_of_result(node: NodeView, name: str, dims: Dims, operand: str = "", axis: int | None = None) -> View:
    """How readers want a value that is moved anyway.

    Args:
        node: that makes it.
        name: of the value.
        dims: its sizes.
        operand: name of what it is cut from, or of a part of it.
        axis: along which it is cut or joined; None where axes change.
    """
    if len(dims) != 4:
        return "rows"
    found = _view_of_readers(node.graph, name)
    if found is None and axis is not None:
        # No reader minds: what was an image stays one.
        found = node.views.get(operand) or ("image" if axis == 1 else "rows")
    return found or "rows"


def _view_of_readers(graph: GraphView, name: str) -> View | None:
    """What the first operator of images or of rows is for that reads a value, or what is made of it."""
    seen = {name}
    waiting = [name]
    for value in waiting:
        for index in graph.readers.get(value, ()):
            node = graph.nodes[index]
            if is_standard_op(node, *_IMAGES):
                return "image"
            if is_standard_op(node, *_ROWS):
                return "rows"
            # Frames of volumes keep their channels, whatever axes they have in between.
            is_move = index in graph.moves
            if is_standard_op(node, "Transpose") and not is_move:
                continue  # What is made of it has other channels.
            made = [n for n in node.output if n and n not in seen and (is_move or len(graph.dims(n) or ()) == 4)]
            if len(waiting) < _MOST_NODES:
                waiting += made
                seen.update(made)
    return None


def _is_constant(graph: GraphView, name: str) -> bool:
    return name in graph.constants or name in graph.derived


def _before_expand(graph: GraphView, name: str) -> str:
    """The constant that an Expand repeats; ``name`` for anything else."""
    index = graph.producers.get(name)
    if index is None or not is_standard_op(graph.nodes[index], "Expand"):
        return name
    before = graph.nodes[index].input[0]
    return (
        before if _is_constant(graph, before) and len(graph.dims(before) or ()) == len(graph.dims(name) or ()) else name
    )


def _with_expands(node: NodeView, names: list[str]) -> tuple[int, ...]:
    """The node, and what repeats constants for it alone."""
    graph = node.graph
    repeats = (graph.producers[name] for name, own in zip(node.proto.input, names, strict=True) if name != own)
    return (node.index, *(index for index in repeats if len(graph.readers[graph.nodes[index].output[0]]) == 1))
