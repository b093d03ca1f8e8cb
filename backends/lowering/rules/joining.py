"""Concat: values one after the other along an axis."""

from __future__ import annotations

from sift_onnx.backends.lowering.dims import Dim, Dims, added
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.rules.moving import view_of_moved, view_of_result
from sift_onnx.backends.lowering.rules.repeating import before_repeating
from sift_onnx.backends.lowering.rules.step import QUANTIZED, NodeView, NotLowered, Step, View, dims_of
from sift_onnx.backends.lowering.specs import Joined, OpenJoined

__all__ = ["concat"]


def concat(node: NodeView) -> Step:
    """Concat of activations and constants; those may be repeated before it, as a class token is."""
    along = int(node.attribute("axis", 0))
    names = [before_repeating(node.graph, name, along) for name in node.proto.input]
    main = next((i for i, name in enumerate(names) if not _is_constant(node.graph, name)), None)
    if main is None:
        raise NotLowered("its operands are constants")
    dims = dims_of(node.graph, names[main], node.known_dims)
    axis = along % len(dims)
    repeated: list[int] = []
    sizes: list[Dim] = []
    for number, name in enumerate(names):
        node.check_activation(name)
        own = dims_of(node.graph, name, node.known_dims)
        size = own[axis] if len(own) == len(dims) else None
        if size is None or size == 0 or (isinstance(size, int) and size < 0):
            raise NotLowered("it joins along an axis of unknown size")
        if not _fits(own, dims, axis):
            if not (_is_constant(node.graph, name) and _is_repeated(own, dims, axis)):
                raise NotLowered("its operands are not known to have the same other axes")
            repeated.append(number)
        sizes.append(size)
    total = added(sizes)
    result_view = view_of_result(node, node.output, (*dims[:axis], total, *dims[axis + 1 :]), names[main], axis)
    order = [main, *(i for i in range(len(names)) if i != main)]
    left = tuple(order.index(i) for i in repeated)
    counts = [size for size in sizes if isinstance(size, int)]
    spec: Joined | OpenJoined
    if len(counts) == len(sizes):
        starts = [sum(counts[:i]) for i in range(len(counts))]
        spec = Joined(axis, tuple(starts[i] for i in order), sum(counts), left)
    else:
        _check_open(node, names, result_view, axis)
        spec = OpenJoined(axis, tuple(order), total, left)
    view = view_of_moved(node, names[main], result_view)
    return Step(spec, tuple(names[i] for i in order), node.output, view, result_view, _with_repeating(node, names))


def _check_open(node: NodeView, names: list[str], view: View, axis: int) -> None:
    """Check that kernels join along an axis whose size only a run knows.

    Raises:
        NotLowered: they do not, or it does not pay.
    """
    if any(name in node.graph.inputs for name in names):
        # To move all of a cache at every run would cost more than it saves.
        raise NotLowered("it appends to what grows from run to run")
    if node.types == QUANTIZED or (view == "image" and axis == 1):
        raise NotLowered("it joins along an axis of unknown size")


def _fits(dims: Dims, first: Dims, axis: int) -> bool:
    """Whether operands are alike but along ``axis``, as far as is known of height and width: a run compares them."""
    for i, (size, other) in enumerate(zip(dims, first, strict=True)):
        is_open = len(first) == 4 and axis == 1 and i > 1 and not (isinstance(size, int) and isinstance(other, int))
        if i != axis and size != other and not is_open:
            return False
    return True


def _is_repeated(dims: Dims, first: Dims, axis: int) -> bool:
    return all(own in (1, size) for i, (own, size) in enumerate(zip(dims, first, strict=True)) if i != axis)


def _is_constant(graph: GraphView, name: str) -> bool:
    return name in graph.constants or name in graph.derived


def _with_repeating(node: NodeView, names: list[str]) -> tuple[int, ...]:
    """The node, and what repeats constants for it alone."""
    graph = node.graph
    repeats = (graph.producers[name] for name, own in zip(node.proto.input, names, strict=True) if name != own)
    return (node.index, *(index for index in repeats if len(graph.readers[graph.nodes[index].output[0]]) == 1))
