"""Operators that move values: Transpose, Slice, Split, Gather of one position, Expand, Concat.

What they make is a view of their operand where that is possible; values are copied when an operator reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from sift_onnx.backends.lowering.dims import Dims
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step, View, dims_of
from sift_onnx.backends.lowering.specs import Joined, Moving, Range, Repeated, Sliced, Transposed, result_dims

__all__ = ["concat", "expand", "gather", "slice_", "split", "transpose", "view_of_result"]

# Operators of images and of rows, which say how their readers want a value.
_IMAGES = frozenset({"Conv", "BatchNormalization", "MaxPool", "AveragePool", "GlobalAveragePool", "Resize"})
_ROWS = frozenset({"MatMul", "Gemm", "LayerNormalization", "Softmax"})
# Nodes that are looked at to find such a reader.
_MOST_NODES = 32
# Ends that exporters write for all that follows.
_ENDLESS = 1 << 30


def transpose(node: NodeView) -> Step:
    """Transpose of any axes."""
    rank = len(node.dims(0))
    order = tuple(int(axis) for axis in node.attribute("perm") or range(rank)[::-1])
    if sorted(order) != list(range(rank)):
        raise NotLowered(f"its order {list(order)} is none of {rank} axes")
    return _moved(node, Transposed(order))


def slice_(node: NodeView) -> Step:
    """Slice by constants, forwards."""
    dims = node.dims(0)
    if not node.input(1):
        given: list[Sequence[int] | None] = [node.attribute(name) for name in ("starts", "ends", "axes")]
        steps: list[int] = []
    else:
        given = [_constants(node, position) for position in (1, 2, 3)]
        steps = _constants(node, 4) or []
    starts, ends = list(given[0] or ()), list(given[1] or ())
    axes = list(given[2] or range(len(starts)))
    ranges = []
    for i, axis in enumerate(axes):
        step = steps[i] if steps else 1
        if step < 1:
            raise NotLowered("it goes backwards")
        ranges.append(_range(dims, axis % len(dims), starts[i], ends[i], step))
    return _moved(node, Sliced(tuple(filter(None, ranges))))


def split(node: NodeView) -> list[Step]:
    """Split into parts of constant sizes."""
    dims = node.dims(0)
    axis = int(node.attribute("axis", 0)) % len(dims)
    size, names = dims[axis], list(node.proto.output)
    if not isinstance(size, int):
        raise NotLowered("it splits an axis of unknown size")
    sizes = [int(n) for n in node.attribute("split") or _constants(node, 1) or ()]
    if not sizes:
        each = -(-size // len(names))
        sizes = [min(each, size - i * each) for i in range(len(names))]
    if len(sizes) != len(names) or sum(sizes) != size or min(sizes) < 0:
        raise NotLowered(f"its parts {sizes} do not make up an axis of {size}")
    steps = []
    for number, name in enumerate(names):
        if name and (node.graph.readers.get(name) or name in node.graph.outputs):
            first = sum(sizes[:number])
            steps.append(_moved(node, Sliced((Range(axis, first, first + sizes[number]),)), name))
    return steps


def gather(node: NodeView) -> Step:
    """Gather of one position, whose axis is dropped, or of positions one after the other."""
    places = node.array(1)
    if places is None:
        raise NotLowered(f"the places that it gathers are {node.why_not_constant(1)}")
    dims = node.dims(0)
    axis = int(node.attribute("axis", 0)) % len(dims)
    listed = [int(n) for n in places.reshape(-1)]
    if places.ndim > 1 or not listed or any(b != a + 1 for a, b in pairwise(listed)):
        raise NotLowered("the positions that it gathers are not one after the other")
    first, end = listed[0], listed[-1] + 1
    size = dims[axis]
    if isinstance(size, int) and not (-size <= first and end <= size):
        raise NotLowered("it gathers positions that are not there")
    taken = _range(dims, axis, first, end or _ENDLESS, 1)
    return _moved(node, Sliced((taken or Range(axis, 0, None),), drops=places.ndim == 0))


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
    return _moved(node, Repeated(tuple((axis, size) for axis, size in sizes if size != 1)))


def concat(node: NodeView) -> Step:
    """Concat of activations and constants; those may be repeated before it, as a class token is."""
    names = [_before_expand(node.graph, name) for name in node.proto.input]
    main = next((i for i, name in enumerate(names) if not _is_constant(node.graph, name)), None)
    if main is None:
        raise NotLowered("its operands are constants")
    dims = dims_of(node.graph, names[main], node.known_dims)
    axis = int(node.attribute("axis", 0)) % len(dims)
    starts, total = [], 0
    for name in names:
        own = dims_of(node.graph, name, node.known_dims)
        size = own[axis] if len(own) == len(dims) else None
        if not isinstance(size, int):
            raise NotLowered("it joins along an axis of unknown size")
        others = zip((*own[:axis], *own[axis + 1 :]), (*dims[:axis], *dims[axis + 1 :]), strict=True)
        may_repeat = _is_constant(node.graph, name)
        if any(a != b and not (may_repeat and a == 1) for a, b in others):
            raise NotLowered("its operands are not known to have the same other axes")
        starts.append(total)
        total += size
        node.check_float(name)
    order = [main, *(i for i in range(len(names)) if i != main)]
    spec = Joined(axis, tuple(starts[i] for i in order), total)
    view = node.views.get(names[main]) or "rows"
    result = (*dims[:axis], total, *dims[axis + 1 :])
    repeated = (node.graph.producers[name] for name, own in zip(node.proto.input, names, strict=True) if name != own)
    nodes = (
        node.index,
        *(index for index in repeated if len(node.graph.readers[node.graph.nodes[index].output[0]]) == 1),
    )
    return Step(
        spec, tuple(names[i] for i in order), node.output, view, view_of_result(node, node.output, result), nodes
    )


def _moved(node: NodeView, spec: Moving, output: str = "") -> Step:
    """The step that makes ``output``, the node's only one by default."""
    output = output or node.output
    name = node.input(0)
    node.check_float(name)
    if name in node.graph.constants:
        raise NotLowered(f"{name!r} is a constant")
    dims = node.dims(0)
    if not dims:
        raise NotLowered("its operand is a number")
    view: View = node.views.get(name) or "rows"
    return Step(spec, (name,), output, view, view_of_result(node, output, result_dims(spec, dims)), (node.index,))


def view_of_result(node: NodeView, name: str, dims: Dims) -> View:
    """How readers want a value that is moved anyway."""
    return "image" if len(dims) == 4 and _is_read_as_image(node.graph, name) else "rows"


def _is_read_as_image(graph: GraphView, name: str) -> bool:
    """Whether the first operator of images or of rows that reads it, or what is made of it, is one of images."""
    seen = {name}
    waiting = [name]
    for value in waiting:
        for index in graph.readers.get(value, ()):
            node = graph.nodes[index]
            if is_standard_op(node, *_IMAGES):
                return True
            if is_standard_op(node, *_ROWS):
                return False
            made = [n for n in node.output if n and n not in seen and len(graph.dims(n) or ()) == 4]
            if len(waiting) < _MOST_NODES:
                waiting += made
                seen.update(made)
    return False


def _range(dims: Dims, axis: int, start: int, stop: int, step: int) -> Range | None:
    """The positions that a node takes; None for all of an axis whose size is not known."""
    size = dims[axis]
    if isinstance(size, int):
        places = range(size)[start:stop:step]
        return Range(axis, places.start, places[-1] + 1 if places else places.start, step)
    if step == 1 and start >= 0 and stop == start + 1:
        return Range(axis, start, stop)
    if step == 1 and start == -1 and stop >= _ENDLESS:
        return Range(axis, -1, None)
    if step == 1 and start == 0 and stop >= _ENDLESS:
        return None
    raise NotLowered("it takes a range of an axis of unknown size")


def _constants(node: NodeView, position: int) -> list[int] | None:
    if not node.input(position):
        return None
    values = node.graph.vector(node.input(position))
    if values is None or not all(isinstance(n, int) for n in values):
        raise NotLowered(f"{node.input(position)!r} is {node.why_not_constant(position)}")
    return [n for n in values if isinstance(n, int)]


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
