"""A graph whose sparse layers run on lanes, and the same graph as it was. Every tensor is converted once each way."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx

from sift_onnx.training.kernels import normalization
from sift_onnx.training.kernels.data_movement import layout
from sift_onnx.training.kernels.data_movement.joining import concat, split
from sift_onnx.training.kernels.elementwise import activation, arithmetic
from sift_onnx.training.kernels.reduction import reduce_mean
from sift_onnx.training.kernels.spatial import pooling
from sift_onnx.training.module import ImportedModule
from sift_onnx.training.sparse_layers.dense_layer import DenseLayer, dense_layers
from sift_onnx.training.sparse_layers.graph_layers import stored_tensor
from sift_onnx.training.sparse_layers.lanes.average_pool import average_pool
from sift_onnx.training.sparse_layers.lanes.batch_norm import normalize
from sift_onnx.training.sparse_layers.lanes.batch_norm_pool import normalize_and_pool
from sift_onnx.training.sparse_layers.lanes.channels import concatenate, flatten, spatial_mean, split_channels
from sift_onnx.training.sparse_layers.lanes.layer_norm import layer_norm, rms_norm
from sift_onnx.training.sparse_layers.lanes.max_pool import max_pool
from sift_onnx.training.sparse_layers.lanes.operators import (
    BINARY,
    ELEMENTWISE,
    average,
    combine,
    elementwise,
    kernel_of,
    name_of,
    with_vector,
)
from sift_onnx.training.sparse_layers.lanes.tensors import Lanes, from_lanes, image_lanes, token_lanes
from sift_onnx.training.sparse_layers.layer import SparseLayer
from sift_onnx.training.sparse_layers.regions import Kind, nodes_in_lanes, readers
from sift_onnx.training.sparse_layers.spelled import fuse_spelled, respell, spelled, spelled_in_lanes

__all__ = ["HOLDER", "keep_layer", "layer_at", "put_in_lanes", "take_out_of_lanes"]

# Attribute of an imported module that holds what its nodes have, and so its layers in lanes.
HOLDER = "layers"
# Attribute of that one: the share of lanes that batches of images fill.
_USED = "used_lanes"

_CONVERSIONS = {"images": image_lanes, "tokens": token_lanes}


def keep_layer(module: ImportedModule, layer: SparseLayer | DenseLayer) -> str:
    """Keep a layer in an attribute of its own; its path in the module."""
    holder = module.get_submodule(HOLDER)
    kind = "sparse" if isinstance(layer, SparseLayer) else "dense"
    number = 0
    while hasattr(holder, f"{kind}_{number}"):
        number += 1
    setattr(holder, f"{kind}_{number}", layer)
    return f"{HOLDER}.{kind}_{number}"


def layer_at(module: ImportedModule, place: str) -> SparseLayer:
    """The sparse layer at an attribute path."""
    layer: SparseLayer = operator.attrgetter(place)(module)
    return layer


def run_layer(layer: SparseLayer | DenseLayer, x: Lanes, values: Tensor, bias: Tensor | None = None) -> Lanes:
    """The layer's output, as the graph calls for it."""
    return layer(x, values, bias)


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
                _put_in_place(graph, node, respell(graph, node))
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
        for node in list(self._graph.nodes):
            _fuse_bias(self._module, node)
            _fuse(self._graph, node)
            _fuse_pool(self._graph, node)

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


def _fuse_bias(module: ImportedModule, node: fx.Node) -> None:
    """Let a layer add the vector that is added to its product."""
    if node.target is not with_vector or node.args[0] != name_of(arithmetic.add):
        return
    _, product, vector = node.args
    assert isinstance(product, fx.Node) and isinstance(vector, fx.Node)
    stored = stored_tensor(module, vector)
    if product.target is not run_layer or len(product.args) > 3 or len(product.users) > 1 or stored is None:
        return
    place = product.args[0]
    assert isinstance(place, fx.Node)
    layer = layer_at(module, str(place.target))
    if layer.product.is_convolution or stored.dim() != 1 or stored.numel() != layer.features:
        return
    with module.graph.inserting_before(node):
        fused = module.graph.call_function(run_layer, (*product.args, vector))
    fused.meta.update(product.meta)
    node.replace_all_uses_with(fused)
    module.graph.erase_node(node)
    module.graph.erase_node(product)


def _fuse(graph: fx.Graph, node: fx.Node) -> None:
    """Let a normalization do the sum and the ReLU behind it."""
    if node.target is not elementwise or node.args[0] != name_of(activation.relu):
        return
    (behind,) = node.all_input_nodes
    operands = [behind]
    if behind.target is combine and behind.args[0] == name_of(arithmetic.add) and len(behind.users) == 1:
        operands = behind.all_input_nodes
    alone = [o for o in operands if o.target is normalize and len(o.users) == 1 and "relu" not in o.kwargs]
    if not alone or (len(operands) == 1 and operands[0] is behind and behind.target is combine):
        return
    first = alone[0]
    residual = tuple(o for o in operands if o is not first)
    with graph.inserting_before(node):
        fused = graph.call_function(normalize, (*first.args, *residual), {"relu": True})
    fused.meta.update(first.meta)
    node.replace_all_uses_with(fused)
    for old in (node, *([behind] if behind is not first else []), first):
        graph.erase_node(old)


def _fuse_pool(graph: fx.Graph, node: fx.Node) -> None:
    """Let a pooling do the normalization before it."""
    if node.target is not max_pool:
        return
    (normalized,) = node.all_input_nodes
    if normalized.target is not normalize or len(normalized.args) > 6 or len(normalized.users) > 1:
        return
    attributes = {"relu": bool(normalized.kwargs.get("relu")), "attributes": node.kwargs["attributes"]}
    with graph.inserting_before(node):
        fused = graph.call_function(normalize_and_pool, normalized.args, attributes)
    fused.meta.update(node.meta)
    node.replace_all_uses_with(fused)
    graph.erase_node(node)
    graph.erase_node(normalized)


def take_out_of_lanes(module: ImportedModule) -> dict[fx.Node, str]:
    """Put the kernels of torch back into a module's graph.

    Returns:
        The nodes of its sparse layers and their places, as :func:`put_in_lanes` takes them.
    """
    graph: fx.Graph = module.graph
    places: dict[fx.Node, str] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        with graph.inserting_before(node):
            plain = _layer_node(module, graph, node, places) if node.target is run_layer else _plain(graph, node)
        if plain is not None:
            _put_in_place(graph, node, plain)
    for node in reversed(list(graph.nodes)):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)
    holder = vars(module.get_submodule(HOLDER))
    for name in [name for name, value in holder.items() if isinstance(value, DenseLayer)]:
        del holder[name]
    return places


def _put_in_place(graph: fx.Graph, node: fx.Node, new: fx.Node) -> None:
    if "onnx_node" in node.meta:
        new.meta["onnx_node"] = node.meta["onnx_node"]
    node.replace_all_uses_with(new)
    graph.erase_node(node)


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
