"""Layers with compact weights that compute with dense tensors: for tests of parameters, not of kernels."""

from __future__ import annotations

import torch

from sift_onnx.training.sparse.parameters.compact import CompactWeight, compact_parameter, compact_weight


class Linear(torch.nn.Linear):
    """A layer whose weight is compact."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, _dense(self), self.bias)


class Conv2d(torch.nn.Conv2d):
    """A convolution whose weight is compact."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._conv_forward(x, _dense(self), self.bias)


_KINDS: dict[type[torch.nn.Module], type[torch.nn.Module]] = {torch.nn.Linear: Linear, torch.nn.Conv2d: Conv2d}


def make_compact(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, CompactWeight]:
    """Make all masked weights of a model compact, in layers that compute with them; the weights by layer name."""
    found = {}
    for name, layer in model.named_modules():
        mask = layer._buffers.get("weight_mask")
        if mask is not None and type(layer) in _KINDS:
            layer.__class__ = _KINDS[type(layer)]
            found[name] = compact_parameter(layer, "weight", mask, optimizer)
    return found


def _dense(layer: torch.nn.Module) -> torch.Tensor:
    weight = compact_weight(layer, "weight")
    assert weight is not None
    dense = weight.dense()
    if dense.requires_grad:
        dense.register_hook(lambda grad: _hand_over(weight, grad))
    return dense


def _hand_over(weight: CompactWeight, grad: torch.Tensor) -> None:
    if weight.wants_dense_gradient():
        weight.take_dense_gradient(grad)
