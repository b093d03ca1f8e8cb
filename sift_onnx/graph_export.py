"""From a graphsurgeon graph back to ONNX, with everything that graphsurgeon does not model.

graphsurgeon drops ``metadata_props`` of models and nodes, doc strings of nodes, overloads, attributes of the rarer
types, initializers that nothing reads, and graph inputs that have an initializer (required before IR version 4). What a
pass did not touch is therefore copied from the model as it came: nodes are matched by the tensor they produce,
everything else by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.exporters.onnx_exporter import OnnxExporter, dtype_to_onnx
from onnx_graphsurgeon.importers.onnx_importer import OnnxImporter
from onnx_graphsurgeon.ir.tensor import LazyValues

from sift_onnx.errors import UnsupportedError

__all__ = ["export_graph", "export_model_fields"]

AddInitializer = Callable[[onnx.GraphProto, gs.Constant], None]

_SAME_AS_ORIGIN = (onnx.AttributeProto.SPARSE_TENSOR, onnx.AttributeProto.SPARSE_TENSORS, onnx.AttributeProto.TENSORS)
_SAME_AS_ORIGIN += (onnx.AttributeProto.GRAPHS, onnx.AttributeProto.TYPE_PROTO, onnx.AttributeProto.TYPE_PROTOS)


def export_model_fields(graph: gs.Graph, origin: onnx.ModelProto, metadata: dict[str, str]) -> onnx.ModelProto:
    """Everything of the model but its graph.

    Args:
        graph: the graph as it is now.
        origin: the model as it came.
        metadata: the model's ``metadata_props``.
    """
    model = onnx.ModelProto()
    for descriptor, value in origin.ListFields():
        if descriptor.name in ("graph", "metadata_props", "functions"):
            continue
        if descriptor.is_repeated:
            getattr(model, descriptor.name).extend(value)
        else:
            setattr(model, descriptor.name, value)
    for key, text in metadata.items():
        model.metadata_props.add(key=key, value=text)
    originals = {(f.domain, f.name, getattr(f, "overload", "")): f for f in origin.functions}
    for function in graph.functions:
        known = originals.get((function.domain or "", function.name, ""))
        model.functions.append(known if known is not None else OnnxExporter.export_function(function))
    imported = {entry.domain for entry in model.opset_import}
    for domain in sorted(_domains(graph) - imported):
        model.opset_import.add(domain=domain, version=1)
    return model


def _domains(graph: gs.Graph) -> set[str]:
    levels = [graph, *graph.subgraphs(recursive=True)]
    domains = {node.domain or "" for level in levels for node in level.nodes}
    return {"" if domain == "ai.onnx" else domain for domain in domains}


def export_graph(
    graph: gs.Graph, origin: onnx.GraphProto, add_initializer: AddInitializer, outer: frozenset[str] = frozenset()
) -> onnx.GraphProto:
    """The graph as a GraphProto.

    Args:
        graph: the graph as it is now.
        origin: the graph as it came; an empty one for a graph that is new.
        add_initializer: puts a constant into the graph that is being built.
        outer: names of initializers that an enclosing graph owns.
    """
    proto = onnx.GraphProto(name=graph.name)
    if graph.doc_string:
        proto.doc_string = graph.doc_string
    proto.quantization_annotation.extend(origin.quantization_annotation)
    proto.metadata_props.extend(origin.metadata_props)

    stored = {t.name for t in origin.initializer} | {t.values.name for t in origin.sparse_initializer}
    tensors = graph.tensors()
    constants = {n: t for n, t in _read_constants(graph) if n not in outer and (n in tensors or n in stored)}
    owned = outer | constants.keys()

    producers = {name: node for node in origin.node for name in node.output if name}
    for node in graph.nodes:
        produced = next((t.name for t in node.outputs if t.name), None)
        known = producers.get(produced) if produced is not None else None
        proto.node.append(_export_node(node, known, add_initializer, frozenset(owned)))

    infos = {info.name: info for info in (*origin.value_info, *origin.input, *origin.output)}
    proto.input.extend(_value_info(t, infos) for t in graph.inputs)
    proto.input.extend(_input_of_constant(i, constants) for i in origin.input if i.name in constants)
    proto.output.extend(_value_info(t, infos) for t in graph.outputs)
    ends = {t.name for t in (*graph.inputs, *graph.outputs)}
    for name, tensor in tensors.items():
        if name not in ends and (name in infos or _is_described(tensor)):
            proto.value_info.append(_value_info(tensor, infos))

    for constant in constants.values():
        add_initializer(proto, constant)
    used_once = {name for node in origin.node for name in node.input} | {o.name for o in origin.output}
    proto.initializer.extend(t for t in origin.initializer if t.name not in used_once and t.name not in owned)
    return proto


def _read_constants(graph: gs.Graph) -> Iterable[tuple[str, gs.Constant]]:
    """Constants read at this level, and those that only subgraphs read."""
    levels = [graph, *graph.subgraphs(recursive=True)]
    for level in levels:
        for name, tensor in level.tensors().items():
            if isinstance(tensor, gs.Constant):
                yield name, tensor


def _export_node(
    node: gs.Node, known: onnx.NodeProto | None, add_initializer: AddInitializer, owned: frozenset[str]
) -> onnx.NodeProto:
    proto = onnx.NodeProto(op_type=node.op)
    if node.name:
        proto.name = node.name
    if node.domain:
        proto.domain = node.domain
    proto.input.extend(t.name for t in node.inputs)
    proto.output.extend(t.name for t in node.outputs)
    if known is None or known.op_type != node.op:
        proto.attribute.extend(_export_attribute(k, v, None, add_initializer, owned) for k, v in node.attrs.items())
        return proto
    if known.doc_string:
        proto.doc_string = known.doc_string
    if getattr(known, "overload", ""):
        proto.overload = known.overload
    proto.metadata_props.extend(known.metadata_props)
    kept = {a.name: a for a in known.attribute}
    for name, value in node.attrs.items():
        proto.attribute.append(_export_attribute(name, value, kept.get(name), add_initializer, owned))
    proto.attribute.extend(a for a in known.attribute if a.type in _SAME_AS_ORIGIN and a.name not in node.attrs)
    return proto


def _export_attribute(
    name: str, value: Any, known: onnx.AttributeProto | None, add_initializer: AddInitializer, owned: frozenset[str]
) -> onnx.AttributeProto:
    if isinstance(value, gs.Graph):
        origin = known.g if known is not None and known.HasField("g") else onnx.GraphProto()
        attribute = onnx.AttributeProto(name=name, type=onnx.AttributeProto.GRAPH)
        attribute.g.CopyFrom(export_graph(value, origin, add_initializer, owned))
        return attribute
    if known is not None and _unchanged(value, known):
        return known
    return OnnxExporter.export_attributes({name: value})[0]


def _unchanged(value: Any, known: onnx.AttributeProto) -> bool:
    if isinstance(value, gs.Constant):
        return isinstance(value._values, LazyValues) and value._values.tensor is known.t
    if isinstance(value, np.ndarray):
        return False
    imported = OnnxImporter.import_attributes([known], {}, {}, 0, [])[known.name]
    if isinstance(imported, gs.Node.AttributeRef):
        return isinstance(value, gs.Node.AttributeRef) and vars(value) == vars(imported)
    return type(imported) is type(value) and bool(imported == value)


def _value_info(tensor: gs.Tensor, known: dict[str, onnx.ValueInfoProto]) -> onnx.ValueInfoProto:
    origin = known.get(tensor.name)
    info = onnx.ValueInfoProto()
    if origin is None:
        info.CopyFrom(OnnxExporter.export_value_info_proto(tensor, do_type_check=False))
        return info
    info.CopyFrom(origin)
    if not origin.type.HasField("tensor_type"):
        return info
    if isinstance(tensor, gs.Constant):
        _set_dims(info, [int(n) for n in tensor._values.shape])
        return info
    if tensor.dtype is not None:
        info.type.tensor_type.elem_type = dtype_to_onnx(tensor.dtype)
    dims = info.type.tensor_type.shape.dim
    if tensor.shape is None:
        info.type.tensor_type.ClearField("shape")
    elif [_dim(d) for d in dims] != list(tensor.shape):
        _set_dims(info, tensor.shape)
    return info


def _is_described(tensor: gs.Tensor) -> bool:
    return isinstance(tensor, gs.Variable) and (tensor.dtype is not None or tensor.shape is not None)


def _set_dims(info: onnx.ValueInfoProto, shape: Iterable[int | str | None]) -> None:
    del info.type.tensor_type.shape.dim[:]
    for size in shape:
        dim = info.type.tensor_type.shape.dim.add()
        if isinstance(size, str):
            dim.dim_param = size
        elif size is not None:
            dim.dim_value = int(size)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_param"):
        return str(dim.dim_param)
    return int(dim.dim_value) if dim.HasField("dim_value") else None


def _input_of_constant(origin: onnx.ValueInfoProto, constants: dict[str, gs.Constant]) -> onnx.ValueInfoProto:
    return _value_info(constants[origin.name], {origin.name: origin})


def import_model(proto: onnx.ModelProto) -> gs.Graph:
    """The model as a graphsurgeon graph.

    Raises:
        UnsupportedError: an attribute holds what graphsurgeon cannot read.
    """
    try:
        return gs.import_onnx(proto)
    except UnicodeDecodeError as error:
        raise UnsupportedError(
            "a node has a string attribute that is not text (a compiled context, say); "
            "export the model without vendor-specific nodes"
        ) from error
