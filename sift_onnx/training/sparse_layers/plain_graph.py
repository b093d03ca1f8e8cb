"""A graph that comes out of lanes: the kernels of torch stand where those on lanes stood."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from torch import fx

from sift_onnx.training.kernels import normalization
from sift_onnx.training.kernels.data_movement import layout
from sift_onnx.training.kernels.data_movement.joining import concat, split
from sift_onnx.training.kernels.elementwise import activation, arithmetic
from sift_onnx.training.kernels.reduction import reduce_mean
from sift_onnx.training.kernels.spatial import pooling
from sift_onnx.training.module import ImportedModule
from sift_onnx.training.sparse_layers.dense_layer import DenseLayer
from sift_onnx.training.sparse_layers.held_layers import HOLDER, layer_at, put_in_place, run_layer
from sift_onnx.training.sparse_layers.lanes.average_pool import average_pool
from sift_onnx.training.sparse_layers.lanes.batch_norm import normalize
from sift_onnx.training.sparse_layers.lanes.batch_norm_pool import normalize_and_pool
from sift_onnx.training.sparse_layers.lanes.channels import concatenate, flatten, spatial_mean, split_channels
from sift_onnx.training.sparse_layers.lanes.layer_norm import layer_norm, rms_norm
from sift_onnx.training.sparse_layers.lanes.max_pool import max_pool
from sift_onnx.training.sparse_layers.lanes.operators import average, combine, elementwise, kernel_of, with_vector
from sift_onnx.training.sparse_layers.lanes.tensors import from_lanes, image_lanes, token_lanes
from sift_onnx.training.sparse_layers.layer import SparseLayer
from sift_onnx.training.sparse_layers.spelled import respell, spelled_in_lanes

__all__ = ["take_out_of_lanes"]


def take_out_of_lanes(module: ImportedModule) -> dict[fx.Node, str]:
    """Put the kernels of torch back into a module's graph.

    Returns:
        The nodes of its sparse layers and their places, as ``put_in_lanes`` takes them.
    """
    graph: fx.Graph = module.graph
    places: dict[fx.Node, str] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        with graph.inserting_before(node):
            plain = _layer_node(module, graph, node, places) if node.target is run_layer else _plain(graph, node)
        if plain is not None:
            put_in_place(graph, node, plain)
    for node in reversed(list(graph.nodes)):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)
    holder = vars(module.get_submodule(HOLDER))
    for name in [name for name, value in holder.items() if isinstance(value, DenseLayer)]:
        del holder[name]
    return places


def _layer_node(module: ImportedModule, graph: fx.Graph, node: fx.Node, places: dict[fx.Node, str]) -> fx.Node:
    """The result of a layer by torch's kernel, whose node is noted if it is sparse."""
    place, x, weight, *bias = node.args
    assert isinstance(place, fx.Node)
    layer = layer_at(module, str(place.target))
    product = layer.product
    added = bias if product.takes_bias else []
    if product.transposed:
        weight = graph.call_function(layout.transpose, (weight,), {"perm": (1, 0)})
    plain = graph.call_function(product.run, (x, weight, *added), dict(product.attributes))
    if isinstance(layer, SparseLayer):
        places[plain] = str(place.target)
    return plain if added or not bias else graph.call_function(arithmetic.add, (plain, *bias))


def _plain(graph: fx.Graph, node: fx.Node) -> fx.Node | None:
    target, args, kwargs = node.target, node.args, node.kwargs
    if target in (image_lanes, token_lanes, from_lanes):
        return args[0] if isinstance(args[0], fx.Node) else None
    if target is elementwise:
        return graph.call_function(kernel_of(str(args[0])), args[1:], _attributes(kwargs))
    if target is combine:
        return graph.call_function(kernel_of(str(args[0])), args[1:])
    if target is with_vector:
        kernel, x, vector = args
        return graph.call_function(kernel_of(str(kernel)), (vector, x) if kwargs["is_first"] else (x, vector))
    if target is average:
        return graph.call_function(pooling.global_average_pool, args)
    if target is flatten:
        return graph.call_function(layout.flatten, args, {"axis": 1})
    if target is spatial_mean:
        return graph.call_function(reduce_mean, args, _attributes(kwargs))
    if target is split_channels:
        return graph.call_function(split, args, _attributes(kwargs))
    if target is concatenate:
        return graph.call_function(concat, args, {"axis": 1})
    if target is average_pool:
        return graph.call_function(pooling.average_pool, args, _attributes(kwargs))
    if target in (normalize, normalize_and_pool):
        result = _plain_normalization(graph, args, relu=bool(kwargs.get("relu")))
        return _plain_pooling(graph, (result,), kwargs) if target is normalize_and_pool else result
    if target is spelled_in_lanes:
        return respell(graph, node)
    if target is layer_norm:
        outputs = graph.call_function(normalization.layer_norm, args, {"axis": -1, **kwargs})
        return graph.call_function(operator.getitem, (outputs, 0))
    if target is rms_norm:
        return graph.call_function(normalization.rms_norm, args, {"axis": -1, **kwargs})
    if target is max_pool:
        return _plain_pooling(graph, args, kwargs)
    return None


def _plain_normalization(graph: fx.Graph, args: tuple[Any, ...], *, relu: bool) -> fx.Node:
    place, x, scale, shift, mean, variance, *residual = args
    outputs = graph.call_module(str(place.target), (x, scale, shift, mean, variance))
    result = graph.call_function(operator.getitem, (outputs, 0))
    if residual:
        result = graph.call_function(arithmetic.add, (result, *residual))
    return graph.call_function(activation.relu, (result,)) if relu else result


def _plain_pooling(graph: fx.Graph, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> fx.Node:
    return graph.call_function(operator.getitem, (graph.call_function(pooling.max_pool, args, _attributes(kwargs)), 0))


def _attributes(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return dict(kwargs["attributes"])
