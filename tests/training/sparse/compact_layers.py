"""Layers with compact weights that compute with dense tensors: for tests of parameters, not of kernels."""

from __future__ import annotations

from types import MethodType

import torch

from sift_onnx.training.sparse.parameters.compact import CompactWeight, compact_parameter, compact_weight


class Linear(torch.nn.Linear):
    """A layer whose weight is compact."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _linear(self, x)


def _linear(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, _dense(layer), layer.bias)


def _convolve(layer: torch.nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
    return layer._conv_forward(x, _dense(layer), layer.bias)


_FORWARD = {torch.nn.Linear: _linear, torch.nn.Conv2d: _convolve}


def make_compact(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, CompactWeight]:
    """Make all masked weights of a model compact, in layers that compute with them; the weights by layer name."""
    found = {}
    for name, layer in model.named_modules():
        mask = layer._buffers.get("weight_mask")
        if mask is not None and type(layer) in _FORWARD:
            layer.forward = MethodType(_FORWARD[type(layer)], layer)
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
