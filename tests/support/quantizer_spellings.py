"""Rewrites a model of QuantizeLinear and DequantizeLinear into what other tools write, which computes the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from quantized_nets import MICROSOFT, Array, quantized_in_the_graph

_Nodes = list[onnx.NodeProto]


class _Writer:
    """A copy of a model while nodes take the place of its nodes."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        del self.model.graph.value_info[:]
        self.values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        self._count = 0

    def constant(self, values: Array) -> str:
        name = self.name("constant")
        self.model.graph.initializer.append(numpy_helper.from_array(np.array(values, order="C"), name))
        return name

    def name(self, what: str) -> str:
        self._count += 1
        return f"{what} {self._count}"

    def node(self, op: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(op, inputs, [output or self.name(op)], **attributes)

    def chain(self, operand: str, output: str, *steps: tuple[Any, ...]) -> _Nodes:
        """Nodes by their operators with constant operands, or a type to cast to; the last one makes ``output``."""
        nodes: _Nodes = []
        for op, *values in steps:
            others = [self.constant(value) for value in values if op != "Cast"]
            nodes.append(self.node(op, [operand, *others], **({"to": values[0]} if op == "Cast" else {})))
            operand = nodes[-1].output[0]
        nodes[-1].output[0] = output
        return nodes

    def rewrite(self, change: Callable[[_Writer, onnx.NodeProto], _Nodes]) -> onnx.ModelProto:
        nodes = [part for node in list(self.model.graph.node) for part in change(self, node)]
        del self.model.graph.node[:]
        self.model.graph.node.extend(nodes)
        return self.model


def _is_point_of(node: onnx.NodeProto) -> bool:
    return node.op_type in ("QuantizeLinear", "DequantizeLinear")


def _axis_of(node: onnx.NodeProto) -> int:
    return next((int(a.i) for a in node.attribute if a.name == "axis"), 1)


def _broadcast(values: Array, axis: int, rank: int) -> Array:
    return values.reshape([-1 if i == axis % rank else 1 for i in range(rank)]) if values.size > 1 else values


def _ends(zero: Array) -> tuple[Array, Array]:
    limits = np.iinfo(zero.dtype)
    return np.array(limits.min, np.float32), np.array(limits.max, np.float32)


def with_cast_points(model: onnx.ModelProto) -> onnx.ModelProto:
    """As torch writes it: scales of double and zero points of int64, both cast; Cast of bytes to bytes.

    The bias is a quotient of floats that is cast to int32, with a scale and zero points that nodes make.
    """

    def change(w: _Writer, node: onnx.NodeProto) -> _Nodes:
        if not _is_point_of(node):
            return [node]
        stored, scale, zero = w.values.get(node.input[0]), w.values[node.input[1]], w.values[node.input[2]]
        if stored is not None and stored.dtype == np.int32:
            factor = w.node("Mul", [w.constant(scale / np.float32(2)), w.constant(np.float32(2))])
            quotient = w.node("Div", [w.constant(stored.astype(np.float32) * scale), factor.output[0]])
            integers = w.node("Cast", [quotient.output[0]], to=TensorProto.INT32)
            sizes = w.node("Shape", [factor.output[0]])
            zeros = numpy_helper.from_array(np.zeros(1, np.int32))
            point = w.node("ConstantOfShape", [sizes.output[0]], value=zeros)
            node.input[:] = [made.output[0] for made in (integers, factor, point)]
            return [factor, quotient, integers, sizes, point, node]
        parts = [
            w.node("Cast", [w.constant(scale.astype(np.float64))], to=TensorProto.FLOAT),
            w.node("Cast", [w.constant(zero.astype(np.int64))], to=helper.np_dtype_to_tensor_dtype(zero.dtype)),
        ]
        node.input[1:] = [part.output[0] for part in parts]
        if node.op_type == "DequantizeLinear":
            parts.append(w.node("Cast", [node.input[0]], to=helper.np_dtype_to_tensor_dtype(zero.dtype)))
            node.input[0] = parts[-1].output[0]
        return [*parts, node]

    return _Writer(model).rewrite(change)


def with_turned_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Weights with their axes in reverse order, transposed after DequantizeLinear."""

    def change(w: _Writer, node: onnx.NodeProto) -> _Nodes:
        stored = w.values.get(node.input[0])
        if node.op_type != "DequantizeLinear" or stored is None or stored.ndim < 2:
            return [node]
        axis = stored.ndim - 1 - _axis_of(node) % stored.ndim
        made = w.node("DequantizeLinear", [w.constant(stored.T), *node.input[1:]], axis=axis - stored.ndim)
        return [made, w.node("Transpose", [made.output[0]], node.output[0])]

    return _Writer(model).rewrite(change)


def with_clipped_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Weights of floats that the graph quantizes and clips to a range that is symmetric around zero."""

    def change(w: _Writer, node: onnx.NodeProto) -> _Nodes:
        if node.op_type != "QuantizeLinear" or node.input[0] not in w.values:
            return [node]
        result, node.output[0] = node.output[0], w.name("unclipped")
        return [node, *w.chain(node.output[0], result, ("Clip", np.int8(-127), np.int8(127)))]

    return _Writer(quantized_in_the_graph(model)).rewrite(change)


def without_zero_points(model: onnx.ModelProto) -> onnx.ModelProto:
    """A symmetric model of int8 in operators of opset 21, which say the type instead of a zero point."""

    def change(w: _Writer, node: onnx.NodeProto) -> _Nodes:
        if _is_point_of(node):
            assert not w.values[node.input[2]].any()
            del node.input[2:]
            if node.op_type == "QuantizeLinear":
                node.attribute.append(helper.make_attribute("output_dtype", TensorProto.INT8))
        return [node]

    made = _Writer(model).rewrite(change)
    del made.opset_import[:]
    made.opset_import.append(helper.make_opsetid("", 21))
    made.ir_version = 10
    return made


def of_onnxruntime(model: onnx.ModelProto) -> onnx.ModelProto:
    """The operators of onnxruntime's domain, but for a bias, which these do not have."""

    def change(w: _Writer, node: onnx.NodeProto) -> _Nodes:
        stored = w.values.get(node.input[0])
        if _is_point_of(node) and (stored is None or stored.dtype != np.int32):
            node.domain = MICROSOFT
        return [node]

    made = _Writer(model).rewrite(change)
    made.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return made


def as_arithmetic(model: onnx.ModelProto) -> onnx.ModelProto:
    """``Cast(Clip(Round(x / scale) + zero))`` and ``(Cast(q) - zero) * scale``."""

    def change(w: _Writer, node: onnx.NodeProto) -> _Nodes:
        if not _is_point_of(node):
            return [node]
        scale, zero = w.values[node.input[1]], w.values[node.input[2]]
        stored = w.values.get(node.input[0])
        if stored is not None:
            scale, zero = (_broadcast(values, _axis_of(node), stored.ndim) for values in (scale, zero))
        if node.op_type == "DequantizeLinear":
            if stored is not None and stored.dtype == np.int32:
                return [node]
            steps = [("Cast", TensorProto.FLOAT), ("Sub", zero.astype(np.float32)), ("Mul", scale)]
            return w.chain(node.input[0], node.output[0], *steps)
        return w.chain(
            node.input[0], node.output[0], ("Div", scale), ("Round",), ("Add", zero.astype(np.float32)),
            ("Clip", *_ends(zero)), ("Cast", helper.np_dtype_to_tensor_dtype(zero.dtype)),
        )  # fmt: skip

    return _Writer(model).rewrite(change)


def as_rounded_floats(model: onnx.ModelProto) -> onnx.ModelProto:
    """``(Round(Clip(x / scale + zero)) - zero) * scale`` of activations and weights: no integers at all.

    Rounding is spelled ``Round(u) - u + u``, as a straight-through estimator is exported.
    """

    def rounded(w: _Writer, name: str, output: str, scale: Array, zero: Array) -> _Nodes:
        point = zero.astype(np.float32)
        nodes = w.chain(name, w.name("u"), ("Mul", 1 / scale), ("Add", point), ("Clip", *_ends(zero)))
        u = nodes[-1].output[0]
        nodes.append(w.node("Round", [u]))
        nodes.append(w.node("Sub", [nodes[-1].output[0], u]))
        nodes.append(w.node("Add", [u, nodes[-1].output[0]]))
        return [*nodes, *w.chain(nodes[-1].output[0], output, ("Sub", point), ("Mul", scale))]

    def change(w: _Writer, node: onnx.NodeProto) -> _Nodes:
        if not _is_point_of(node):
            return [node]
        scale, zero = w.values[node.input[1]], w.values[node.input[2]]
        if node.op_type == "QuantizeLinear":
            return rounded(w, node.input[0], node.output[0], scale, zero)
        stored = w.values.get(node.input[0])
        if stored is None:
            return [w.node("Identity", node.input[:1], node.output[0])]
        if stored.dtype == np.int32:
            return [node]
        scale, zero = (_broadcast(values, _axis_of(node), stored.ndim) for values in (scale, zero))
        return rounded(w, w.constant((stored.astype(np.float32) - zero) * scale), node.output[0], scale, zero)

    return _without_identities(_Writer(model).rewrite(change))


def _without_identities(model: onnx.ModelProto) -> onnx.ModelProto:
    outputs = {info.name for info in model.graph.output}
    sources: dict[str, str] = {}
    nodes = []
    for node in model.graph.node:
        node.input[:] = [sources.get(name, name) for name in node.input]
        if node.op_type == "Identity" and node.output[0] not in outputs:
            sources[node.output[0]] = node.input[0]
        else:
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def without_bytes_between(model: onnx.ModelProto, first: str, second: str) -> onnx.ModelProto:
    """Nothing is quantized between nodes of these two operators, as tools write that quantize what layers read only."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    makers = {name: node.op_type for node in model.graph.node for name in node.output}
    dropped: dict[str, str] = {}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear" and makers.get(node.input[0]) == first:
            (reader,) = readers[node.output[0]]
            if all(after.op_type == second for after in readers.get(reader.output[0], [reader])):
                dropped |= {node.output[0]: node.input[0], reader.output[0]: node.input[0]}
    assert dropped

    def change(w: _Writer, node: onnx.NodeProto) -> _Nodes:
        if node.output[0] in dropped:
            return []
        node.input[:] = [dropped.get(name, name) for name in node.input]
        return [node]

    return _Writer(model).rewrite(change)


SPELLINGS: dict[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {
    "cast points": with_cast_points,
    "turned weights": with_turned_weights,
    "clipped weights": with_clipped_weights,
    "of onnxruntime": of_onnxruntime,
    "arithmetic": as_arithmetic,
    "rounded floats": as_rounded_floats,
}
