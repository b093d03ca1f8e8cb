"""Nodes and values are checked against the schemas of their operators, so that later code can rely on them.

Only what would mislead later code is refused: attributes of the wrong type, missing operands, types that do not exist.
Unknown operators and attributes are accepted, and so is what onnx's checker rejects without need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import onnx
from onnx_graphsurgeon.importers.onnx_importer import ATTR_TYPE_MAPPING

from sift_onnx.errors import ModelReadError, UnsupportedError
from sift_onnx.operators.domains import canonical_domain, opset_versions
from sift_onnx.operators.labels import node_label

__all__ = ["all_nodes", "check_nodes", "subgraphs", "with_subgraphs"]

_TEXTS = (onnx.AttributeProto.STRING, onnx.AttributeProto.STRINGS)
_DATA_TYPES = frozenset(onnx.TensorProto.DataType.values())
_SINGLE = onnx.defs.OpSchema.FormalParameterOption.Single
# Far above every opset; onnx takes 32 bits.
_OPSET_LIMIT = 1 << 20

Node = onnx.NodeProto
Graph = onnx.GraphProto


def check_nodes(model: onnx.ModelProto) -> None:
    """Check the nodes, values and operator sets of ``model``, in subgraphs and functions too.

    Raises:
        ModelReadError: a node contradicts its operator's schema, or a value has a type that does not exist.
        UnsupportedError: an attribute is of a kind that cannot be read.
    """
    opsets = _opsets(model.opset_import)
    _check_graph(model.graph, opsets)
    for node in all_nodes(model.graph.node):
        if any(attribute.ref_attr_name for attribute in node.attribute):
            raise ModelReadError(
                f"the model is damaged: node {node_label(node)} is in no function, and has an attribute of one"
            )
    for function in model.functions:
        _check_all(function.node, opsets | _opsets(function.opset_import))


def subgraphs(node: Node) -> Iterator[Graph]:
    """The graphs that a node's attributes hold."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def all_nodes(nodes: Iterable[Node]) -> Iterator[Node]:
    """Nodes, each before those of its subgraphs, at any depth."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from all_nodes(graph.node)


def with_subgraphs(graph: Graph) -> Iterator[Graph]:
    """A graph, and the subgraphs of its nodes at any depth, outer ones first."""
    yield graph
    for node in all_nodes(graph.node):
        yield from subgraphs(node)


def _opsets(entries: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    versions = list(entries)
    for entry in versions:
        if not 0 < entry.version < _OPSET_LIMIT:
            raise ModelReadError(f"the model is damaged: version {entry.version} of operator set {entry.domain!r}")
    return opset_versions(versions)


def _check_graph(graph: Graph, opsets: Mapping[str, int]) -> None:
    for info in (*graph.input, *graph.output, *graph.value_info):
        _check_type(info.name, info.type)
    _check_all(graph.node, opsets)


def _check_all(nodes: Iterable[Node], opsets: Mapping[str, int]) -> None:
    for node in nodes:
        _check_readable(node)
        schema = _schema_of(node, opsets)
        if schema is not None:
            _check_attributes(node, schema)
            _check_operands(node, schema)
        for graph in subgraphs(node):
            _check_graph(graph, opsets)


def _check_type(name: str, kind: onnx.TypeProto) -> None:
    which = kind.WhichOneof("value")
    held: Any = getattr(kind, which) if which else None
    if which == "map_type" and held.key_type not in _DATA_TYPES:
        raise ModelReadError(f"the model is damaged: the keys of {name!r} have the unknown type {held.key_type}")
    if which in ("sequence_type", "optional_type"):
        _check_type(name, held.elem_type)
    elif which == "map_type":
        _check_type(name, held.value_type)
    elif which in ("tensor_type", "sparse_tensor_type") and held.elem_type not in _DATA_TYPES:
        raise ModelReadError(f"the model is damaged: {name!r} has the unknown data type {held.elem_type}")


def _check_readable(node: Node) -> None:
    for attribute in node.attribute:
        if ATTR_TYPE_MAPPING.get(attribute.type, "UNDEFINED") == "UNDEFINED":
            raise UnsupportedError(
                f"attribute {attribute.name!r} of node {node_label(node)} has no type that is known; "
                "convert the model to IR version 3 or newer"
            )
        try:
            for text in (attribute.s, *attribute.strings) if attribute.type in _TEXTS else ():
                text.decode()
        except UnicodeDecodeError as error:
            raise UnsupportedError(
                f"attribute {attribute.name!r} of node {node_label(node)} is not text (a compiled "
                "context, say); export the model without vendor-specific nodes"
            ) from error


def _schema_of(node: Node, opsets: Mapping[str, int]) -> onnx.defs.OpSchema | None:
    domain = canonical_domain(node.domain)
    if not domain and domain not in opsets:
        raise ModelReadError(
            f"the model is damaged: node {node_label(node)} is of ONNX's own operators, whose version it lacks"
        )
    if domain not in opsets:
        return None
    try:
        return onnx.defs.get_schema(node.op_type, opsets[domain], domain)
    except onnx.defs.SchemaError:
        return None


def _check_attributes(node: Node, schema: onnx.defs.OpSchema) -> None:
    given = {attribute.name: attribute for attribute in node.attribute}
    if len(given) < len(node.attribute):
        raise ModelReadError(f"the model is damaged: node {node_label(node)} has an attribute twice")
    for name, wanted in schema.attributes.items():
        attribute = given.get(name)
        if attribute is None:
            if wanted.required:
                raise ModelReadError(f"the model is damaged: node {node_label(node)} lacks its attribute {name!r}")
        elif not attribute.ref_attr_name and _type_name(attribute) != _schema_type(wanted):
            raise ModelReadError(
                f"the model is damaged: attribute {name!r} of node {node_label(node)} is {_type_name(attribute)}, "
                f"where its operator takes {_schema_type(wanted)}"
            )


def _schema_type(attribute: onnx.defs.OpSchema.Attribute) -> str:
    # An enumeration of onnx's compiled part, whose stubs do not say so.
    return str(getattr(attribute.type, "name"))  # noqa: B009


def _type_name(attribute: onnx.AttributeProto) -> str:
    return str(onnx.AttributeProto.AttributeType.Name(attribute.type))


def _check_operands(node: Node, schema: onnx.defs.OpSchema) -> None:
    _check_count(node, "inputs", len(node.input), schema.min_input, schema.max_input)
    _check_count(node, "outputs", len(node.output), schema.min_output, schema.max_output)
    if any(not name and part.option == _SINGLE for name, part in zip(node.input, schema.inputs, strict=False)):
        raise ModelReadError(f"the model is damaged: node {node_label(node)} leaves out an input that it needs")


def _check_count(node: Node, what: str, count: int, least: int, most: int) -> None:
    if not least <= count <= most:
        wanted = least if least == most else f"{least} to {most}"
        raise ModelReadError(
            f"the model is damaged: node {node_label(node)} has {count} {what}, where its operator takes {wanted}"
        )
