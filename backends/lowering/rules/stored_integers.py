"""Constants that a model stores as integers, or quantizes from floats, and dequantizes where a node reads them.

Quantizers write them in many ways. The scale and the zero point may be cast from other types. Floats may be quantized
in the graph, and clipped to fewer bits, as after quantization-aware training. torch divides the bias by its scale and
casts it. Between the DequantizeLinear and the layer, nodes may transpose the weights. All that follows from constants
and is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs

from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered
from sift_onnx.backends.lowering.weights import Floats
from sift_onnx.graphs.constants import array_of

__all__ = [
    "Integers",
    "dequantized_bias",
    "dequantizer_of",
    "fold_dequantized",
    "has_dequantized_weights",
    "weights_of",
]

# Of bias and scale that are one in exact arithmetic: a product of two float32.
_TOLERANCE = 1e-5
# What may stand between the DequantizeLinear and the layer.
_VIEWS = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")


@dataclass(frozen=True)
class Integers:
    """Constant integers and what they stand for.

    Attributes:
        constant: of the model.
        scale: [1], or one for each output channel.
        zero: likewise.
    """

    constant: gs.Constant
    scale: Floats
    zero: npt.NDArray[np.int16]


def dequantizer_of(graph: GraphView, name: str) -> onnx.NodeProto | None:
    """The DequantizeLinear that makes a value of activations; None if another node does."""
    index = graph.producers.get(name)
    if index is None or not is_standard_op(graph.nodes[index], "DequantizeLinear"):
        return None
    node = graph.nodes[index]
    return None if _is_constant(graph, node.input[0]) else node


def has_dequantized_weights(node: NodeView) -> bool:
    """Whether a layer's second input is made of constant integers."""
    return _stored(node.graph, node.input(1)) is not None


def fold_dequantized(node: NodeView) -> None:
    """Make constants of dequantized constants that the node reads, but for weights that kernels take as integers."""
    names = list(node.proto.input)
    if is_standard_op(node.proto, "Conv", "ConvTranspose", "Gemm", "MatMul"):
        if node.op != "ConvTranspose" and dequantizer_of(node.graph, node.input(0)) is not None:
            return
        # Products of floats take integers as they are.
        names = names[1:] if "Conv" in node.op else names[2:]
    for name in names:
        if name and _stored(node.graph, name) is not None:
            node.graph.fold(name)


def weights_of(node: NodeView, axis: int) -> Integers:
    """The integers that a layer's second input is made of.

    Args:
        node: the layer.
        axis: of the layer's input along which scales lie, if there are several.

    Raises:
        NotLowered: scales or zero points are none that the kernels have.
    """
    graph = node.graph
    found = _stored(graph, node.input(1))
    assert found is not None  # has_dequantized_weights() comes before
    reader, views = found
    names = [*reader.input, "", ""]
    scale = graph.folded_values(names[1])
    zero = graph.folded_values(names[2]) if names[2] else np.zeros(1, np.int16)
    if scale is None or scale.dtype != np.float32 or not np.isfinite(scale).all():
        raise NotLowered("the scale of its weights is no constant of finite float32")
    if zero is None:
        raise NotLowered("the zero point of its weights is no constant")
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in reader.attribute}
    constant = graph.constants[names[0]]
    own = int(attributes.get("axis", 1)) % max(len(constant.shape), 1)
    if views:
        constant, own = _moved(graph, constant, own, views)
    if attributes.get("block_size", 0) or (scale.size > 1 and (own != axis or scale.ndim != 1)):
        raise NotLowered("its weights have a scale for each block or input channel; the kernels add them up first")
    return Integers(constant, np.asarray(scale, np.float32).reshape(-1), zero.astype(np.int16).reshape(-1))


def dequantized_bias(node: NodeView, scale: Floats, rows: int) -> tuple[npt.NDArray[np.int32] | None, Floats | None]:
    """A layer's third input: a bias in units of its sums, or else as floats; None for what is not there.

    Args:
        node: the layer.
        scale: of a sum, [rows].
        rows: output channels.

    Raises:
        NotLowered: it is not one constant for each channel.
    """
    name = node.input(2)
    if not name:
        return None, None
    graph = node.graph
    found = _stored(graph, name)
    if found is None or found[1]:
        graph.fold(name)
        return None, node.float_vector(2, rows, "the bias")
    names = [*found[0].input, "", ""]
    values, factor = graph.values_of(names[0]), graph.folded_values(names[1])
    zero = graph.folded_values(names[2]) if names[2] else np.zeros(1)
    if values is None or factor is None or zero is None or values.size != rows or factor.size not in (1, rows):
        raise NotLowered(f"the bias {name!r} is not one constant for each channel")
    if values.dtype == np.int32 and not np.any(zero) and np.allclose(factor.reshape(-1), scale, _TOLERANCE, 0):
        return np.array(values.reshape(-1), np.int32), None
    if zero.size not in (1, rows):
        raise NotLowered(f"the bias {name!r} is not one constant for each channel")
    stored, point, scales = (part.reshape(-1).astype(np.float64) for part in (values, zero, factor))
    return None, np.asarray((stored - point) * scales, np.float32)


def _stored(graph: GraphView, name: str) -> tuple[onnx.NodeProto, list[onnx.NodeProto]] | None:
    """The DequantizeLinear of constants that a value is made by, and what moves its result, in order."""
    views: list[onnx.NodeProto] = []
    while name in graph.producers:
        node = graph.nodes[graph.producers[name]]
        if is_standard_op(node, "DequantizeLinear"):
            return (node, views[::-1]) if _is_constant(graph, node.input[0]) else None
        if not is_standard_op(node, *_VIEWS):
            return None
        if node.op_type == "Cast" and graph.elem_type(node.output[0]) != graph.elem_type(node.input[0]):
            return None
        views.append(node)
        name = node.input[0]
    return None


def _is_constant(graph: GraphView, name: str) -> bool:
    """Whether integers are a constant, or nodes make them of constants."""
    return name in graph.constants or (name in graph.derived and graph.fold(name))


def _moved(
    graph: GraphView, constant: gs.Constant, axis: int, views: Sequence[onnx.NodeProto]
) -> tuple[gs.Constant, int]:
    """A constant after nodes that move it, and where its ``axis`` is then; -1 where that is no axis any more."""
    values: npt.NDArray[Any] = array_of(constant)
    for view in views:
        dims = graph.dims(view.output[0])
        shape = [size for size in dims or () if isinstance(size, int)]
        if dims is None or len(shape) != len(dims):
            raise NotLowered(f"the sizes of its weights after {view.op_type} are not known")
        if view.op_type == "Transpose":
            order = next((list(a.ints) for a in view.attribute if a.name == "perm"), [*range(values.ndim)][::-1])
            values = values.transpose(order)
            axis = order.index(axis) if axis in order else -1
        else:
            axis = _place_after(values.shape, axis, shape)
            values = values.reshape(shape)
    return gs.Constant(constant.name, values), axis


def _place_after(before: Sequence[int], axis: int, after: Sequence[int]) -> int:
    """Where an axis is after a reshape to ``after``; -1 if it is merged with others or divided."""
    if axis < 0:
        return -1
    outer, size = int(np.prod(before[:axis])), before[axis]
    places = [i for i, own in enumerate(after) if own == size and int(np.prod(after[:i])) == outer]
    return places[-1] if places else -1
