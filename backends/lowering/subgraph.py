"""Part of a model as a separate model, for onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs

from sift_onnx.backends.lowering.graph import GraphView, is_standard_op, names_read
from sift_onnx.backends.lowering.partition import Part
from sift_onnx.errors import UnsupportedError
from sift_onnx.graphs.constant_tensors import full_tensor, header_of
from sift_onnx.graphs.constants import array_of, nbytes_of

__all__ = ["Subgraph", "unexchangeable"]

_PROTOBUF_LIMIT = 2**31 - 1
# Constants from this size on do not go through a message, which would be written, measured and read again.
_LARGE_BYTES = 1 << 16
# Types whose arrays numpy has itself.
_EXCHANGED = frozenset(
    getattr(onnx.TensorProto, name)
    for name in (
        "FLOAT", "DOUBLE", "FLOAT16", "BOOL", "STRING",
        "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Subgraph:
    """Nodes that onnxruntime runs.

    Attributes:
        model: with these nodes alone.
        inputs: values from outside.
        outputs: values that are read outside.
        arrays: large initializers, of which the model has but the type and sizes.
        shapes: inputs that are sizes of other values, by name: the value, and the first and the last axis.
    """

    model: onnx.ModelProto = field(repr=False)
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    arrays: dict[str, npt.NDArray[Any]] = field(default_factory=dict, repr=False)
    shapes: dict[str, tuple[str, int, int | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: GraphView, nodes: Sequence[int], inputs: Sequence[str], outputs: Sequence[str]) -> Subgraph:
        """The sub-graph of the nodes with these indices.

        Raises:
            UnsupportedError: its constants exceed what one message can hold.
        """
        model = onnx.ModelProto(ir_version=graph.proto.ir_version)
        model.opset_import.extend(graph.proto.opset_import)
        model.functions.extend(graph.proto.functions)
        indices = sorted({*nodes, *_derivations(graph, nodes)})
        kept = [node for i in indices for node in graph.size_nodes.get(i, [graph.nodes[i]])]
        kept, shapes = _without_shape_readers(graph, kept, inputs, outputs)
        sized = {name for name, _, _ in shapes.values()}
        inputs = [name for name in inputs if name not in sized]
        model.graph.name = graph.proto.graph.name or "part"
        model.graph.node.extend(kept)
        made = {name for node in kept for name in node.output}
        read = dict.fromkeys(name for node in kept for name in names_read(node))
        known = {tensor.name: tensor for tensor in graph.proto.graph.initializer}
        constants = [name for name in read if name in graph.constants and name not in made]
        constants += [name for name in outputs if name in known and name not in read]
        large = [name for name in constants if _is_large(graph.constants[name])]
        inside = [name for name in constants if name not in large]
        if sum(nbytes_of(graph.constants[name]) for name in inside) > _PROTOBUF_LIMIT:
            raise UnsupportedError(
                "the layers left to onnxruntime hold more than 2 GB of constants; run the whole model with the back "
                "end 'onnxruntime'"
            )
        model.graph.initializer.extend(full_tensor(graph.constants[name], known.get(name)) for name in inside)
        model.graph.initializer.extend(_outside(graph.constants[name]) for name in large)
        for name in inputs:
            info = graph.value_info(name)
            assert info is not None  # unexchangeable() has looked
            model.graph.input.append(info)
        for name, (value, first, end) in shapes.items():
            count = len((graph.dims(value) or ())[first:end])
            model.graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, [count]))
        for name in outputs:
            model.graph.output.append(graph.value_info(name) or onnx.ValueInfoProto(name=name))
        arrays = {name: np.ascontiguousarray(array_of(graph.constants[name])) for name in large}
        return cls(model, (*inputs, *shapes), tuple(outputs), arrays, shapes)


def _without_shape_readers(
    graph: GraphView, nodes: Sequence[onnx.NodeProto], inputs: Sequence[str], outputs: Sequence[str]
) -> tuple[list[onnx.NodeProto], dict[str, tuple[str, int, int | None]]]:
    """The nodes without those that only read sizes of an input that no other reads, such as a cache; and the sizes."""
    readers: dict[str, list[onnx.NodeProto]] = {name: [] for name in inputs}
    for node in nodes:
        for name in names_read(node):
            if name in readers:
                readers[name].append(node)
    shapes: dict[str, tuple[str, int, int | None]] = {}
    for name, found in readers.items():
        is_sized = found and all(is_standard_op(node, "Shape") for node in found) and graph.dims(name)
        if not is_sized or any(node.output[0] in outputs for node in found):
            continue
        for node in found:
            bounds = {a.name: int(a.i) for a in node.attribute}
            shapes[node.output[0]] = (name, bounds.get("start", 0), bounds.get("end"))
    return [node for node in nodes if not node.output or node.output[0] not in shapes], shapes


def _is_large(constant: gs.Constant) -> bool:
    return nbytes_of(constant) >= _LARGE_BYTES and np.dtype(constant.dtype).isbuiltin == 1


def _outside(constant: gs.Constant) -> onnx.TensorProto:
    tensor = header_of(constant)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="memory")
    return tensor


def _derivations(graph: GraphView, nodes: Sequence[int]) -> set[int]:
    """The nodes that make what these nodes read and what depends on constants alone."""
    found: set[int] = set()
    waiting = list(nodes)
    while waiting:
        for name in names_read(graph.nodes[waiting.pop()]):
            index = graph.derived.get(name)
            if index is not None and index not in found:
                found.add(index)
                waiting.append(index)
    return found


def unexchangeable(graph: GraphView, parts: Sequence[Part]) -> str:
    """A value between parts that cannot be passed on as an array; empty if there is none."""
    for part in parts:
        for name in (*part.inputs, *part.outputs):
            if graph.elem_type(name) not in _EXCHANGED:
                return name
    return ""
