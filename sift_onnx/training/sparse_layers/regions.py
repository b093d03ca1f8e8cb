"""Regions of a graph whose activations stay in lanes, around its sparse layers.

A region grows from the outputs of sparse layers over operators that work on lanes as they are. An operator that reads a
tensor from outside joins only where its own result reaches another sparse layer: otherwise converting that tensor costs
as much as converting the region's. Every tensor is converted once in each direction.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, fx

from sift_onnx.training.kernels.data_movement import layout
from sift_onnx.training.kernels.elementwise import activation, arithmetic
from sift_onnx.training.kernels.normalization import BatchNormalization
from sift_onnx.training.kernels.spatial import pooling
from sift_onnx.training.module import ImportedModule
from sift_onnx.training.sparse_layers.batch_norm import normalize
from sift_onnx.training.sparse_layers.graph_layers import GraphLayer, stored_tensor
from sift_onnx.training.sparse_layers.lane_operators import (
    BINARY,
    ELEMENTWISE,
    average,
    combine,
    elementwise,
    flatten,
    kernel_of,
    max_pool,
    name_of,
    with_vector,
)
from sift_onnx.training.sparse_layers.lanes import Lanes, from_lanes, image_lanes, token_lanes
from sift_onnx.training.sparse_layers.layer import SparseLayer

__all__ = ["put_in_lanes", "take_out_of_lanes"]

Kind = Literal["images", "tokens"]
_CONVERSIONS = {"images": image_lanes, "tokens": token_lanes}


def run_layer(layer: SparseLayer, x: Lanes, values: Tensor, bias: Tensor | None = None) -> Lanes:
    """The layer's output, as the graph calls for it."""
    return layer(x, values, bias)


def put_in_lanes(module: ImportedModule, layers: Mapping[str, GraphLayer], places: Mapping[str, str]) -> None:
    """Rewrite a module's graph so that layers run on lanes.

    Args:
        module: the module.
        layers: the layers by name.
        places: the attribute path of each :class:`SparseLayer`, by name.
    """
    graph: fx.Graph = module.graph
    sparse = {found.node: name for name, found in layers.items()}
    inside = _Region(module, {node: layers[name].product.is_convolution for node, name in sparse.items()}).nodes()
    rewriting = _Rewriting(module, inside)
    for node in list(graph.nodes):
        if node in sparse:
            rewriting.layer(node, places[sparse[node]])
        elif node in inside:
            rewriting.operator(node)
    rewriting.finish()


class _Region:
    """Which nodes lie in lanes, and whether these are of images or of tokens."""

    def __init__(self, module: ImportedModule, layers: Mapping[fx.Node, bool]) -> None:
        self._module = module
        self._layers = layers
        self._kinds: dict[fx.Node, Kind] = {}

    def nodes(self) -> dict[fx.Node, Kind]:
        """The nodes in lanes."""
        order = list(self._module.graph.nodes)
        for node in order:
            if (kind := self._possible(node)) is not None:
                self._kinds[node] = kind
        reaching: set[fx.Node] = set()
        for node in reversed(order):
            used = any(user in reaching or self._reads_lanes(user, node) for user in node.users)
            if node in self._kinds and used:
                reaching.add(node)
        inside: dict[fx.Node, Kind] = {}
        for node, kind in self._kinds.items():
            reads = [read in inside for read in _activations(self._module, node)]
            if node in self._layers or (any(reads) and (all(reads) or node in reaching)):
                inside[node] = kind
        return inside

    def _reads_lanes(self, user: fx.Node, node: fx.Node) -> bool:
        return user in self._layers and user.args[0] is node and self._kinds[user] == self._kinds.get(node)

    def _possible(self, node: fx.Node) -> Kind | None:
        if node in self._layers:
            return "images" if self._layers[node] else "tokens"
        kinds = {self._kinds[read] for read in node.all_input_nodes if read in self._kinds}
        if len(kinds) != 1:
            return None
        (kind,) = kinds
        return _result(self._module, node, kind)


def _result(module: ImportedModule, node: fx.Node, kind: Kind) -> Kind | None:
    """The kind of a node's result if it reads lanes of this kind, or None if it cannot."""
    target = node.target
    if target is operator.getitem:
        return kind if node.args[1] == 0 else None
    if _is_batch_norm(module, node) or target is pooling.max_pool:
        first_alone = all(user.target is operator.getitem and user.args[1] == 0 for user in node.users)
        return kind if kind == "images" and first_alone and node.kwargs.get("outputs", 1) == 1 else None
    if target in ELEMENTWISE:
        return kind if not any(isinstance(argument, fx.Node) for argument in node.args[1:]) else None
    if target in BINARY:
        if any(not isinstance(argument, fx.Node) for argument in node.args):
            return None
        stored = [stored_tensor(module, argument) for argument in node.args]
        if target is arithmetic.div and (stored[1] is None or not bool(stored[1].all())):
            return None  # idle lanes may hold zeros
        return kind if all(tensor is None or _is_vector(tensor, kind) for tensor in stored) else None
    if target is pooling.global_average_pool:
        return kind if kind == "images" else None
    if target is layout.flatten:
        return "tokens" if kind == "images" and node.kwargs.get("axis", 1) == 1 else None
    return None


def _is_batch_norm(module: ImportedModule, node: fx.Node) -> bool:
    return node.op == "call_module" and isinstance(module.get_submodule(str(node.target)), BatchNormalization)


def _is_vector(tensor: Tensor, kind: Kind) -> bool:
    """Whether a stored tensor has one number per channel, as it broadcasts, or one in all."""
    if tensor.numel() == 1:
        return tensor.dim() <= 1
    if kind == "tokens":
        return tensor.dim() == 1
    # With fewer axes it would broadcast along others in images of one spatial axis.
    return tensor.dim() == 4 and tensor.numel() == tensor.shape[1]


def _activations(module: ImportedModule, node: fx.Node) -> list[fx.Node]:
    """What a node reads that may be in lanes."""
    if node.target in BINARY:
        return [read for read in node.all_input_nodes if stored_tensor(module, read) is None]
    return [node.args[0]] if isinstance(node.args[0], fx.Node) else []


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
        """Put the sparse layer in the node's place."""
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
            if target is operator.getitem:
                self._new[node] = self._known(node.args[0])
            elif target in BINARY:
                self._binary(node)
            elif target in ELEMENTWISE:
                x, *numbers = node.args
                self._put(node, elementwise, (name_of(target), self._known(x), *numbers), attributes)
            elif target is pooling.max_pool:
                self._put(node, max_pool, (self._known(node.args[0]),), attributes)
            elif target is pooling.global_average_pool:
                self._put(node, average, (self._known(node.args[0]),), {})
            elif target is layout.flatten:
                self._put(node, flatten, (self._known(node.args[0]),), {})
            else:
                normalization = self._graph.create_node("get_attr", str(node.target))
                x, *statistics = node.args
                self._put(node, normalize, (normalization, self._known(x), *statistics), {})

    def finish(self) -> None:
        """Give tensors to what lies outside, and drop the nodes that were replaced."""
        for node, new in self._new.items():
            outside = [user for user in node.users if user not in self._new]
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
            _fuse(self._graph, node)

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


def take_out_of_lanes(module: ImportedModule) -> None:
    """Put the kernels of torch back into a module's graph."""
    graph: fx.Graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        with graph.inserting_before(node):
            plain = _plain(module, graph, node)
        if plain is not None:
            if "onnx_node" in node.meta:
                plain.meta["onnx_node"] = node.meta["onnx_node"]
            node.replace_all_uses_with(plain)
            graph.erase_node(node)
    for node in reversed(list(graph.nodes)):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)


def _plain(module: ImportedModule, graph: fx.Graph, node: fx.Node) -> fx.Node | None:
    target, args, kwargs = node.target, node.args, node.kwargs
    if target in (image_lanes, token_lanes, from_lanes):
        return args[0] if isinstance(args[0], fx.Node) else None
    if target is run_layer:
        place, x, weight, *bias = args
        assert isinstance(place, fx.Node)
        layer: SparseLayer = operator.attrgetter(str(place.target))(module)
        if layer.product.transposed:
            weight = graph.call_function(layout.transpose, (weight,), {"perm": (1, 0)})
        return graph.call_function(layer.product.run, (x, weight, *bias), dict(layer.product.attributes))
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
    if target is normalize:
        place, x, scale, shift, mean, variance, *residual = args
        assert isinstance(place, fx.Node)
        outputs = graph.call_module(str(place.target), (x, scale, shift, mean, variance))
        result = graph.call_function(operator.getitem, (outputs, 0))
        if residual:
            result = graph.call_function(arithmetic.add, (result, *residual))
        return graph.call_function(activation.relu, (result,)) if kwargs.get("relu") else result
    if target is max_pool:
        outputs = graph.call_function(pooling.max_pool, args, _attributes(kwargs))
        return graph.call_function(operator.getitem, (outputs, 0))
    return None


def _attributes(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return dict(kwargs["attributes"])
