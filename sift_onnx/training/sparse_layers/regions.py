"""Which nodes of a graph lie in lanes: regions around its sparse layers.

A region grows from the outputs of sparse layers over operators that work on lanes as they are. An operator that reads a
tensor from outside joins only where its own result reaches another sparse layer: otherwise converting that tensor costs
as much as converting the region's. Normalizations and pooling before a region, with what stands between, belong to it:
in lanes they take a fraction of the time.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, fx

from sift_onnx.training.kernels import normalization
from sift_onnx.training.kernels.data_movement import layout
from sift_onnx.training.kernels.elementwise import arithmetic
from sift_onnx.training.kernels.normalization import BatchNormalization
from sift_onnx.training.kernels.spatial import pooling
from sift_onnx.training.module import ImportedModule
from sift_onnx.training.sparse_layers.graph_layers import stored_tensor
from sift_onnx.training.sparse_layers.lane_operators import BINARY, ELEMENTWISE

__all__ = ["Kind", "nodes_in_lanes"]

Kind = Literal["images", "tokens"]


def nodes_in_lanes(module: ImportedModule, layers: Mapping[fx.Node, bool]) -> dict[fx.Node, Kind]:
    """The nodes whose results are in lanes, and whether these are of images or of tokens.

    Args:
        module: the module.
        layers: its sparse layers; true for convolutions.
    """
    return _Region(module, layers).nodes()


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
        for node in order:
            if node in self._layers:
                inside.update(self._before(node, inside))
        return inside

    def _before(self, layer: fx.Node, inside: Mapping[fx.Node, Kind]) -> dict[fx.Node, Kind]:
        """The operators before a layer, each read by the region alone, from the first one that pays on."""
        kind = self._kinds[layer]
        chain: list[fx.Node] = []
        node = layer.args[0]
        while isinstance(node, fx.Node) and node not in inside and _has_one_input(node):
            read_inside = all(user in inside or user in chain for user in node.users)
            if not read_inside or _result(self._module, node, kind) != kind:
                break
            chain.append(node)
            node = node.args[0]
        while chain and not _pays(self._module, chain[-1]):
            chain.pop()
        return dict.fromkeys(chain, kind)

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
    target, attributes = node.target, _attributes(node)
    if target is operator.getitem:
        return kind if node.args[1] == 0 else None
    if target is pooling.max_pool and len(attributes.get("kernel_shape", ())) != 2:
        return None
    if _is_batch_norm(module, node) or target is pooling.max_pool:
        first_alone = all(user.target is operator.getitem and user.args[1] == 0 for user in node.users)
        return kind if kind == "images" and first_alone and attributes.get("outputs", 1) == 1 else None
    if target is normalization.layer_norm:
        return kind if kind == "tokens" and _is_over_features(module, node) else None
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
        return "tokens" if kind == "images" and attributes.get("axis", 1) == 1 else None
    return None


def _attributes(node: fx.Node) -> dict[str, Any]:
    return dict(node.kwargs)


def _is_batch_norm(module: ImportedModule, node: fx.Node) -> bool:
    return node.op == "call_module" and isinstance(module.get_submodule(str(node.target)), BatchNormalization)


def _has_one_input(node: fx.Node) -> bool:
    return node.target not in BINARY and bool(node.args) and node.op in ("call_function", "call_module")


def _pays(module: ImportedModule, node: fx.Node) -> bool:
    """Whether an operator takes so much less time in lanes that its input is converted for it."""
    return _is_batch_norm(module, node) or node.target in (pooling.max_pool, normalization.layer_norm)


def _is_over_features(module: ImportedModule, node: fx.Node) -> bool:
    """Whether a layer normalization is over the last axis, with stored scale and shift."""
    stored = [stored_tensor(module, argument) for argument in node.args[1:]]
    attributes = _attributes(node)
    if attributes.get("axis", -1) != -1 or attributes.get("outputs", 1) != 1:
        return False
    return all(tensor is not None and tensor.dim() == 1 and tensor.numel() > 1 for tensor in stored)


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
