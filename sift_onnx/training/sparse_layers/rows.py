"""How many rows the masked layers of a module multiply in a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from sift_onnx.training.module import ImportedModule
from sift_onnx.training.sparse.parameters.of_module import unwrapped
from sift_onnx.training.sparse_layers.graph_layers import GraphLayer, graph_layers
from sift_onnx.training.sparse_layers.layer import Product
from sift_onnx.training.sparse_layers.modules import product_of
from sift_onnx.training.sparse_layers.weights import masked_weights

__all__ = ["layer_rows"]


@torch.no_grad()
def layer_rows(module: nn.Module, *inputs: Any) -> dict[str, int]:
    """The rows of each masked product of matrices, those of a step: tokens, as a rule.

    The module runs once on the inputs, in evaluation mode; without such layers it does not.

    Args:
        module: the module, whose masked layers are dense yet.
        inputs: of a batch, as ``forward`` takes them.

    Returns:
        Rows by the name of the weight. Of a layer that is called several times the fewest, of one that is not called
        none.
    """
    root = unwrapped(module)
    weights = list(masked_weights(root))
    found: dict[str, int] = {}

    def note(name: str, x: Any) -> None:
        if isinstance(x, Tensor) and x.dim():
            rows = x.numel() // max(x.shape[-1], 1)
            found[name] = min(found.get(name, rows), rows)

    if isinstance(root, ImportedModule):
        layers = graph_layers(root, weights)
        nodes = {layer.node: name for name, layer in layers.items() if isinstance(layer, GraphLayer)}
        nodes = {node: name for node, name in nodes.items() if not _is_convolution(layers[name])}
        if nodes:
            with _evaluating(root):
                _Watch(root, nodes, note).run(*inputs)
        return found
    watched = [w for w in weights if w.obstacle is None and not _is_convolution(product_of(w))]
    hooks = [
        w.owner.register_forward_pre_hook(lambda _, args, name=w.name: note(name, args[0] if args else None))
        for w in watched
    ]
    try:
        if hooks:
            with _evaluating(root):
                root(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _is_convolution(layer: GraphLayer | Product | str) -> bool:
    """Whether it is one, or no layer at all."""
    product = layer.product if isinstance(layer, GraphLayer) else layer
    return isinstance(product, str) or product.is_convolution


class _Watch(fx.Interpreter):
    """Runs a graph and tells the first operand of some nodes."""

    def __init__(self, module: ImportedModule, nodes: dict[fx.Node, str], note: Any) -> None:
        super().__init__(module)
        self._nodes, self._note = nodes, note

    def run_node(self, n: fx.Node) -> Any:
        if n in self._nodes:
            self._note(self._nodes[n], self.env[n.args[0]] if isinstance(n.args[0], fx.Node) else None)
        return super().run_node(n)


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    modes = [(each, each.training) for each in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for each, mode in modes:
            each.training = mode
