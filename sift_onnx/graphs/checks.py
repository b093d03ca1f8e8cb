"""Checks of untrusted graphs: names, connections, types, and a bounded size once functions are inlined.

Protobuf accepts a file whose nodes are cut off or call each other recursively. What reads the graph next (graphsurgeon,
onnx's shape inference and inliner, onnxruntime) fails on it in many ways, some of which end the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import onnx

from sift_onnx.errors import ModelReadError, UnsupportedError
from sift_onnx.graphs.node_checks import check_nodes, subgraphs
from sift_onnx.operators.domains import canonical_domain
from sift_onnx.operators.labels import node_label

__all__ = ["check_graphs"]

# Calls within calls; onnx's own limit since version 1.20, before which it overflows its stack.
_CALL_DEPTH = 100
# Nodes after inlining; large language models as torch exports them, a function per module, have some ten thousand.
_INLINED_NODES = 1_000_000

# Operators with an operand that has an element for each axis of their result, and which one it is. Shape inference,
# onnxruntime's too, writes down as many axes as it is declared to have elements.
_ELEMENT_PER_AXIS = {"ConstantOfShape": 0, "Expand": 1, "Reshape": 1, "Tile": 1, "Unsqueeze": 1}
_AXES = 1 << 16

_FunctionKey = tuple[str, str, str]


def check_graphs(model: onnx.ModelProto) -> None:
    """Check the graph of ``model``, its subgraphs and its functions.

    Raises:
        ModelReadError: a name is not text, occurs twice or has no producer, or functions are recursive.
        UnsupportedError: an attribute is of a kind that cannot be read, or inlining would make too much.
    """
    _check_names(model.graph)
    for function in model.functions:
        _check_text(function.name, function.domain, *function.input, *function.output, *function.attribute)
        for node in function.node:
            _check_node_text(node)
    _check_calls(model)
    check_nodes(model)
    _check_axes(model.graph, {})


def _check_names(graph: onnx.GraphProto, outer: tuple[set[str], ...] = ()) -> None:
    """Every tensor that is read has exactly one producer: a truncated file may lack nodes and be valid protobuf.

    ``outer`` are the names that the graphs around this one know, a set for each.
    """
    stored = [t.name for t in graph.initializer] + [t.values.name for t in graph.sparse_initializer]
    if len(set(stored)) < len(stored):
        twice = next(name for i, name in enumerate(stored) if name in stored[:i])
        raise ModelReadError(f"the model is damaged: two initializers are named {twice!r}")
    known = {*stored, *(info.name for info in graph.input)}
    _check_text(graph.name, *known, *(info.name for info in graph.output))
    made: set[str] = set()
    for node in graph.node:
        _check_node_text(node)
        for name in filter(None, node.output):
            if name in made:
                raise ModelReadError(f"the model is damaged: two nodes make the tensor {name!r}")
            made.add(name)
    known |= made
    scopes = (known, *outer)
    for node in graph.node:
        for name in node.input:
            if name and not any(name in scope for scope in scopes):
                raise ModelReadError(
                    f"the model is damaged or truncated: node {node_label(node)} reads {name!r}, which nothing makes"
                )
        for subgraph in subgraphs(node):
            _check_names(subgraph, scopes)
    for info in graph.output:
        if not any(info.name in scope for scope in scopes):
            raise ModelReadError(f"the model is damaged or truncated: nothing makes its output {info.name!r}")


def _check_axes(graph: onnx.GraphProto, outer: dict[str, int]) -> None:
    """No tensor has billions of axes; ``outer`` are the lengths of vectors that the graphs around this one declare."""
    lengths = dict(outer)
    for info in (*graph.input, *graph.value_info):
        dims = info.type.tensor_type.shape.dim
        if len(dims) == 1:
            lengths[info.name] = dims[0].dim_value
    for node in graph.node:
        at = _ELEMENT_PER_AXIS.get(node.op_type, len(node.input))
        operand = node.input[at] if at < len(node.input) else ""
        if lengths.get(operand, 0) > _AXES:
            raise UnsupportedError(
                f"node {node_label(node)}: {operand!r} is declared with {lengths[operand]} elements, one "
                f"for each axis of the result; more than {_AXES} axes are refused"
            )
        for subgraph in subgraphs(node):
            _check_axes(subgraph, lengths)


def _check_node_text(node: onnx.NodeProto) -> None:
    _check_text(node.name, node.op_type, node.domain, *node.input, *node.output)
    for attribute in node.attribute:
        _check_text(attribute.name, attribute.ref_attr_name)


def _check_text(*names: str | bytes) -> None:
    # Protobuf returns bytes where a string is not UTF-8.
    for name in names:
        if not isinstance(name, str):
            raise ModelReadError(f"the model is damaged: the name {name!r} is not text")


def _check_calls(model: onnx.ModelProto) -> None:
    """No function is recursive, and inlining all calls gives a bounded number of nodes."""
    functions = {_key_of(f.domain, f.name, f): f for f in model.functions}
    if not functions:
        return
    if len(functions) < len(model.functions):
        raise ModelReadError("the model is damaged: two functions have one name")
    calls = {key: list(_calls_of(function.node, functions)) for key, function in functions.items()}
    nodes = {key: sum(1 for _ in _all_nodes(function.node)) for key, function in functions.items()}
    known: dict[_FunctionKey, _Inlined] = {}
    for key in functions:
        _inline(key, calls, nodes, known, ())
    total = sum(known[key].nodes for key in _calls_of(model.graph.node, functions))
    if total > _INLINED_NODES:
        raise UnsupportedError(
            f"the calls of its local functions stand for {total} nodes; more than {_INLINED_NODES} are refused"
        )


class _Inlined(NamedTuple):
    """What inlining a call gives: the number of nodes, and the depth of calls within it."""

    nodes: int
    depth: int


def _inline(
    key: _FunctionKey,
    calls: dict[_FunctionKey, list[_FunctionKey]],
    nodes: dict[_FunctionKey, int],
    known: dict[_FunctionKey, _Inlined],
    callers: tuple[_FunctionKey, ...],
) -> _Inlined:
    if key in callers:
        raise ModelReadError(f"the model is damaged: its local function {key[1]!r} ends up calling itself")
    if key not in known:
        deep = len(callers) >= _CALL_DEPTH
        inner = [] if deep else [_inline(callee, calls, nodes, known, (*callers, key)) for callee in calls[key]]
        depth = 1 + max((call.depth for call in inner), default=0)
        if deep or depth > _CALL_DEPTH:
            raise UnsupportedError(f"calls of local functions are nested more than {_CALL_DEPTH} deep")
        known[key] = _Inlined(nodes[key] + sum(call.nodes for call in inner), depth)
    return known[key]


def _calls_of(
    nodes: Iterable[onnx.NodeProto], functions: dict[_FunctionKey, onnx.FunctionProto]
) -> Iterator[_FunctionKey]:
    for node in _all_nodes(nodes):
        key = _key_of(node.domain, node.op_type, node)
        if key in functions:
            yield key


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for subgraph in subgraphs(node):
            yield from _all_nodes(subgraph.node)


def _key_of(domain: str, name: str, holder: onnx.FunctionProto | onnx.NodeProto) -> _FunctionKey:
    # Overloads came with IR version 10, onnx 1.16.
    return canonical_domain(domain), name, getattr(holder, "overload", "")
