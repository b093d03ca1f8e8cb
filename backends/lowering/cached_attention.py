"""Attention to a cache as exporters spell it: past and new keys are concatenated, repeated and multiplied.

The concatenations have an input of the model as their first operand, and are its outputs. What lies between them and
the products (repeated heads, transpositions, scales) may be any nodes that move values: they are tried on numbers that
name their places, so that no spelling is taken for another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.backends.lowering.attention import (
    NoMatch,
    is_inside,
    scores_before,
    unscaled,
    weighed_behind,
)
from sift_onnx.backends.lowering.dims import Dim, Dims, bound
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.numbers import times_number
from sift_onnx.backends.lowering.specs.decoding import CachedAttention, CacheNames, MaskPart

__all__ = ["CachedMatch", "find_cached_attentions"]

_Places = npt.NDArray[np.int64]
# Nodes between a concatenation and a product; exporters need eight at most.
_MOST_NODES = 16
# Sequences and tokens that spellings are tried with.
_SEQUENCES, _TOKENS = 3, 5


@dataclass(frozen=True)
class CachedMatch:
    """One occurrence.

    Attributes:
        spec: what it computes.
        operands: names of queries, and of keys and values of the new tokens.
        cache: its cache and masks.
        softmax: index of its softmax.
        nodes: indices of all of its nodes, ascending; the last one makes the result.
    """

    spec: CachedAttention
    operands: tuple[str, str, str]
    cache: CacheNames
    softmax: int
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class _Appended:
    """A concatenation of past and new keys or values, and the nodes from it to the product."""

    past: str
    new: str
    present: str
    dims: Dims
    nodes: tuple[int, ...]


def find_cached_attentions(graph: GraphView) -> list[CachedMatch]:
    """All occurrences whose intermediate values no other node reads."""
    matches = []
    for index, node in enumerate(graph.nodes):
        if is_standard_op(node, "Softmax", "Attention"):
            try:
                matches.append((_of_softmax if node.op_type == "Softmax" else _of_operator)(graph, index))
            except (NoMatch, ArithmeticError, LookupError, TypeError, ValueError):
                # But for the first, nodes that contradict themselves; onnxruntime says what is wrong with them.
                continue
    return matches


def _of_softmax(graph: GraphView, softmax: int) -> CachedMatch:
    found = scores_before(graph, softmax)
    weighed, nan_to_zero, lower = weighed_behind(graph, softmax)
    scored = found.product
    nodes = {softmax, scored, weighed, *found.between, *lower}
    queries, of_queries = unscaled(graph, graph.nodes[scored].input[0], nodes)
    keys, of_keys = _appended(graph, graph.nodes[scored].input[1])
    values, of_values = _appended(graph, graph.nodes[weighed].input[1])
    if of_values != 1 or found.is_reshaped:
        raise NoMatch
    masks = (*(MaskPart(name) for name, _ in found.masks), *(MaskPart(*part) for part in found.hidden))
    scale = found.scale * of_queries * of_keys
    match = _Found(queries, keys, values, masks, scale, softmax, nodes, is_turned=True, nan_to_zero=nan_to_zero)
    return _checked(graph, match, weighed)


def _of_operator(graph: GraphView, index: int) -> CachedMatch:
    """Attention of opset 23 to keys and values that were concatenated before it, as torch exports it."""
    node = graph.nodes[index]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    inputs = [*node.input, *[""] * 7][:7]
    used = any(name and (graph.readers.get(name) or name in graph.outputs) for name in node.output[1:])
    if any(inputs[4:]) or used or attributes.get("softcap") or attributes.get("is_causal"):
        raise NoMatch
    if attributes.get("softmax_precision", 1) != 1:
        raise NoMatch
    keys, of_keys = _appended(graph, inputs[1])
    values, of_values = _appended(graph, inputs[2])
    depth = (graph.dims(inputs[0]) or ("",))[-1]
    if of_values != 1 or not isinstance(depth, int):
        raise NoMatch
    scale = of_keys * (attributes.get("scale") or depth**-0.5)
    masks = (MaskPart(inputs[3]),) if inputs[3] else ()
    match = _Found(inputs[0], keys, values, masks, scale, index, {index}, is_turned=False)
    return _checked(graph, match, index)


@dataclass(frozen=True)
class _Found:
    """What was found of an attention: operands, masks, scale, the node it is named after, and all of its nodes."""

    queries: str
    keys: _Appended
    values: _Appended
    masks: tuple[MaskPart, ...]
    scale: float
    named: int
    nodes: set[int]
    is_turned: bool
    nan_to_zero: bool = False


def _checked(graph: GraphView, found: _Found, last: int) -> CachedMatch:
    """The match, whose result node ``last`` makes, if its sizes fit and no other node reads what is between."""
    keys, values, nodes = found.keys, found.values, found.nodes
    batch, heads, tokens, depth = graph.dims(found.queries) or ()
    _, key_heads, _, key_depth = keys.dims
    _, value_heads, _, value_depth = values.dims
    if not (isinstance(heads, int) and isinstance(key_heads, int) and isinstance(value_depth, int)):
        raise NoMatch
    if not isinstance(depth, int) or (key_heads, key_depth) != (value_heads, depth) or heads % key_heads:
        raise NoMatch
    for appended, is_turned in ((keys, found.is_turned), (values, False)):
        if not _repeats(graph, appended, heads, is_turned):
            raise NoMatch
        new = graph.dims(appended.new)
        if new is None or len(new) != 4 or new[1] != key_heads or new[2] != tokens or batch != new[0]:
            raise NoMatch
        nodes.update(appended.nodes)
    for index in nodes - {last}:
        for name in graph.nodes[index].output:
            if name not in (keys.present, values.present) and not is_inside(graph, name, nodes):
                raise NoMatch
    ranks = [len(graph.dims(part.name) or ()) for part in found.masks]
    if any(not 1 <= rank <= 4 for rank in ranks) or any(part.name in graph.constants for part in found.masks):
        raise NoMatch
    spec = CachedAttention(heads, key_heads, depth, value_depth, found.scale, nan_to_zero=found.nan_to_zero)
    cache = CacheNames(keys.past, values.past, keys.present, values.present, found.masks)
    # After a mask of unknown sizes, the graph does not know how many tokens there are.
    graph.learn(graph.nodes[last].output[0], (batch, heads, tokens, value_depth))
    return CachedMatch(spec, (found.queries, keys.new, values.new), cache, found.named, tuple(sorted(nodes)))


def _appended(graph: GraphView, name: str) -> tuple[_Appended, float]:
    """The concatenation that an operand of a product is made of, and the number that it is multiplied by."""
    nodes: list[int] = []
    scale = 1.0
    for _ in range(_MOST_NODES):
        index = graph.producers.get(name)
        if index is None:
            raise NoMatch
        node = graph.nodes[index]
        nodes.append(index)
        if is_standard_op(node, "Concat"):
            return _concatenation(graph, index, tuple(nodes)), scale
        if is_standard_op(node, "Transpose", "Reshape", "Unsqueeze", "Expand", "Identity"):
            name = node.input[0]
            continue
        name, factor = times_number(graph, index)
        scale *= factor
        if not name:
            raise NoMatch
    raise NoMatch


def _concatenation(graph: GraphView, index: int, nodes: tuple[int, ...]) -> _Appended:
    node = graph.nodes[index]
    present = node.output[0]
    if len(node.input) != 2 or present not in graph.outputs:
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
    return _Appended(past, node.input[1], present, (known[0], known[1], dims[2], known[3]), (*nodes, *before))


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


def _repeats(graph: GraphView, appended: _Appended, heads: int, is_turned: bool) -> bool:
    """Whether the nodes behind a concatenation repeat its heads for ``heads`` ones, and exchange the last two axes."""
    _, key_heads, _, depth = appended.dims
    assert isinstance(key_heads, int) and isinstance(depth, int)
    known = {
        size: count
        for size, count in zip(appended.dims, (_SEQUENCES, 0, _TOKENS, 0), strict=True)
        if isinstance(size, str) and count
    }
    sizes = (known.get(str(appended.dims[0]), appended.dims[0]), key_heads, _TOKENS, depth)
    if not isinstance(sizes[0], int):
        return False
    places = np.arange(_TOKENS * key_heads * depth, dtype=np.int64).reshape(1, key_heads, _TOKENS, depth)
    places = np.broadcast_to(places, (sizes[0], *places.shape[1:]))
    places = places + (np.arange(sizes[0]) * 1_000_003)[:, None, None, None]
    wanted = np.repeat(places, heads // key_heads, axis=1)
    for index in reversed(appended.nodes):
        if index == graph.producers[appended.present] or graph.nodes[index].op_type in ("Identity", "Mul", "Div"):
            continue
        if is_standard_op(graph.nodes[index], "Concat"):
            continue
        places = _moved(graph, index, places, known)
        # What has sizes of its own names is what later targets are made of.
        made = graph.dims(graph.nodes[index].output[0]) or ()
        pairs = zip(made, places.shape, strict=False)
        known |= {size: count for size, count in pairs if isinstance(size, str) and size not in known}
    if is_turned:
        wanted = wanted.swapaxes(2, 3)
    return places.shape == wanted.shape and bool(np.array_equal(places, wanted))


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
