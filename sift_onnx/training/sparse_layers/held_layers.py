"""Layers in lanes that an imported module holds for the nodes of its graph, and the call that such a node makes."""

from __future__ import annotations

import operator

from torch import Tensor, fx

from sift_onnx.training.module import ImportedModule
from sift_onnx.training.sparse_layers.dense_layer import DenseLayer
from sift_onnx.training.sparse_layers.lanes.tensors import Lanes
from sift_onnx.training.sparse_layers.layer import SparseLayer

__all__ = ["HOLDER", "keep_layer", "layer_at", "put_in_place", "run_layer"]

# Attribute of an imported module that holds what its nodes have, and so its layers in lanes.
HOLDER = "layers"


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


def put_in_place(graph: fx.Graph, node: fx.Node, new: fx.Node) -> None:
    """Let a new node stand for an old one, which goes."""
    if "onnx_node" in node.meta:
        new.meta["onnx_node"] = node.meta["onnx_node"]
    node.replace_all_uses_with(new)
    graph.erase_node(node)
