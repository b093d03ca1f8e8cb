"""Operators in lanes that one kernel computes: biases of layers; sum, ReLU and pooling behind a normalization."""

from __future__ import annotations

from torch import fx

from sift_onnx.training.kernels.elementwise import activation, arithmetic
from sift_onnx.training.module import ImportedModule
from sift_onnx.training.sparse_layers.graph_layers import stored_tensor
from sift_onnx.training.sparse_layers.held_layers import layer_at, run_layer
from sift_onnx.training.sparse_layers.lanes.batch_norm import normalize
from sift_onnx.training.sparse_layers.lanes.batch_norm_pool import normalize_and_pool
from sift_onnx.training.sparse_layers.lanes.max_pool import max_pool
from sift_onnx.training.sparse_layers.lanes.operators import combine, elementwise, name_of, with_vector

__all__ = ["fuse_operators"]


def fuse_operators(module: ImportedModule) -> None:
    """Put what one kernel computes in the place of several nodes.

    Args:
        module: whose graph is in lanes.
    """
    for node in list(module.graph.nodes):
        _fuse_bias(module, node)
        _fuse(module.graph, node)
        _fuse_pool(module.graph, node)


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
