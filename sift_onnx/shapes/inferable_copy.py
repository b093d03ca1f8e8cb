"""Copies of models that onnx's shape inference takes, with the same types and shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from itertools import count

import onnx
import onnx.inliner

from sift_onnx.files.external_data import is_external
from sift_onnx.graphs.node_checks import all_nodes, subgraphs, with_subgraphs
from sift_onnx.operators.domains import is_standard
from sift_onnx.shapes.node_inference import is_long_list

__all__ = ["with_own_names", "with_unbound_axes", "without_functions", "without_long_lists", "without_outside_data"]


def without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model``, or a copy with local functions inlined, so that numbers which they compute can be followed.

    Functions that onnx cannot inline stay; it infers shapes of their bodies.
    """
    if not model.functions:
        return model
    try:
        return onnx.inliner.inline_local_functions(model)
    except Exception:  # native code: a damaged model makes it fail in many ways
        return model


def without_outside_data(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model``, or a copy where tensors whose data lies elsewhere are declared as values, in subgraphs too.

    Data propagation reads the integers of every initializer that an operator it follows takes, be they a table of
    positions that no shape depends on; where the data is not there, it fails.
    """
    if not any(map(is_external, (tensor for graph in with_subgraphs(model.graph) for tensor in graph.initializer))):
        return model
    copy = deepcopy(model)
    for graph in with_subgraphs(copy.graph):
        declared = {info.name for info in (*graph.input, *graph.output)}
        stored = [tensor for tensor in graph.initializer if not is_external(tensor)]
        for tensor in filter(is_external, graph.initializer):
            info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            if is_long_list(info.type.tensor_type):
                info.type.tensor_type.shape.dim[0].ClearField("value")
            if tensor.name not in declared:
                graph.value_info.append(info)
        del graph.initializer[:]
        graph.initializer.extend(stored)
    return copy


def without_long_lists(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model``, or a copy where inputs that are longer lists of integers than any list of sizes have no length.

    An Expand or a ConstantOfShape by a list of two billion sizes has as many axes, which inference would write down.
    """
    long = [position for position, info in enumerate(model.graph.input) if is_long_list(info.type.tensor_type)]
    if not long:
        return model
    copy = deepcopy(model)
    for position in long:
        copy.graph.input[position].type.tensor_type.shape.dim[0].ClearField("value")
    return copy


def with_unbound_axes(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model``, or a copy where what splits an axis into single positions, and drops it, says so without a size.

    torch's unbind is a SplitToSequence by the number 1 with keepdims=0. The specification ignores keepdims beside a
    size, and so does inference; onnxruntime drops the axis, as torch does.
    """
    if not any(map(_may_unbind, all_nodes(model.graph.node))):
        return model
    copy = deepcopy(model)
    ones: set[str] = set()
    for graph in with_subgraphs(copy.graph):
        ones.update(_ones(graph))
        for node in graph.node:
            if _may_unbind(node) and node.input[1] in ones:
                del node.input[1:]
    return copy


def _may_unbind(node: onnx.NodeProto) -> bool:
    if node.op_type != "SplitToSequence" or not is_standard(node.domain) or len(node.input) < 2:
        return False
    return any(attribute.name == "keepdims" and attribute.i == 0 for attribute in node.attribute)


def _ones(graph: onnx.GraphProto) -> Iterable[str]:
    """Names of constants without axes that are one. onnxruntime fails where another number is beside keepdims=0."""
    yield from (tensor.name for tensor in graph.initializer if _is_one(tensor))
    for node in graph.node:
        is_one = any(
            (a.name == "value_int" and a.i == 1) or (a.name == "value" and _is_one(a.t)) for a in node.attribute
        )
        if node.op_type == "Constant" and is_standard(node.domain) and is_one:
            yield node.output[0]


def _is_one(tensor: onnx.TensorProto) -> bool:
    return not tensor.dims and not is_external(tensor) and onnx.numpy_helper.to_array(tensor).item() == 1


def with_own_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model``, or a copy where no two subgraphs make values of one name, as the branches of an If may.

    Data propagation keeps what it knows of all subgraphs by name, and fails on a name that it has met.
    """
    made = [name for graph in with_subgraphs(model.graph) for name in _made_in(graph)]
    if len(set(made)) == len(made):
        return model
    copy = deepcopy(model)
    taken = {name for graph in with_subgraphs(model.graph) for name in _named_in(graph)}
    fresh = (name for name in map("value {}".format, count()) if name not in taken)
    for node in copy.graph.node:
        for inner in subgraphs(node):
            _rename(inner, {}, fresh)
    return copy


def _rename(graph: onnx.GraphProto, outer: Mapping[str, str], fresh: Iterator[str]) -> None:
    names = {**outer, **{name: next(fresh) for name in _named_in(graph)}}
    for info in (*graph.input, *graph.output, *graph.value_info):
        info.name = names.get(info.name, info.name)
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for inner in subgraphs(node):
            _rename(inner, names, fresh)


def _made_in(graph: onnx.GraphProto) -> Iterator[str]:
    return (name for node in graph.node for name in node.output if name)


def _named_in(graph: onnx.GraphProto) -> list[str]:
    inputs = [info.name for info in graph.input]
    return [*_made_in(graph), *inputs, *(tensor.name for tensor in graph.initializer if tensor.name not in inputs)]
