"""Keys or values of a cache on their way to a product: where they come from, and what lies between.

Repeated heads, transpositions and scales may be any nodes that move values: they are tried on numbers that name their
places, so that no spelling is taken for another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.backends.lowering.dims import Dim, Dims, bound, terms
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.matching.attention_scores import NoMatch, is_float_cast
from sift_onnx.backends.lowering.matching.numbers import times_number

__all__ = ["Appended", "find_appended", "repeats_heads"]

_Places = npt.NDArray[np.int64]
# Nodes between a concatenation and a product; exporters need eight at most.
_MOST_NODES = 16
_STAYING = ("Identity", "Concat", "Cast", "Mul", "Div")
_MOVING = ("Transpose", "Reshape", "Unsqueeze", "Expand", "Identity", "Concat")
# Sequences and tokens that spellings are tried with.
_SEQUENCES, _TOKENS = 3, 5


@dataclass(frozen=True)
class Appended:
    """Past and new keys or values, and the nodes from where they are joined to the product.

    Attributes:
        past: name of the past.
        new: of the new tokens; empty where there are none.
        present: of both; empty likewise.
        dims: of both.
        nodes: indices, those of the first ones last.
        starts: where new tokens are written in a past of a fixed length; empty where they are appended to it.
    """

    past: str
    new: str
    present: str
    dims: Dims
    nodes: tuple[int, ...]
    starts: str = ""


def find_appended(graph: GraphView, name: str) -> tuple[Appended, float]:
    """The concatenation that an operand of a product is made of, and the number that it is multiplied by."""
    nodes: list[int] = []
    scale = 1.0
    present = ""
    for _ in range(_MOST_NODES):
        present = name if name in graph.outputs else present
        index = graph.producers.get(name)
        if index is None:
            return _input(graph, name, tuple(nodes)), scale
        node = graph.nodes[index]
        nodes.append(index)
        if is_standard_op(node, "Concat") and len(node.input) > 1:
            return _concatenation(graph, index, tuple(nodes), present), scale
        if is_standard_op(node, "TensorScatter"):
            return _scattered(graph, index, tuple(nodes)), scale
        if is_standard_op(node, *_MOVING) or is_float_cast(graph, node):
            name = node.input[0]
            # Between the concatenation and the output, values stay what they are.
            present = present if node.op_type in ("Identity", "Cast") else ""
            continue
        name, factor = times_number(graph, index)
        scale *= factor
        if not name:
            raise NoMatch
    raise NoMatch


def _input(graph: GraphView, name: str, nodes: tuple[int, ...]) -> Appended:
    """Keys or values that are an input of the model."""
    dims = graph.dims(name)
    if name not in graph.inputs or dims is None or len(dims) != 4 or graph.elem_type(name) != DType.FLOAT32.onnx_type:
        raise NoMatch
    return Appended(name, "", "", dims, nodes)


def _scattered(graph: GraphView, index: int, nodes: tuple[int, ...]) -> Appended:
    """New tokens at given places of an input of a fixed length."""
    node = graph.nodes[index]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    past, new, starts = [*node.input, ""][:3]
    dims = graph.dims(past)
    if past not in graph.inputs or node.output[0] not in graph.outputs or dims is None or len(dims) != 4:
        raise NoMatch
    if attributes.get("mode", b"linear") != b"linear" or attributes.get("axis", -2) % 4 != 2 or not starts:
        raise NoMatch
    if starts in graph.constants or graph.elem_type(past) != DType.FLOAT32.onnx_type:
        raise NoMatch
    return Appended(past, new, node.output[0], dims, nodes, starts)


def _concatenation(graph: GraphView, index: int, nodes: tuple[int, ...], present: str) -> Appended:
    node = graph.nodes[index]
    if len(node.input) != 2 or not present:
        raise NoMatch
    past, before = _from_input(graph, node.input[0])
    dims = graph.dims(present)
    if past not in graph.inputs or dims is None or len(dims) != 4:
        raise NoMatch
    if {graph.elem_type(past), graph.elem_type(present)} != {DType.FLOAT32.onnx_type}:
        raise NoMatch
    axis = next(a.i for a in node.attribute if a.name == "axis")
    known = graph.dims(past) or ()
    if axis % 4 != 2 or len(known) != 4:
        raise NoMatch
    return Appended(past, node.input[1], present, (known[0], known[1], dims[2], known[3]), (*nodes, *before))


def _from_input(graph: GraphView, name: str) -> tuple[str, list[int]]:
    """The value before nodes that change nothing, and those that only this is read by."""
    nodes = []
    while (index := graph.producers.get(name)) is not None:
        node = graph.nodes[index]
        if not is_standard_op(node, "Identity") and not (is_standard_op(node, "Concat") and len(node.input) == 1):
            break
        if len(graph.readers.get(name, ())) == 1:
            nodes.append(index)
        name = node.input[0]
    return name, nodes


def repeats_heads(
    graph: GraphView,
    appended: Appended,
    heads: int,
    is_turned: bool,
    is_flat: bool = False,
    may_stay: bool = False,
) -> bool:
    """Whether the nodes behind a concatenation repeat its heads for ``heads`` ones, and exchange the last two axes.

    A single head need not be repeated: products do that.

    Args:
        graph: the model.
        appended: the concatenation.
        heads: of the product.
        is_turned: whether the last two axes are exchanged.
        is_flat: whether sequences and heads become one axis.
        may_stay: whether what reads them repeats heads itself.
    """
    _, key_heads, _, depth = appended.dims
    assert isinstance(key_heads, int) and isinstance(depth, int)
    known = _known_at(appended.dims[0], _SEQUENCES) | _known_at(appended.dims[2], _TOKENS)
    sizes = (known.get(str(appended.dims[0]), appended.dims[0]), key_heads, _TOKENS, depth)
    if not isinstance(sizes[0], int):
        return False
    places = np.arange(_TOKENS * key_heads * depth, dtype=np.int64).reshape(1, key_heads, _TOKENS, depth)
    places = np.broadcast_to(places, (sizes[0], *places.shape[1:]))
    places = places + (np.arange(sizes[0]) * 1_000_003)[:, None, None, None]
    stays, wanted = places, np.repeat(places, heads // key_heads, axis=1)
    for index in reversed(appended.nodes):
        if index == graph.producers.get(appended.present) or graph.nodes[index].op_type in _STAYING:
            continue
        places = _moved(graph, index, places, known)
        # What has sizes of its own names is what later targets are made of.
        made = graph.dims(graph.nodes[index].output[0]) or ()
        pairs = zip(made, places.shape, strict=False)
        known |= {size: count for size, count in pairs if isinstance(size, str) and size not in known}
    if is_turned:
        wanted = wanted.swapaxes(2, 3)
    if is_flat:
        wanted = wanted.reshape(-1, *wanted.shape[2:])
    elif places.ndim == 4 and places.shape[1] == 1:
        places = np.broadcast_to(places, (places.shape[0], heads, *places.shape[2:]))
    return np.array_equal(places, wanted) or (may_stay and np.array_equal(places, stays))


def _known_at(size: Dim, count: int) -> dict[str, int]:
    """Numbers for the names in a size that make it ``count``; none where that is not to be had."""
    names = terms(size)
    if not names or not all(isinstance(name, str) for name in names):
        return {}
    known = {str(name): 1 for name in names}
    rest = bound(size, known)
    assert isinstance(rest, int)
    return known | {str(names[0]): 1 + count - rest} if rest <= count else {}


def _moved(graph: GraphView, index: int, places: _Places, known: dict[str, int]) -> _Places:
    node = graph.nodes[index]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    match node.op_type:
        case "Transpose":
            return places.transpose(attributes.get("perm") or range(places.ndim)[::-1])
        case "Unsqueeze":
            axes = attributes.get("axes") or graph.vector(node.input[1]) or ()
            return np.expand_dims(places, tuple(axis for axis in axes if isinstance(axis, int)))
        case "Expand":
            target = [1 if size is None else size for size in _target(graph, node.input[1], known)]
            return np.broadcast_to(places, np.broadcast_shapes(places.shape, tuple(target)))
    wanted = _target(graph, node.input[1], known)
    if attributes.get("allowzero", 0) and 0 in wanted:
        raise NoMatch
    sizes = [places.shape[axis] if size == 0 else -1 if size is None else size for axis, size in enumerate(wanted)]
    return places.reshape(sizes)


def _target(graph: GraphView, name: str, known: dict[str, int]) -> list[int | None]:
    """Elements of a tensor of sizes; None for those that are not known."""
    vector = graph.vector(name)
    if vector is not None:
        return [_number(size, known) for size in vector]
    index = graph.producers.get(name)
    node = graph.nodes[index] if index is not None else None
    if node is not None and is_standard_op(node, "Concat"):
        return [size for part in node.input for size in _target(graph, part, known)]
    dims = graph.dims(name)
    count = dims[0] if dims else 1
    if not isinstance(count, int):
        raise NoMatch
    return [None] * count


def _number(size: Dim, known: dict[str, int]) -> int | None:
    found = bound(size, known)
    return found if isinstance(found, int) else None
