"""Layers of modules that were not imported: one at a time, between torch's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from sift_onnx.training.kernels.spatial.convolution import convolve
from sift_onnx.training.sparse_layers.layer import Product, SparseLayer
from sift_onnx.training.sparse_layers.weights import MaskedWeight

__all__ = ["ModuleForward", "product_of"]

_RANKS: dict[type[nn.Module], int] = {nn.Conv1d: 1, nn.Conv2d: 2}


@dataclass(eq=False)
class ModuleForward:
    """What a module with a sparse layer computes; its attribute ``forward``, so that its names and hooks stay."""

    layer: SparseLayer

    def __call__(self, x: Tensor) -> Tensor:
        """The module's output."""
        owner: Any = self.layer.owner[0]
        product, values = self.layer.product, owner._parameters[self.layer.parameter]
        is_single = product.is_convolution and x.dim() == len(self.layer.weight().shape) - 1
        result = self.layer.on_tensors(x[None] if is_single else x, values, owner.bias)
        return result[0] if is_single else result


def product_of(weight: MaskedWeight) -> Product | str:
    """What a module computes with its weight, or why sparse kernels do not."""
    owner: Any = weight.owner
    if weight.parameter != "weight":
        return "it is not a weight of Conv1d, Conv2d or Linear"
    if "forward" in vars(owner):
        return "its forward was replaced"
    if type(owner) is nn.Linear:
        run: Callable[..., Tensor] = functional.linear
        return Product(run, {}, is_convolution=False, outputs_first=True)
    rank = _RANKS.get(type(owner))
    if rank is None:
        return f"it is a {type(owner).__name__}; sparse kernels compute Conv1d, Conv2d and Linear"
    if owner.groups != 1 and owner.weight.shape[1] == 1:
        return "it is a depthwise convolution"
    if owner.padding_mode != "zeros":
        return f"its padding is {owner.padding_mode}"
    attributes: dict[str, Any] = {"strides": owner.stride, "dilations": owner.dilation, "group": owner.groups}
    if isinstance(owner.padding, str):
        attributes["auto_pad"] = {"same": "SAME_UPPER", "valid": "VALID"}[owner.padding]
    else:
        attributes["pads"] = (*owner.padding, *owner.padding)
    return Product(convolve, attributes, is_convolution=True, outputs_first=True)
