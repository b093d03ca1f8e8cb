"""From a graphsurgeon graph back to ONNX, with everything that graphsurgeon does not model.

graphsurgeon drops ``metadata_props`` of models and nodes, doc strings of nodes, overloads, attributes of the rarer
types, initializers that nothing reads, and graph inputs that have an initializer (required before IR version 4). What a
pass did not touch is therefore copied from the original model: nodes are matched by the tensor they produce,
functions by their names, everything else by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from google.protobuf.message import Message
from onnx_graphsurgeon.importers.onnx_importer import ONNX_PYTHON_ATTR_MAPPING
from onnx_graphsurgeon.util.misc import convert_to_onnx_attr_type

from sift_onnx.errors import ModelReadError, UnsupportedError
from sift_onnx.files.data_types import data_type_of
from sift_onnx.files.external_data import is_external
from sift_onnx.files.stored_values import StoredValues
from sift_onnx.graphs.constant_tensors import full_tensor
from sift_onnx.graphs.constants import stored_values_of
from sift_onnx.graphs.value_infos import value_info_of, value_infos_of
from sift_onnx.operators.domains import canonical_domain

__all__ = ["export_graph", "export_model_fields", "graph_constants"]

# Called with the graph that is being built, a constant, the tensor of that name in the original model, and whether the
# graph is the main one.
AddInitializer = Callable[[onnx.GraphProto, gs.Constant, "onnx.TensorProto | None", bool], None]

# Up to it, an initializer of the main graph has to be an input too.
_IR_WITHOUT_HIDDEN_INITIALIZERS = 3
_READ_BY_GRAPHSURGEON = frozenset(map(onnx.AttributeProto.AttributeType.Value, ONNX_PYTHON_ATTR_MAPPING))


@contextmanager
def _text_only() -> Iterator[None]:
    """Protobuf reads strings that are not UTF-8, as bytes, and does not write them."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise ModelReadError(f"the model is damaged: a name in it is not text: {error}") from error


@_text_only()
def export_model_fields(graph: gs.Graph, origin: onnx.ModelProto, metadata: Mapping[str, str]) -> onnx.ModelProto:
    """Everything of the model but its graph.

    Args:
        graph: the graph as it is now.
        origin: the original model.
        metadata: the model's ``metadata_props``.
    """
    model = onnx.ModelProto()
    _copy_fields(origin, model, without=("graph", "metadata_props", "functions", "opset_import"))
    for key, text in metadata.items():
        model.metadata_props.add(key=key, value=text)
    imports = graph.import_domains or [onnx.helper.make_opsetid("", graph.opset)]
    model.opset_import.extend(imports)
    imported = {canonical_domain(entry.domain) for entry in imports}
    for domain in sorted(_domains(graph) - imported):
        model.opset_import.add(domain=domain, version=1)
    if not model.ir_version:
        # graphsurgeon 0.5.2 has none, and says so on stdout.
        model.ir_version = vars(graph).get("ir_version") or onnx.helper.find_min_ir_version_for(
            model.opset_import, True
        )
    if graph.producer_name and not origin.producer_name:
        model.producer_name, model.producer_version = graph.producer_name, graph.producer_version or ""
    known = {(f.domain, f.name, getattr(f, "overload", "")): f for f in origin.functions}
    for function in graph.functions:
        identity = (function.domain or "", function.name, getattr(function, "overload", ""))
        model.functions.append(_export_function(function, known.get(identity, onnx.FunctionProto())))
    return model


def _copy_fields(source: Message, target: Message, without: Iterable[str]) -> None:
    for descriptor, value in source.ListFields():
        if descriptor.name in without:
            continue
        if isinstance(value, (bool, int, float, str)):
            setattr(target, descriptor.name, value)
        elif isinstance(value, bytes):
            continue  # a doc string that is not text
        elif isinstance(value, Message):
            getattr(target, descriptor.name).CopyFrom(value)
        else:
            getattr(target, descriptor.name).extend(value)


def _domains(graph: gs.Graph) -> set[str]:
    levels = [graph, *graph.subgraphs(recursive=True)]
    return {canonical_domain(node.domain) for level in levels for node in level.nodes}


def _export_function(function: gs.Function, origin: onnx.FunctionProto) -> onnx.FunctionProto:
    proto = onnx.FunctionProto()
    _copy_fields(origin, proto, without=("node", "input", "output", "attribute", "attribute_proto", "opset_import"))
    proto.name, proto.domain = function.name, function.domain or ""
    proto.opset_import.extend(function.import_domains or [onnx.helper.make_opsetid("", function.opset)])
    proto.input.extend(t.name for t in function.inputs)
    proto.output.extend(t.name for t in function.outputs)
    defaults = {a.name: a for a in origin.attribute_proto}
    for name, value in function.attrs.items():
        if value is None:
            proto.attribute.append(name)
        else:
            proto.attribute_proto.append(_export_attribute(name, value, defaults.get(name), function.name))
    # A function has no initializers.
    for tensor in function.tensors().values():
        if isinstance(tensor, gs.Constant):
            proto.node.append(onnx.helper.make_node("Constant", [], [tensor.name], value=full_tensor(tensor)))
    proto.node.extend(_export_nodes(function.nodes, origin.node, _add_whole, frozenset()))
    return proto


def _add_whole(proto: onnx.GraphProto, constant: gs.Constant, known: onnx.TensorProto | None, main: bool) -> None:
    proto.initializer.append(full_tensor(constant, known))


@_text_only()
def export_graph(
    graph: gs.Graph,
    origin: onnx.GraphProto,
    proto: onnx.GraphProto,
    add_initializer: AddInitializer,
    *,
    ir_version: int = onnx.IR_VERSION,
    outer: frozenset[str] | None = None,
) -> None:
    """Write a graph.

    Args:
        graph: the graph as it is now.
        origin: the original graph; an empty one for a new graph.
        proto: an empty graph, to be filled.
        add_initializer: puts a constant into the graph that is being built.
        ir_version: of the model; up to 3, initializers of the main graph are inputs too.
        outer: names of initializers that the graphs around it own; None for the main graph.
    """
    main, outer = outer is None, outer or frozenset()
    _copy_fields(origin, proto, without=("node", "input", "output", "value_info", "initializer", "sparse_initializer"))
    if graph.name != origin.name:
        proto.name = graph.name
    if graph.doc_string != origin.doc_string:
        proto.doc_string = graph.doc_string

    stored = _stored(origin)
    tensors = graph.tensors()
    constants = {n: t for n, t in graph_constants(graph, origin).items() if n not in outer}
    proto.node.extend(_export_nodes(graph.nodes, origin.node, add_initializer, outer | constants.keys()))

    used_once = {name for node in origin.node for name in node.input} | {o.name for o in origin.output}
    unread = {name for name in stored if name not in used_once and name not in constants}
    infos = {info.name: info for info in (*origin.value_info, *origin.input, *origin.output)}
    inputs = {t.name: t for t in graph.inputs}
    if main and ir_version <= _IR_WITHOUT_HIDDEN_INITIALIZERS:
        inputs.update(constants)
    else:
        inputs.update({i.name: constants[i.name] for i in origin.input if i.name in constants})
    for name in dict.fromkeys((*(i.name for i in origin.input), *inputs)):
        if name in inputs:
            proto.input.append(value_info_of(inputs[name], infos.get(name)))
        elif name in unread:
            proto.input.append(infos[name])
    proto.output.extend(value_info_of(t, infos.get(t.name)) for t in graph.outputs)
    proto.value_info.extend(value_infos_of(graph, origin, {**tensors, **constants}))

    for tensor in origin.initializer:
        # A skeleton that was rewritten has stubs whose data was not kept.
        if tensor.name in unread and not is_external(tensor):
            add_initializer(proto, gs.Constant(tensor.name, StoredValues(tensor)), tensor, main)
        elif tensor.name in constants:
            add_initializer(proto, constants[tensor.name], tensor, main)
    for sparse in origin.sparse_initializer:
        if sparse.values.name in unread and not any(map(is_external, (sparse.values, sparse.indices))):
            proto.sparse_initializer.append(sparse)
        elif sparse.values.name in constants:
            add_initializer(proto, constants[sparse.values.name], sparse.values, main)
    for name, constant in constants.items():
        if name not in stored:
            add_initializer(proto, constant, None, main)


def graph_constants(graph: gs.Graph, origin: onnx.GraphProto) -> dict[str, gs.Constant]:
    """The constants of a graph by name: those that its own nodes read, and its initializers that only subgraphs read.

    Args:
        graph: the graph as it is now.
        origin: the original graph, which tells its initializers from those of its subgraphs.
    """
    tensors, stored = graph.tensors(), _stored(origin)
    return {name: constant for name, constant in _constants(graph) if name in tensors or name in stored}


def _stored(origin: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """The initializers by name, of sparse ones their values."""
    stored = {t.name: t for t in origin.initializer}
    stored.update({t.values.name: t.values for t in origin.sparse_initializer})
    return stored


def _constants(graph: gs.Graph) -> Iterator[tuple[str, gs.Constant]]:
    """Constants read in subgraphs, and then, so that they win, those read at this level."""
    for level in [*graph.subgraphs(recursive=True), graph]:
        for name, tensor in level.tensors().items():
            if isinstance(tensor, gs.Constant):
                yield name, tensor


def _export_nodes(
    nodes: Iterable[gs.Node], origin: Iterable[onnx.NodeProto], add: AddInitializer, owned: frozenset[str]
) -> Iterator[onnx.NodeProto]:
    producers = {name: node for node in origin for name in node.output if name}
    for node in nodes:
        produced = next((t.name for t in node.outputs if t.name in producers), None)
        known = producers[produced] if produced is not None else onnx.NodeProto()
        same = known.op_type == node.op and known.domain == (node.domain or "")
        yield _export_node(node, known if same else onnx.NodeProto(), add, owned)


def _export_node(node: gs.Node, known: onnx.NodeProto, add: AddInitializer, owned: frozenset[str]) -> onnx.NodeProto:
    proto = onnx.NodeProto()
    _copy_fields(known, proto, without=("input", "output", "attribute"))
    proto.op_type = node.op
    if (node.name or "") != known.name:
        proto.name = node.name
    if (node.domain or "") != known.domain:
        proto.domain = node.domain
    proto.input.extend(t.name for t in node.inputs)
    proto.output.extend(t.name for t in node.outputs)
    kept = {a.name: a for a in known.attribute}
    for attribute in known.attribute:
        if attribute.type not in _READ_BY_GRAPHSURGEON and attribute.name not in node.attrs:
            proto.attribute.append(attribute)
        elif attribute.name in node.attrs:
            value = node.attrs[attribute.name]
            proto.attribute.append(_export_attribute(attribute.name, value, attribute, node.name, add, owned))
    for name, value in node.attrs.items():
        if name not in kept:
            proto.attribute.append(_export_attribute(name, value, None, node.name, add, owned))
    return proto


def _export_attribute(
    name: str,
    value: Any,
    known: onnx.AttributeProto | None,
    owner: str,
    add: AddInitializer = _add_whole,
    owned: frozenset[str] = frozenset(),
) -> onnx.AttributeProto:
    if known is not None and _unchanged(value, known):
        return known
    attribute = onnx.AttributeProto(name=name)
    if known is not None and known.doc_string:
        attribute.doc_string = known.doc_string
    if isinstance(value, gs.Graph):
        origin = known.g if known is not None else onnx.GraphProto()
        attribute.type = onnx.AttributeProto.GRAPH
        export_graph(value, origin, attribute.g, add, outer=owned)
    elif isinstance(value, gs.Constant):
        attribute.type = onnx.AttributeProto.TENSOR
        attribute.t.CopyFrom(full_tensor(value, known.t if known is not None else None))
    elif isinstance(value, gs.Node.AttributeRef):
        attribute.type = convert_to_onnx_attr_type(value.type)
        attribute.ref_attr_name = value.name
    else:
        attribute.MergeFrom(_new_attribute(name, value, known.type if known is not None else None, owner))
    return attribute


def _unchanged(value: Any, known: onnx.AttributeProto) -> bool:
    if known.ref_attr_name:
        same = isinstance(value, gs.Node.AttributeRef) and value.name == known.ref_attr_name
        return same and bool(convert_to_onnx_attr_type(value.type) == known.type)
    if isinstance(value, gs.Constant):
        stored = stored_values_of(value)
        same = stored is not None and stored.proto is known.t and value.name == known.t.name
        return same and not is_external(known.t)
    was: Any = onnx.helper.get_attribute_value(known)
    if known.type == onnx.AttributeProto.STRING:
        was = was.decode()
    elif known.type == onnx.AttributeProto.STRINGS:
        was = [text.decode() for text in was]
    return type(value) is type(was) and bool(value == was)


def _new_attribute(name: str, value: Any, wanted: int | None, owner: str) -> onnx.AttributeProto:
    """An attribute of the type ``wanted`` if the value allows that."""
    if wanted == onnx.AttributeProto.FLOAT and isinstance(value, int):
        value = float(value)
    elif wanted == onnx.AttributeProto.FLOATS and isinstance(value, (list, tuple)):
        value = [float(v) for v in value]
    elif isinstance(value, type):
        value = data_type_of(np.dtype(value))
    for attr_type in (wanted, None):
        try:
            return onnx.helper.make_attribute(name, value, attr_type=attr_type)
        except (TypeError, ValueError) as error:
            reason = error
    raise UnsupportedError(f"attribute {name!r} of node {owner!r} cannot be written: {reason}")
