"""ConvInteger and MatMulInteger with what makes numbers of their sums, as one layer.

Exporters of Neural Magic's models write ``Mul(Cast(Add(ConvInteger(x, w), bias)), scale)``, with an int32 bias and one
scale, or ``Add(Mul(Cast(MatMulInteger(x, w)), scale), bias)`` with floats. onnxruntime's dynamic quantizer writes the
latter with ``scale = Mul(x scale, w scale)``, where DynamicQuantizeLinear makes x and its scale of floats in the run;
its optimizer makes one node of all that, DynamicQuantizeMatMul or MatMulIntegerToFloat.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.weights import Floats
from sift_onnx.operators.domains import MICROSOFT

__all__ = ["IntegerMatch", "find_integer_layers"]

_X, _WEIGHT, _X_ZERO, _WEIGHT_ZERO = range(4)


@dataclass(frozen=True)
class IntegerMatch:
    """One occurrence.

    Attributes:
        layer: index of the node that multiplies.
        nodes: indices of all, ascending; the last one makes the result.
        operand: what is multiplied: bytes, or the floats that DynamicQuantizeLinear makes bytes of.
        is_dynamic: whether it is floats.
        x_zero: the byte or int8 that stands for zero; None if it is dynamic.
        weight: name of the integers.
        weight_zero: of the integers, as they are stored.
        scale: of a sum, or of the weights if it is dynamic; [1] or one for each output channel.
        bias: int32 that is added to sums, likewise.
        shift: that is added to the result, likewise.
    """

    layer: int
    nodes: tuple[int, ...]
    operand: str
    is_dynamic: bool
    x_zero: npt.NDArray[np.generic] | None
    weight: str
    weight_zero: npt.NDArray[np.int16]
    scale: Floats
    bias: npt.NDArray[np.int32] | None = None
    shift: Floats | None = None


def find_integer_layers(graph: GraphView) -> list[IntegerMatch]:
    """All occurrences whose sums no other node reads."""
    found = []
    for index, node in enumerate(graph.nodes):
        if is_standard_op(node, "ConvInteger", "MatMulInteger"):
            found.append(_of_nodes(graph, index))
        elif node.domain == MICROSOFT and node.op_type == "DynamicQuantizeMatMul":
            found.append(_dynamic_product(graph, index))
        elif node.domain == MICROSOFT and node.op_type == "MatMulIntegerToFloat":
            found.append(_product_to_float(graph, index))
    return [match for match in found if match is not None]


def _of_nodes(graph: GraphView, layer: int) -> IntegerMatch | None:
    node = graph.nodes[layer]
    weight = node.input[_WEIGHT]
    constant = graph.constants.get(weight)
    if constant is None or len(constant.shape) < 2:
        return None
    # What is constant for each output channel: [rows], or [rows, 1, 1] before two more axes.
    rows = int(constant.shape[0] if node.op_type == "ConvInteger" else constant.shape[-1])
    tail = len(constant.shape) - 2 if node.op_type == "ConvInteger" else 0
    chain = _Chain(graph, layer, rows, tail)
    bias = chain.constant_operand("Add", np.int32)
    if not chain.follow("Cast", onnx.TensorProto.FLOAT):
        return None
    zero = _zero_of_weights(graph, node, _WEIGHT_ZERO)
    if zero is None:
        return None
    dynamic = _quantizer(graph, node)
    scale = chain.dynamic_scale(graph.nodes[dynamic].output[1]) if dynamic is not None else None
    if scale is None:
        dynamic = None
        scale = chain.constant_operand("Mul", np.float32)
    if scale is None or not np.isfinite(scale).all():
        return None
    x_zero = None if dynamic is not None else _zero_of_operand(graph, node)
    if dynamic is None and x_zero is None:
        return None
    if dynamic is not None and bias is not None:
        return None
    shift = chain.constant_operand("Add", np.float32)
    if shift is not None and not np.isfinite(shift).all():
        return None
    operand = node.input[_X] if dynamic is None else graph.nodes[dynamic].input[0]
    nodes = tuple(sorted(chain.nodes))
    if nodes[-1] != chain.last:
        return None
    return IntegerMatch(layer, nodes, operand, dynamic is not None, x_zero, weight, zero,
                        _floats(scale), None if bias is None else bias.astype(np.int32),
                        None if shift is None else _floats(shift))  # fmt: skip


class _Chain:
    """Nodes after a layer, of which each is the only one that reads what the one before it makes."""

    def __init__(self, graph: GraphView, layer: int, rows: int, tail: int) -> None:
        self.graph, self.rows, self.tail = graph, rows, tail
        self.nodes, self.last = {layer}, layer

    def follow(self, op: str, to: int) -> bool:
        """Whether a Cast to this type comes next; it joins."""
        index = self._next(op)
        if index is None:
            return False
        kinds = [a.i for a in self.graph.nodes[index].attribute if a.name == "to"]
        return kinds == [to] and self._join(index)

    def constant_operand(self, op: str, dtype: type[np.generic]) -> npt.NDArray[np.generic] | None:
        """The constant that a node of this kind combines the value with, one for each channel; it joins."""
        index = self._next(op)
        if index is None:
            return None
        node = self.graph.nodes[index]
        (value,) = self.graph.nodes[self.last].output
        others = [name for name in node.input if name != value]
        found = self._constant(others[0]) if len(others) == 1 else None
        if found is None or found.dtype != dtype or not self._is_per_channel(found):
            return None
        self._join(index)
        return found.reshape(-1)

    def dynamic_scale(self, own: str) -> npt.NDArray[np.generic] | None:
        """The constant factor of a scale that is made in the run, by which the value is multiplied; both nodes join."""
        index = self._next("Mul")
        if index is None:
            return None
        (value,) = self.graph.nodes[self.last].output
        others = [name for name in self.graph.nodes[index].input if name != value]
        maker = self.graph.producers.get(others[0]) if len(others) == 1 else None
        if maker is None or not is_standard_op(self.graph.nodes[maker], "Mul"):
            return None
        factors = list(self.graph.nodes[maker].input)
        if own not in factors:
            return None
        factors.remove(own)
        found = self._constant(factors[0])
        if found is None or found.dtype != np.float32 or not self._is_per_channel(found):
            return None
        self._join(index)
        if self.graph.is_only_read_by(others[0], {index}):
            self.nodes.add(maker)
        return found.reshape(-1)

    def _constant(self, name: str) -> npt.NDArray[np.generic] | None:
        """The values of a constant, or of what small constants make."""
        return self.graph.folded_values(name)

    def _is_per_channel(self, values: npt.NDArray[np.generic]) -> bool:
        if values.size == 1:
            return True
        shape = values.shape
        if self.tail and shape[len(shape) - self.tail :] != (1,) * self.tail:
            return False
        kept = shape[: len(shape) - self.tail]
        return bool(kept) and kept[-1] == self.rows and values.size == self.rows

    def _next(self, op: str) -> int | None:
        node = self.graph.nodes[self.last]
        index = self.graph.only_reader(node.output[0])
        return index if index is not None and is_standard_op(self.graph.nodes[index], op) else None

    def _join(self, index: int) -> bool:
        self.nodes.add(index)
        self.last = index
        return True


def _quantizer(graph: GraphView, node: onnx.NodeProto) -> int | None:
    """The DynamicQuantizeLinear that makes a layer's operand and its zero point."""
    index = graph.producers.get(node.input[_X])
    if index is None or not is_standard_op(graph.nodes[index], "DynamicQuantizeLinear"):
        return None
    made = graph.nodes[index].output
    zero = node.input[_X_ZERO] if len(node.input) > _X_ZERO else ""
    return index if made[0] == node.input[_X] and len(made) == 3 and zero == made[2] else None


def _zero_of_operand(graph: GraphView, node: onnx.NodeProto) -> npt.NDArray[np.generic] | None:
    name = node.input[_X_ZERO] if len(node.input) > _X_ZERO else ""
    if not name:
        kind = graph.elem_type(node.input[_X])
        return np.zeros((), np.int8 if kind == onnx.TensorProto.INT8 else np.uint8)
    values = graph.folded_values(name)
    return values.reshape(()) if values is not None and values.size == 1 else None


def _zero_of_weights(graph: GraphView, node: onnx.NodeProto, position: int) -> npt.NDArray[np.int16] | None:
    name = node.input[position] if len(node.input) > position else ""
    values = graph.folded_values(name) if name else np.zeros(1, np.int16)
    return None if values is None else values.reshape(-1).astype(np.int16)


def _dynamic_product(graph: GraphView, layer: int) -> IntegerMatch | None:
    """``DynamicQuantizeMatMul(A, B, b_scale, b_zero_point, bias)``."""
    node = graph.nodes[layer]
    return _product(graph, layer, node.input[0], None, [*node.input[1:], *[""] * 4][:4])


def _product_to_float(graph: GraphView, layer: int) -> IntegerMatch | None:
    """``MatMulIntegerToFloat(A, B, a_scale, b_scale, a_zero_point, b_zero_point, bias)``."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = [*graph.nodes[layer].input, *[""] * 5][:7]
    maker = graph.producers.get(a)
    if maker is not None and is_standard_op(graph.nodes[maker], "DynamicQuantizeLinear"):
        if list(graph.nodes[maker].output) != [a, a_scale, a_zero]:
            return None
        return _product(graph, layer, graph.nodes[maker].input[0], None, [b, b_scale, b_zero, bias])
    scale = graph.values_of(a_scale)
    zero = graph.values_of(a_zero) if a_zero else np.zeros((), np.uint8)
    if scale is None or scale.size != 1 or zero is None or zero.size != 1:
        return None
    return _product(graph, layer, a, (scale.reshape(-1), zero.reshape(())), [b, b_scale, b_zero, bias])


def _product(
    graph: GraphView,
    layer: int,
    operand: str,
    quantization: tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]] | None,
    names: list[str],
) -> IntegerMatch | None:
    weight, *others = names
    values = [graph.values_of(name) if name else None for name in others]
    scale, zero, bias = values
    if weight not in graph.constants or scale is None or scale.dtype != np.float32 or scale.ndim > 1:
        return None
    if any(name and value is None for name, value in zip(others, values, strict=True)):
        return None
    if not np.isfinite(scale).all() or (bias is not None and not np.isfinite(bias).all()):
        return None
    factor = _floats(scale.reshape(-1))
    if quantization is not None:
        factor = factor * _floats(quantization[0])
    return IntegerMatch(
        layer,
        (layer,),
        operand,
        quantization is None,
        None if quantization is None else quantization[1],
        weight,
        np.zeros(1, np.int16) if zero is None else zero.reshape(-1).astype(np.int16),
        factor,
        shift=None if bias is None else _floats(bias.reshape(-1)),
    )


def _floats(values: npt.NDArray[np.generic]) -> Floats:
    return np.array(values, np.float32)
