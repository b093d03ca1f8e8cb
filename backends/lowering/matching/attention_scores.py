"""The scores of attention: what exporters compute between the product of queries and keys and the softmax.

The way is followed from the softmax back to the product, through masks, numbers, caps, casts and roundings to integers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import onnx

from sift_onnx.backends.lowering.dims import Dims
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.matching.numbers import times_number
from sift_onnx.backends.lowering.specs import Rounding

__all__ = ["BYTES", "MOST_NODES", "NoMatch", "Scores", "is_float_cast", "rounding_of", "scores_before"]

# Between a softmax and a product: exporters need ten at most.
MOST_NODES = 24
# Integers that scores are quantized to.
BYTES = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
_ROUNDED = (*BYTES, onnx.TensorProto.INT16, onnx.TensorProto.UINT16)
# What exporters put in the place of scores that do not count.
_HIDDEN = -1e30
_FLOAT = DType.FLOAT32.onnx_type


class NoMatch(Exception):  # noqa: N818 - an answer, not an error
    """The graph is something else than what is looked for."""


@dataclass
class Scores:
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


def scores_before(graph: GraphView, softmax: int) -> Scores:
    """From the softmax back to the product of queries and keys."""
    node = graph.nodes[softmax]
    dims = graph.dims(node.input[0])
    axis = next((a.i for a in node.attribute if a.name == "axis"), -1 if graph.opset >= 13 else 1)
    if dims is None or len(dims) not in (3, 4) or axis not in (-1, len(dims) - 1):
        raise NoMatch
    if graph.elem_type(node.input[0]) != _FLOAT:
        raise NoMatch
    found = Scores(dims)
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
            quantizer, rounding = rounding_of(graph, index)
            if found.softcap or found.head_scales or found.scale <= 0:
                raise NoMatch
            own = replace(rounding, steps=rounding.steps / found.scale, scale=rounding.scale * found.scale)
            (found.rounded if found.masks else found.masked).insert(0, own)
            found.between.append(quantizer)
            name = graph.nodes[quantizer].input[0]
            continue
        name = _before(graph, index, found)


def rounding_of(graph: GraphView, index: int) -> tuple[int, Rounding]:
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


def _before(graph: GraphView, index: int, found: Scores) -> str:
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
    for _ in range(MOST_NODES):
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
