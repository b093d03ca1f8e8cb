"""Folding of batch normalization into the convolution before it, on a torch module.

In evaluation mode ``y = (Wx + b - mean) / sqrt(var + eps) * scale + shift`` is a convolution again, with weight
``W * scale / sqrt(var + eps)`` and bias ``(b - mean) * scale / sqrt(var + eps) + shift``. Done here rather than by the
exporters, whose own folding renames weights (TorchScript) or drops biases that happen to be 0 (dynamo).
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

__all__ = ["fold_batch_norm"]

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@torch.no_grad()
def fold_batch_norm(module: nn.Module) -> list[str]:
    """Fold, in place, every batch normalization that is the only reader of a convolution.

    A normalization that was folded becomes ``nn.Identity``, and its convolution has a bias. A module called more than
    once is left as it is. The module must be in evaluation mode and, if it has batch normalizations at all,
    traceable by ``torch.fx``.

    Returns:
        Names of the convolutions' weights.
    """
    if not any(isinstance(m, BATCH_NORMS) for m in module.modules()):
        return []
    graph = torch.fx.symbolic_trace(module).graph
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    folded = []
    for node in graph.nodes:
        if node.op != "call_module":
            continue
        target, source = str(node.target), node.args[0]
        norm = module.get_submodule(target)
        if not isinstance(norm, BATCH_NORMS) or not isinstance(source, torch.fx.Node):
            continue
        if source.op != "call_module" or len(source.users) != 1:
            continue
        convolution = module.get_submodule(str(source.target))
        if not isinstance(convolution, CONVOLUTIONS) or calls[node.target] != 1 or calls[source.target] != 1:
            continue
        assert norm.running_mean is not None and norm.running_var is not None
        convolution.weight, convolution.bias = fuse_conv_bn_weights(
            convolution.weight, convolution.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
        )
        module.set_submodule(target, nn.Identity())
        folded.append(f"{source.target}.weight")
    return folded
