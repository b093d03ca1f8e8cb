"""Multi-head attention as exporters write it: softmax(scale q k^T + mask) v, between splitting and merging the heads.

Only these nodes are looked for. How heads are split and merged is up to the operators around them, which move values:
queries, keys and values may come in any order of axes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import onnx

from sift_onnx.backends.lowering.attention_masks import joined_mask
from sift_onnx.backends.lowering.dims import Dims
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.numbers import times_number
from sift_onnx.backends.lowering.specs import Attention, AttentionRoundings, Rounding

__all__ = [
    "AttentionMatch",
    "NoMatch",
    "find_attentions",
    "is_float_cast",
    "is_inside",
    "scores_before",
    "unscaled",
    "weighed_behind",
]


# Operators that sizes are computed with.
_SIZES = ("Shape", "Slice", "Gather", "Concat", "Unsqueeze", "Squeeze", "Cast", "Mul", "Div", "Sqrt", "Reshape")
# Between a softmax and a product: exporters need ten at most.
_MOST_NODES = 24
# What exporters put in the place of scores that do not count.
_HIDDEN = -1e30
_FLOAT = DType.FLOAT32.onnx_type
# Integers that scores are quantized to.
_BYTES = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
_ROUNDED = (*_BYTES, onnx.TensorProto.INT16, onnx.TensorProto.UINT16)


class NoMatch(Exception):  # noqa: N818 - an answer, not an error
    """The graph is something else than what is looked for."""


@dataclass(frozen=True)
class AttentionMatch:
    """One occurrence.

    Attributes:
        spec: what it computes.
        operands: names of queries, keys and values; keys come as [..., depth, tokens].
        mask: name of what is added to the scores, which may be a constant; empty if nothing is.
        softmax: index of its softmax.
        nodes: indices of all of its nodes, ascending; the last one makes the result.
        is_crossed: whether keys are of other tokens than queries, as far as is known.
    """

    spec: Attention
    operands: tuple[str, str, str]
    mask: str
    softmax: int
    nodes: tuple[int, ...]
    is_crossed: bool = False


@dataclass
class _Scores:
    """What lies between a softmax and the product of queries and keys.

    Attributes:
        dims: of the scores.
        product: index of the product.
        scale: what multiplies it, before it is capped.
        head_scales: what multiplies the scores of each head, besides; none are ones.
        softcap: a score s is capped to ``softcap tanh(s / softcap)``; 0 leaves it.
        masks: what is added to the scores, and their sizes there.
        hidden: booleans that say which scores count, the number in the place of the others, and whether it is the other
            way round.
        rounded: what quantizing leaves of scores before the mask, in the order of the graph, as multiples of ``scale``.
        masked: likewise behind the mask, or of scores without one.
        is_reshaped: whether they have other axes in between.
        parted: sizes behind the last reshape.
        between: indices of the nodes between.
    """

    dims: Dims
    product: int = -1
    scale: float = 1.0
    head_scales: tuple[float, ...] = ()
    softcap: float = 0.0
    masks: list[tuple[str, Dims]] = field(default_factory=list)
    hidden: list[tuple[str, float, bool]] = field(default_factory=list)
    rounded: list[Rounding] = field(default_factory=list)
    masked: list[Rounding] = field(default_factory=list)
    is_reshaped: bool = False
    parted: Dims = ()
    between: list[int] = field(default_factory=list)


def find_attentions(graph: GraphView) -> list[AttentionMatch]:
    """All occurrences whose intermediate values no other node reads."""
    found = (_match(graph, i) for i, node in enumerate(graph.nodes) if is_standard_op(node, "Softmax"))
    return [attention for attention in found if attention is not None]


def _match(graph: GraphView, softmax: int) -> AttentionMatch | None:
    try:
        return _attention(graph, softmax)
    except (NoMatch, ArithmeticError, LookupError, TypeError, ValueError):
        # But for the first, nodes that contradict themselves; onnxruntime says what is wrong with them.
        return None


def _attention(graph: GraphView, softmax: int) -> AttentionMatch:
    found = scores_before(graph, softmax)
    weighed, nan_to_zero, lower, of_weights = weighed_behind(graph, softmax)
    scored = found.product
    if nan_to_zero and of_weights:
        raise NoMatch
    if found.hidden or found.softcap or len(graph.nodes[scored].input) != 2 or len(graph.nodes[weighed].input) != 2:
        raise NoMatch
    nodes = {softmax, scored, weighed, *found.between, *lower}
    queries, of_queries = unscaled(graph, graph.nodes[scored].input[0], nodes)
    keys, of_keys = unscaled(graph, graph.nodes[scored].input[1], nodes)
    values = graph.nodes[weighed].input[1]
    *batch, tokens, depth = graph.dims(queries) or ()
    *others, value_depth = graph.dims(values) or ()
    if len(batch) not in (1, 2) or others[:-1] != batch or graph.dims(keys) != (*batch, depth, *others[-1:]):
        raise NoMatch
    key_tokens = others[-1]
    if key_tokens != tokens and isinstance(key_tokens, tuple) and key_tokens[0] == "sum":
        # A cache and the new tokens: to move all of it at every run would cost more than it saves.
        raise NoMatch
    heads = batch[1] if len(batch) == 2 else 1
    if not isinstance(heads, int) or not isinstance(depth, int) or not isinstance(value_depth, int):
        raise NoMatch
    if found.is_reshaped and graph.dims(graph.nodes[scored].output[0]) != found.dims:
        raise NoMatch
    # After a mask of unknown sizes, the graph does not know those of the scores.
    found.dims = (*batch, tokens, key_tokens)
    for index in nodes - {weighed}:
        if any(not is_inside(graph, name, nodes) for name in graph.nodes[index].output):
            raise NoMatch
    joined = joined_mask(graph, found.masks, found.dims, f"{graph.nodes[softmax].output[0]}:mask")
    if joined is None:
        raise NoMatch
    mask, repeats = joined
    scale = found.scale * of_queries * of_keys
    roundings = AttentionRoundings(tuple(found.rounded), tuple(found.masked), tuple(of_weights))
    spec = Attention(heads, depth, value_depth, scale, nan_to_zero, repeats, found.head_scales, roundings)
    return AttentionMatch(
        spec, (queries, keys, values), mask, softmax, tuple(sorted(nodes)), is_crossed=key_tokens != tokens
    )


def is_inside(graph: GraphView, name: str, nodes: set[int], most: int = _MOST_NODES) -> bool:
    """Whether only ``nodes`` read a value, what computes sizes for them, and what reads its sizes, which are known."""
    if name in graph.outputs or not most:
        return False
    return all(
        index in nodes
        or index in graph.size_nodes
        or (
            is_standard_op(graph.nodes[index], *_SIZES)
            and all(is_inside(graph, made, nodes, most - 1) for made in graph.nodes[index].output)
        )
        for index in graph.readers.get(name, ())
    )


def unscaled(graph: GraphView, name: str, nodes: set[int]) -> tuple[str, float]:
    """What an operand is a number times of, and the number; the nodes between join ``nodes``."""
    scale = 1.0
    while (index := graph.producers.get(name)) is not None and graph.is_only_read_by(name, nodes):
        operand, factor = times_number(graph, index)
        if not operand or name in graph.constants:
            break
        nodes.add(index)
        name, scale = operand, scale * factor
    return name, scale


def scores_before(graph: GraphView, softmax: int) -> _Scores:
    """From the softmax back to the product of queries and keys."""
    node = graph.nodes[softmax]
    dims = graph.dims(node.input[0])
    axis = next((a.i for a in node.attribute if a.name == "axis"), -1 if graph.opset >= 13 else 1)
    if dims is None or len(dims) not in (3, 4) or axis not in (-1, len(dims) - 1):
        raise NoMatch
    if graph.elem_type(node.input[0]) != _FLOAT:
        raise NoMatch
    found = _Scores(dims)
    name = node.input[0]
    while True:
        index = graph.producers.get(name, -1)
        if index < 0:
            raise NoMatch
        node = graph.nodes[index]
        if is_standard_op(node, "MatMul"):
            found.product = index
            return found
        found.between.append(index)
        if is_standard_op(node, "DequantizeLinear"):
            quantizer, rounding = _rounding(graph, index)
            if found.softcap or found.head_scales or found.scale <= 0:
                raise NoMatch
            own = replace(rounding, steps=rounding.steps / found.scale, scale=rounding.scale * found.scale)
            (found.rounded if found.masks else found.masked).insert(0, own)
            found.between.append(quantizer)
            name = graph.nodes[quantizer].input[0]
            continue
        name = _before(graph, index, found)


def _is_of_bytes(graph: GraphView, softmax: int) -> bool:
    """Whether the operand is dequantized bytes."""
    maker = graph.producers.get(graph.nodes[softmax].input[0])
    if maker is None or not is_standard_op(graph.nodes[maker], "DequantizeLinear"):
        return False
    return graph.elem_type(graph.nodes[maker].input[0]) in _BYTES


def _rounding(graph: GraphView, index: int) -> tuple[int, Rounding]:
    """Of a DequantizeLinear: the QuantizeLinear of the same scale before it, and what both leave of a number."""
    node = graph.nodes[index]
    quantizer = graph.producers.get(node.input[0], -1)
    if quantizer < 0 or not is_standard_op(graph.nodes[quantizer], "QuantizeLinear"):
        raise NoMatch
    kind = graph.elem_type(node.input[0])
    if kind not in _ROUNDED:
        raise NoMatch
    limits = np.iinfo(onnx.helper.tensor_dtype_to_np_dtype(kind))
    found = []
    for own in (graph.nodes[quantizer], node):
        scale = graph.values_of(own.input[1])
        has_zero = len(own.input) > 2 and own.input[2]
        zero = graph.values_of(own.input[2]) if has_zero else np.zeros(1, limits.dtype)
        if scale is None or zero is None or scale.size != 1 or zero.size != 1 or scale.dtype != np.float32:
            raise NoMatch
        found.append((float(scale.reshape(-1)[0]), int(zero.reshape(-1)[0])))
    (scale_of, zero_of), other = found
    if other != found[0] or not (0 < scale_of < math.inf):
        raise NoMatch
    return quantizer, Rounding(1 / scale_of, scale_of, float(limits.min - zero_of), float(limits.max - zero_of))


def _before(graph: GraphView, index: int, found: _Scores) -> str:
    """The scores that a node adds a mask to, multiplies by a number, or leaves as they are."""
    node = graph.nodes[index]
    is_unscaled = found.scale == 1 and not found.softcap and not found.head_scales
    if is_standard_op(node, "Add") and is_unscaled:
        scores = next((n for n in node.input if _leads_to_product(graph, n)), "")
        mask = next((n for n in node.input if n != scores), "")
        if not scores or not mask:
            raise NoMatch
        found.masks.append((mask, graph.dims(scores) or ()))
        return scores
    if is_standard_op(node, "Where") and is_unscaled:
        hides, scores = _replaced(graph, node)
        number = graph.number(node.input[1 if hides else 2])
        # Beside it no score counts, so that it may be added.
        if number is None or number > _HIDDEN:
            raise NoMatch
        found.hidden.append((node.input[0], number, hides))
        return scores
    if is_standard_op(node, "Reshape"):
        found.is_reshaped = True
        found.parted = found.parted or graph.dims(node.output[0]) or ()
        return node.input[0]
    if is_float_cast(graph, node):
        return node.input[0]
    if is_standard_op(node, "Tanh") and found.scale > 0 and not found.softcap and not found.head_scales:
        # What it is multiplied by is the cap; what multiplies its operand is that of the product.
        found.softcap = found.scale
        return node.input[0]
    scores, factor = times_number(graph, index)
    if scores:
        found.scale *= factor
        return scores
    scores, factors = _times_heads(graph, index)
    if not scores or found.head_scales or found.softcap:
        raise NoMatch
    found.head_scales = factors
    return scores


def _times_heads(graph: GraphView, index: int) -> tuple[str, tuple[float, ...]]:
    """Of a node that makes the scores of each head times a number: their name and the numbers; no name otherwise."""
    node = graph.nodes[index]
    dims = graph.dims(node.output[0]) or ()
    if len(dims) != 4 or not is_standard_op(node, "Mul"):
        return "", ()
    for scores, factors in (node.input, reversed(node.input)):
        if factors not in graph.constants and not (factors in graph.derived and graph.fold(factors)):
            continue
        values = graph.values_of(factors)
        if values is None or values.dtype != np.float32 or values.shape[-3:] != (dims[1], 1, 1):
            continue
        if values.size == dims[1] and np.isfinite(values).all():
            return scores, tuple(map(float, values.reshape(-1)))
    return "", ()


def _leads_to_product(graph: GraphView, name: str) -> bool:
    """Whether ``name`` is a matrix product, or made of one as scores are."""
    for _ in range(_MOST_NODES):
        index = graph.producers.get(name)
        if index is None or name in graph.constants or graph.only_reader(name) is None:
            return False
        node = graph.nodes[index]
        if is_standard_op(node, "MatMul"):
            return True
        if is_standard_op(node, "Reshape", "Tanh", "DequantizeLinear", "QuantizeLinear") or is_float_cast(graph, node):
            name = node.input[0]
        elif is_standard_op(node, "Where"):
            _, name = _replaced(graph, node)
        elif is_standard_op(node, "Add"):
            return any(_leads_to_product(graph, n) for n in node.input)
        else:
            name = times_number(graph, index)[0] or _times_heads(graph, index)[0]
    return False


def _replaced(graph: GraphView, node: onnx.NodeProto) -> tuple[bool, str]:
    """Of a node that puts a number in the place of some scores: whether it does where a boolean is true; the scores."""
    hides = graph.number(node.input[1]) is not None
    return hides, node.input[2 if hides else 1]


def is_float_cast(graph: GraphView, node: onnx.NodeProto) -> bool:
    """Whether a node casts floats to floats, as exporters write a softmax in the highest precision."""
    return is_standard_op(node, "Cast") and graph.elem_type(node.input[0]) == graph.elem_type(node.output[0]) == _FLOAT


def weighed_behind(
    graph: GraphView, softmax: int, reshaped: bool = False
) -> tuple[int, bool, list[int], list[Rounding]]:
    """The product of weights and values, whether NaN became zero before it, the nodes between, and their roundings.

    Args:
        graph: the model.
        softmax: index of the softmax.
        reshaped: whether weights may get other axes between.
    """
    weights = graph.nodes[softmax].output[0]
    readers = [graph.nodes[i] for i in graph.readers.get(weights, [])]
    between: list[int] = []
    nan_to_zero = len(readers) == 2
    if nan_to_zero:
        tested = next((node for node in readers if node.op_type == "IsNaN"), None)
        chosen = next((node for node in readers if node.op_type == "Where"), None)
        if tested is None or chosen is None or list(chosen.input)[::2] != [tested.output[0], weights]:
            raise NoMatch
        if graph.number(chosen.input[1]) != 0:
            raise NoMatch
        between = [graph.producers[tested.output[0]], graph.producers[chosen.output[0]]]
        weights = chosen.output[0]
    index = graph.only_reader(weights)
    roundings: list[Rounding] = []
    while index is not None and (
        is_float_cast(graph, graph.nodes[index])
        or is_standard_op(graph.nodes[index], "QuantizeLinear", "DequantizeLinear")
        or (reshaped and is_standard_op(graph.nodes[index], "Reshape"))
    ):
        if is_standard_op(graph.nodes[index], "DequantizeLinear"):
            rounding = _rounding(graph, index)[1]
            is_of_bytes = graph.elem_type(graph.nodes[index].input[0]) in _BYTES and _is_of_bytes(graph, softmax)
            if not roundings and is_of_bytes and rounding.steps >= 1:
                # So does onnxruntime's QLinearSoftmax, of bytes from bytes.
                rounding = replace(rounding, steps=float(math.floor(rounding.steps)))
            roundings.append(rounding)
        between.append(index)
        weights = graph.nodes[index].output[0]
        index = graph.only_reader(weights)
    if index is None or graph.nodes[index].op_type != "MatMul" or graph.nodes[index].input[0] != weights:
        raise NoMatch
    return index, nan_to_zero, between, roundings
