"""Graphs in half precision as graphs in float32, which the kernels compute in.

onnxruntime computes such graphs in float32 on most processors, too, and rounds behind each node. Here only what leaves
the graph is rounded. Large matrices stay as they are stored: a Cast before their product says what they are, and the
kernels read halves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx

from sift_onnx.backends.lowering.graph import GraphView, is_standard_op
from sift_onnx.backends.lowering.graph_writer import GraphWriter
from sift_onnx.graphs.constants import array_of
from sift_onnx.operators.domains import MICROSOFT, canonical_domain, is_standard

__all__ = ["in_float32"]

_HALVES = frozenset((onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16))
_FLOATS = _HALVES | {onnx.TensorProto.FLOAT}
# Of a product of two constants.
_ROUNDING: dict[int, float] = {onnx.TensorProto.FLOAT16: 2.0**-10, onnx.TensorProto.BFLOAT16: 2.0**-7}
# Names of attributes that hold a type.
_TYPES = ("dtype", "output_dtype", "softmax_precision", "stash_type", "to")
# Elements from which a matrix stays as it is stored.
_LARGE = 1 << 12
# Inputs that are matrices of products; other constants become float32.
_PRODUCTS = {"MatMul": 1, "Gemm": 1}


def in_float32(graph: GraphView) -> GraphView | None:
    """The graph with float32 in place of float16 and bfloat16, those of its inputs and outputs included.

    Returns:
        None for a graph whose nodes read no halves besides weights, and for one that has nodes with graphs, or of other
        domains than ONNX's and com.microsoft, or a constant among its outputs.
    """
    if not any(_is_half(graph, name) for node in graph.nodes for name in _activations(graph, node)):
        return None
    if any(_has_graph(node) or _is_foreign(node) for node in graph.nodes) or graph.proto.functions:
        return None
    if any(name in graph.constants for name in graph.outputs):
        return None
    return _Rewriter(graph).rewritten()


def _activations(graph: GraphView, node: onnx.NodeProto) -> Iterator[str]:
    """What a node computes with; a weight that is cast is none."""
    if not is_standard_op(node, "Cast", "DequantizeLinear", "Constant"):
        yield from (name for name in node.input if name and name not in graph.derived)
    elif is_standard_op(node, "Cast") and node.input[0] not in graph.constants:
        yield from (name for name in node.input if name not in graph.derived)


def _is_half(graph: GraphView, name: str) -> bool:
    return graph.elem_type(name) in _HALVES


def _has_graph(node: onnx.NodeProto) -> bool:
    return any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)


def _is_foreign(node: onnx.NodeProto) -> bool:
    return not is_standard(node.domain) and canonical_domain(node.domain) != MICROSOFT


class _Rewriter:
    """Writes the nodes in their order."""

    def __init__(self, graph: GraphView) -> None:
        self._graph = graph
        self._writer = GraphWriter(graph)
        # What stands for a constant, as a matrix of a product and otherwise.
        self._widened: dict[tuple[str, bool], str] = {}

    def rewritten(self) -> GraphView:
        """The graph in float32."""
        renamed: set[str] = set()
        for node in self._graph.nodes:
            # What is cast for an output gets its name, as caches do in graphs of float32.
            if self._is_dropped(node) and node.output[0] in self._graph.outputs:
                source = node.input[0]
                is_made = source in self._graph.producers
                if is_made and source not in {*self._graph.constants, *self._graph.outputs, *renamed}:
                    renamed.add(source)
                    self._writer.rename(source, node.output[0])
        for index, node in enumerate(self._graph.nodes):
            self._write(index, node)
        made = self._writer.written()
        for info in (*made.proto.graph.input, *made.proto.graph.output, *made.proto.graph.value_info):
            if info.type.tensor_type.elem_type in _HALVES:
                info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        types = {self._graph.elem_type(name) for node in self._graph.nodes for name in (*node.input, *node.output)}
        made.rounding = max(_ROUNDING[kind] for kind in types & _HALVES)
        return made

    def _write(self, index: int, node: onnx.NodeProto) -> None:
        writer = self._writer
        output = node.output[0] if node.output else ""
        if output in self._graph.constants:
            # Who reads it gets what it holds.
            writer.write(index, node)
            return
        if is_standard_op(node, "Cast") and self._stays(node.input[0]):
            writer.write(index, _cast(node.input[0], output, node.name))
            return
        if self._is_dropped(node):
            source = self._read(node.input[0], is_matrix=False)
            if output not in self._graph.outputs:
                writer.rename(output, source)
            elif source != output:
                writer.write(index, onnx.helper.make_node("Identity", [source], [output], node.name))
            return
        copy = writer.copied(node)
        is_lookup = is_standard_op(node, "Gather") and self._stays(node.input[0])
        matrix = _PRODUCTS.get(node.op_type, -1) if is_standard(node.domain) else -1
        is_turned = is_standard_op(node, "Transpose") and output in self._graph.derived
        for place, name in enumerate(node.input):
            if name and not (is_lookup and place == 0):
                copy.input[place] = self._read(name, is_matrix=place == matrix or is_turned)
        copy.output[:] = [writer.current(name) for name in node.output]
        for attribute in copy.attribute:
            _widen(attribute)
        if is_lookup:
            output = copy.output[0]
            copy.output[0] = writer.unique(f"{output}: as stored")
        writer.write(index, copy)
        if is_lookup:
            writer.add("Cast", [copy.output[0]], output, f"{node.name}:cast", to=onnx.TensorProto.FLOAT)

    def _is_dropped(self, node: onnx.NodeProto) -> bool:
        """Whether a node only casts from one of the types that become one to another."""
        is_cast = is_standard_op(node, "Cast") and _target(node) in _FLOATS
        return is_cast and self._graph.elem_type(node.input[0]) in _FLOATS

    def _stays(self, name: str) -> bool:
        """Whether a constant is large enough to stay as it is stored."""
        constant = self._graph.constants.get(name)
        if constant is None or not _is_half(self._graph, name):
            return False
        return len(constant.shape) == 2 and math.prod(map(int, constant.shape)) >= _LARGE

    def _read(self, name: str, is_matrix: bool) -> str:
        """The name of what takes the place of an input."""
        name = self._writer.current(name)
        if name not in self._graph.constants or not _is_half(self._graph, name):
            return name
        key = (name, is_matrix and self._stays(name))
        if key not in self._widened:
            self._widened[key] = self._cast_of(name) if key[1] else self._constant_of(name)
        return self._widened[key]

    def _cast_of(self, name: str) -> str:
        """A Cast of a constant, which says what it is stored as."""
        made = self._writer.unique(f"{name}:float32")
        self._writer.add("Cast", [name], made, made, to=onnx.TensorProto.FLOAT)
        return made

    def _constant_of(self, name: str) -> str:
        """A constant of the same values in float32."""
        values = np.asarray(array_of(self._graph.constants[name]))
        return self._writer.constant(np.ascontiguousarray(values.astype(np.float32)), f"{name}:as float32")


def _cast(source: str, result: str, name: str) -> onnx.NodeProto:
    return onnx.helper.make_node("Cast", [source], [result], name, to=onnx.TensorProto.FLOAT)


def _target(node: onnx.NodeProto) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == "to"), 0)


def _widen(attribute: onnx.AttributeProto) -> None:
    """Types and tensors of halves within an attribute."""
    if attribute.name in _TYPES and attribute.type == onnx.AttributeProto.INT and attribute.i in _HALVES:
        attribute.i = onnx.TensorProto.FLOAT
    elif attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type in _HALVES:
        values = np.asarray(onnx.numpy_helper.to_array(attribute.t)).astype(np.float32)
        attribute.t.CopyFrom(onnx.numpy_helper.from_array(values, attribute.t.name))
