"""Which nodes of a graph lie in lanes: regions around its sparse layers.

A region grows from the outputs of sparse layers over operators that work on lanes as they are. An operator that reads a
tensor from outside joins only where its own result reaches another sparse layer: otherwise converting that tensor costs
as much as converting the region's. Normalizations and pooling before a region, with what stands between, belong to it:
in lanes they take a fraction of the time. So do dense convolutions that have no more channels to convert before them
than behind them. One behind a region belongs to it if its result reaches an operator that is faster in lanes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Mapping
from typing import Any, Literal

from torch import Tensor, fx

from sift_onnx.training.host_kernels import shape
from sift_onnx.training.kernels import normalization
from sift_onnx.training.kernels.data_movement import layout
from sift_onnx.training.kernels.data_movement.joining import concat, split
from sift_onnx.training.kernels.elementwise import arithmetic
from sift_onnx.training.kernels.elementwise.casting import cast_like
from sift_onnx.training.kernels.normalization import BatchNormalization
from sift_onnx.training.kernels.reduction import reduce_mean
from sift_onnx.training.kernels.spatial import pooling
from sift_onnx.training.kernels.spatial.convolution import Convolution, convolve
from sift_onnx.training.module import ImportedModule
from sift_onnx.training.sparse_layers.graph_layers import stored_tensor
from sift_onnx.training.sparse_layers.lanes.channels import is_over_space
from sift_onnx.training.sparse_layers.lanes.operators import BINARY, ELEMENTWISE
from sift_onnx.training.sparse_layers.spelled import is_normalization, spelled

__all__ = ["Kind", "nodes_in_lanes", "readers"]

Kind = Literal["images", "tokens"]


def nodes_in_lanes(
    module: ImportedModule, layers: Mapping[fx.Node, bool], dense: Collection[fx.Node] = ()
) -> dict[fx.Node, Kind]:
    """The nodes whose results are in lanes, and whether these are of images or of tokens.

    Args:
        module: the module.
        layers: its sparse layers; true for convolutions.
        dense: convolutions of dense weights that may be among them.
    """
    return _Region(module, layers, dense).nodes()


class _Region:
    """Which nodes lie in lanes, and whether these are of images or of tokens."""

    def __init__(self, module: ImportedModule, layers: Mapping[fx.Node, bool], dense: Collection[fx.Node]) -> None:
        self._module = module
        self._layers = layers
        self._dense = dense
        self._order: list[fx.Node] = list(module.graph.nodes)
        self._kinds: dict[fx.Node, Kind] = {}

    def nodes(self) -> dict[fx.Node, Kind]:
        """The nodes in lanes."""
        for node in self._order:
            if (kind := self._possible(node)) is not None:
                self._kinds[node] = kind
        to_layers = self._reaching(set(self._layers))
        to_gains = self._reaching({*self._layers, *(node for node in self._kinds if self._pays(node))})
        inside: dict[fx.Node, Kind] = {}
        for node, kind in self._kinds.items():
            reads = [read in inside for read in _activations(self._module, node)]
            joins = any(reads) and (all(reads) or node in to_layers)
            if node in self._layers or (joins and (node in to_gains or node not in self._dense)):
                inside[node] = kind
        return inside | self._before(inside)

    def _reaching(self, ends: set[fx.Node]) -> set[fx.Node]:
        """The nodes whose results reach one of these in lanes."""
        found: set[fx.Node] = set()
        for node in reversed(self._order):
            kind = self._kinds.get(node)
            if kind is None:
                continue
            if any(user in found or (user in ends and self._read_kind(user, node) == kind) for user in node.users):
                found.add(node)
        return found

    def _before(self, inside: Mapping[fx.Node, Kind]) -> dict[fx.Node, Kind]:
        """The operators that are read by the region alone, from those on that pay."""
        possible: dict[fx.Node, Kind] = {}
        for node in reversed(self._order):
            if node in inside or node.op not in ("call_function", "call_module"):
                continue
            kinds = {self._read_kind(user, node, inside.get(user) or possible.get(user)) for user in readers(node)}
            kind = kinds.pop() if len(kinds) == 1 else None
            if kind is not None and self._result(node, kind) == kind:
                possible[node] = kind
        while True:
            joined: dict[fx.Node, Kind] = {}
            for node in self._order:
                if node in possible and (self._starts(node) or self._reads_all(node, inside, joined)):
                    joined[node] = possible[node]
            alone = {node for node in joined if all(user in inside or user in joined for user in readers(node))}
            if len(alone) == len(joined):
                return joined
            possible = {node: kind for node, kind in joined.items() if node in alone}

    def _reads_all(self, node: fx.Node, *regions: Collection[fx.Node]) -> bool:
        reads = _activations(self._module, node)
        return bool(reads) and all(any(read in region for region in regions) for read in reads)

    def _read_kind(self, user: fx.Node, node: fx.Node, result: Kind | None = None) -> Kind | None:
        """The kind of lanes as which a node in lanes reads another; None if it does not read it as activations."""
        result = result or self._kinds.get(user)
        if node not in _activations(self._module, user):
            return None
        return "images" if result is not None and user.target in (layout.flatten, reduce_mean) else result

    def _possible(self, node: fx.Node) -> Kind | None:
        if node in self._layers:
            return "images" if self._layers[node] else "tokens"
        kinds = {self._kinds[read] for read in node.all_input_nodes if read in self._kinds}
        if len(kinds) != 1:
            return None
        (kind,) = kinds
        return self._result(node, kind)

    def _result(self, node: fx.Node, kind: Kind) -> Kind | None:
        """The kind of a node's result if it reads lanes of this kind, or None if it cannot."""
        if node.target is convolve:
            return kind if node in self._dense and kind == "images" else None
        return _result(self._module, node, kind)

    def _pays(self, node: fx.Node) -> bool:
        """Whether an operator takes so much less time in lanes that its input is converted for it."""
        if node.target is spelled:
            return is_normalization(node)
        known = (pooling.max_pool, normalization.layer_norm, normalization.rms_norm)
        return node.target in known or _is_batch_norm(self._module, node)

    def _starts(self, node: fx.Node) -> bool:
        """Whether a region may start with an operator."""
        if node not in self._dense:
            return self._pays(node) and len(_activations(self._module, node)) == 1
        weight = stored_tensor(self._module, node.args[1])
        assert weight is not None
        window = Convolution(**_attributes(node))
        pixels = math.prod(window.steps(weight.dim() - 2)[0])
        return weight.shape[1] * window.group * pixels <= weight.shape[0]


def readers(node: fx.Node) -> list[fx.Node]:
    """The users of a node that read its values, not the type or the shape alone."""
    return [
        user
        for user in node.users
        if not (user.target is shape or (user.target is cast_like and user.args[0] is not node))
    ]


def _result(module: ImportedModule, node: fx.Node, kind: Kind) -> Kind | None:
    """The kind of a node's result if it reads lanes of this kind, or None if it cannot."""
    target, attributes = node.target, _attributes(node)
    if target is operator.getitem:
        (read,) = node.all_input_nodes
        return kind if node.args[1] == 0 or read.target is split else None
    if target in (pooling.max_pool, pooling.average_pool) and len(attributes.get("kernel_shape", ())) != 2:
        return None
    if _is_batch_norm(module, node) or target is pooling.max_pool:
        first_alone = all(user.target is operator.getitem and user.args[1] == 0 for user in node.users)
        return kind if kind == "images" and first_alone and attributes.get("outputs", 1) == 1 else None
    if target in (normalization.layer_norm, normalization.rms_norm):
        return kind if kind == "tokens" and _is_over_features(module, node) else None
    if target is spelled:
        return kind if kind == "tokens" or not is_normalization(node) else None
    if target in ELEMENTWISE:
        return kind if not any(isinstance(argument, fx.Node) for argument in node.args[1:]) else None
    if target in BINARY:
        if any(not isinstance(argument, fx.Node) for argument in node.args):
            return None
        stored = [stored_tensor(module, argument) for argument in node.args]
        if target is arithmetic.div and (stored[1] is None or not bool(stored[1].all())):
            return None  # idle lanes may hold zeros
        return kind if all(tensor is None or _is_vector(tensor, kind) for tensor in stored) else None
    if target in (pooling.global_average_pool, pooling.average_pool):
        return kind if kind == "images" else None
    if target is layout.flatten:
        return "tokens" if kind == "images" and attributes.get("axis", 1) == 1 else None
    if target is reduce_mean:
        # Images of one spatial axis are not told apart before they come.
        is_mean = kind == "images" and len(node.args) == 2 and is_over_space(node.args[1], 4)
        return ("images" if attributes.get("keepdims", 1) else "tokens") if is_mean else None
    if target is split:
        parted = all(user.target is operator.getitem for user in node.users)
        is_given = not any(isinstance(argument, fx.Node) for argument in node.args[1:])
        return kind if kind == "images" and attributes.get("axis") == 1 and parted and is_given else None
    if target is concat:
        stored = [stored_tensor(module, argument) for argument in node.args]
        is_of_images = kind == "images" and attributes["axis"] == 1 and len(node.args) > 0
        return kind if is_of_images and all(tensor is None for tensor in stored) else None
    return None


def _attributes(node: fx.Node) -> dict[str, Any]:
    return dict(node.kwargs)


def _is_batch_norm(module: ImportedModule, node: fx.Node) -> bool:
    return node.op == "call_module" and isinstance(module.get_submodule(str(node.target)), BatchNormalization)


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
    if node.target in BINARY or node.target is concat:
        return [read for read in node.all_input_nodes if stored_tensor(module, read) is None]
    return [node.args[0]] if node.args and isinstance(node.args[0], fx.Node) else []
