"""A graph whose sparse layers run on lanes. Every tensor is converted once each way."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from torch import fx

from sift_onnx.training.kernels import normalization
from sift_onnx.training.kernels.data_movement import layout
from sift_onnx.training.kernels.data_movement.joining import concat, split
from sift_onnx.training.kernels.reduction import reduce_mean
from sift_onnx.training.kernels.spatial import pooling
from sift_onnx.training.module import ImportedModule
from sift_onnx.training.sparse_layers.dense_layer import DenseLayer, dense_layers
from sift_onnx.training.sparse_layers.graph_layers import stored_tensor
from sift_onnx.training.sparse_layers.held_layers import HOLDER, keep_layer, layer_at, put_in_place, run_layer
from sift_onnx.training.sparse_layers.lane_fusion import fuse_operators
from sift_onnx.training.sparse_layers.lanes.average_pool import average_pool
from sift_onnx.training.sparse_layers.lanes.batch_norm import normalize
from sift_onnx.training.sparse_layers.lanes.channels import concatenate, flatten, spatial_mean, split_channels
from sift_onnx.training.sparse_layers.lanes.layer_norm import layer_norm, rms_norm
from sift_onnx.training.sparse_layers.lanes.max_pool import max_pool
from sift_onnx.training.sparse_layers.lanes.operators import (
    BINARY,
    ELEMENTWISE,
    average,
    combine,
    elementwise,
    name_of,
    with_vector,
)
from sift_onnx.training.sparse_layers.lanes.tensors import from_lanes, image_lanes, token_lanes
from sift_onnx.training.sparse_layers.regions import Kind, nodes_in_lanes, readers
from sift_onnx.training.sparse_layers.spelled import fuse_spelled, respell, spelled, spelled_in_lanes

__all__ = ["put_in_lanes"]

# Attribute of what holds an imported module's layers: the share of lanes that batches of images fill.
_USED = "used_lanes"

_CONVERSIONS = {"images": image_lanes, "tokens": token_lanes}


def put_in_lanes(module: ImportedModule, places: Mapping[fx.Node, str], used: float | None = None) -> None:
    """Rewrite a module's graph so that layers run on lanes; none does before.

    Args:
        module: the module.
        places: the nodes of the layers, and the attribute path of the :class:`SparseLayer` of each.
        used: share of lanes that batches of images fill; None: as in the last call.
    """
    graph: fx.Graph = module.graph
    convolutions = {node: layer_at(module, place).product.is_convolution for node, place in places.items()}
    holder = module.get_submodule(HOLDER)
    if used is not None:
        vars(holder)[_USED] = used
    fuse_spelled(module)
    dense = dense_layers(module, vars(holder).get(_USED, 1.0))
    inside = nodes_in_lanes(module, convolutions, dense)
    for node in list(graph.nodes):
        if node.target is spelled and node not in inside:
            with graph.inserting_before(node):
                put_in_place(graph, node, respell(graph, node))
    rewriting = _Rewriting(module, inside)
    for node in list(graph.nodes):
        if node in places:
            rewriting.layer(node, places[node])
        elif node in dense and node in inside:
            rewriting.layer(node, keep_layer(module, DenseLayer(dense[node])))
        elif node in inside:
            rewriting.operator(node)
    rewriting.finish()


class _Rewriting:
    """New nodes in place of those that lie in lanes."""

    def __init__(self, module: ImportedModule, inside: Mapping[fx.Node, Kind]) -> None:
        self._module = module
        self._graph: fx.Graph = module.graph
        self._inside = inside
        self._new: dict[fx.Node, fx.Node] = {}
        self._transposes: list[fx.Node] = []
        self._converted: dict[tuple[fx.Node, Kind], fx.Node] = {}

    def layer(self, node: fx.Node, place: str) -> None:
        """Put a layer in the node's place."""
        x, weight, *bias = node.args
        if isinstance(weight, fx.Node) and weight.target is layout.transpose:
            self._transposes.append(weight)
            weight = weight.args[0]
        kind = self._inside[node]
        with self._graph.inserting_before(node):
            layer = self._graph.create_node("get_attr", place)
            self._put(node, run_layer, (layer, self._lanes(x, kind), weight, *bias), {})

    def operator(self, node: fx.Node) -> None:
        """Put the operator on lanes in the node's place."""
        target, attributes = node.target, {"attributes": dict(node.kwargs)}
        with self._graph.inserting_before(node):
            if target in BINARY:
                self._binary(node)
                return
            if target is concat:
                self._put(node, concatenate, tuple(self._lanes(part, "images") for part in node.args), {})
                return
            kind: Kind = "images" if target in (layout.flatten, reduce_mean) else self._inside[node]
            x, *rest = self._lanes(node.args[0], kind), *node.args[1:]
            if target is operator.getitem and node.all_input_nodes[0].target is split:
                self._put(node, operator.getitem, (x, *rest), {})
            elif target is operator.getitem:
                self._new[node] = x
            elif target is split:
                self._put(node, split_channels, (x, *rest), attributes)
            elif target in ELEMENTWISE:
                self._put(node, elementwise, (name_of(target), x, *rest), attributes)
            elif target is spelled:
                self._put(node, spelled_in_lanes, (x, *rest), dict(node.kwargs))
            elif target is pooling.max_pool:
                self._put(node, max_pool, (x,), attributes)
            elif target is pooling.average_pool:
                self._put(node, average_pool, (x,), attributes)
            elif target is normalization.layer_norm:
                self._put(node, layer_norm, (x, *rest), {"epsilon": node.kwargs.get("epsilon", 1e-5)})
            elif target is normalization.rms_norm:
                self._put(node, rms_norm, (x, *rest), {"epsilon": node.kwargs.get("epsilon", 1e-5)})
            elif target is pooling.global_average_pool:
                self._put(node, average, (x,), {})
            elif target is reduce_mean:
                self._put(node, spatial_mean, (x, *rest), attributes)
            elif target is layout.flatten:
                self._put(node, flatten, (x,), {})
            else:
                module = self._graph.create_node("get_attr", str(node.target))
                self._put(node, normalize, (module, x, *rest), {})

    def finish(self) -> None:
        """Give tensors to what lies outside, and drop the nodes that were replaced."""
        for node, new in self._new.items():
            reading = readers(node)
            outside = [user for user in reading if user not in self._new]
            for user in [user for user in node.users if user not in reading]:
                user.replace_input_with(node, new)
            if outside:
                with self._graph.inserting_after(new):
                    tensor = self._graph.call_function(from_lanes, (new,))
                for user in outside:
                    user.replace_input_with(node, tensor)
        for node in reversed(self._new):
            self._graph.erase_node(node)
        for node in self._transposes:
            self._graph.erase_node(node)
        fuse_operators(self._module)

    def _binary(self, node: fx.Node) -> None:
        first, second = node.args
        stored = [stored_tensor(self._module, argument) is not None for argument in (first, second)]
        if any(stored):
            vector, x = (first, second) if stored[0] else (second, first)
            self._put(node, with_vector, (name_of(node.target), self._known(x), vector), {"is_first": stored[0]})
        else:
            self._put(node, combine, (name_of(node.target), self._known(first), self._known(second)), {})

    def _put(self, node: fx.Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        new = self._graph.call_function(target, args, kwargs)
        if "onnx_node" in node.meta:
            new.meta["onnx_node"] = node.meta["onnx_node"]
        self._new[node] = new

    def _known(self, x: Any) -> Any:
        """A node's result in lanes if it is there, or else as torch has it."""
        return self._new.get(x, x)

    def _lanes(self, x: Any, kind: Kind) -> fx.Node:
        """A node's result in lanes of a kind, converted at its first use."""
        if self._inside.get(x) == kind:
            return self._new[x]
        if (x, kind) not in self._converted:
            tensor = self._graph.call_function(from_lanes, (self._new[x],)) if x in self._new else x
            self._converted[x, kind] = self._graph.call_function(_CONVERSIONS[kind], (tensor,))
        return self._converted[x, kind]
