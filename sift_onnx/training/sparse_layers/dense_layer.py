"""Convolutions whose weight is dense, in lanes because their neighbours are."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from sift_onnx.training.compilation import never_compiled
from sift_onnx.training.kernels.spatial.convolution import Convolution, convolve
from sift_onnx.training.module import ImportedModule
from sift_onnx.training.sparse_layers.graph_layers import stored_tensor
from sift_onnx.training.sparse_layers.kernels import DepthwiseKernels, Geometry, LayerKernels, ProductKernels
from sift_onnx.training.sparse_layers.lanes.products import product_in_lanes
from sift_onnx.training.sparse_layers.lanes.tensors import Lanes, from_lanes, image_lanes
from sift_onnx.training.sparse_layers.layer import Product, fits

__all__ = ["DenseLayer", "dense_layers"]

# Where all weights are active, sparse kernels take about an eighth longer than torch's.
_SLOWNESS = 1.125
# What the conversions that a layer spares take, as long as so many multiply-adds for each element of its output.
_CONVERSIONS = 32


@dataclass(eq=False)
class DenseLayer:
    """A convolution whose parameter stays as it is, and comes as an argument.

    Attributes:
        product: what the layer computes.
    """

    product: Product
    _kernels: dict[Geometry, LayerKernels] = field(default_factory=dict, repr=False)

    @never_compiled
    def __call__(self, x: Lanes, weight: Tensor, bias: Tensor | None = None) -> Lanes:
        """The layer's output.

        Args:
            x: images.
            weight: of the convolution.
            bias: one number per output feature.
        """
        geometry = self.product.geometry(x, weight.shape)
        fitting = bias is None or bias.shape == weight.shape[:1]
        if not fits(x, weight) or not fitting or x.data.shape[1] != weight.shape[1] * geometry.groups:
            operands = (weight,) if bias is None else (weight, bias)
            return image_lanes(self.product.run(from_lanes(x), *operands, **self.product.attributes))
        if geometry not in self._kernels:
            self._kernels[geometry] = _kernels_of(weight.shape, geometry)
        return product_in_lanes(x, weight.reshape(-1), bias, self._kernels[geometry])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kernels": {}}


def _kernels_of(weight: torch.Size, geometry: Geometry) -> LayerKernels:
    if weight[1] == 1 and geometry.groups > 1:
        return DepthwiseKernels(weight[0], geometry)
    indices = torch.arange(weight.numel())
    return ProductKernels(weight[0], math.prod(weight[1:]), indices, None, geometry)


def dense_layers(module: ImportedModule, used: float) -> dict[fx.Node, Product]:
    """The convolutions of dense weights that take less time in lanes than conversions around them do.

    Args:
        module: the module.
        used: share of the lanes that a batch fills.
    """
    found: dict[fx.Node, Product] = {}
    for node in module.graph.nodes:
        if node.target is convolve and (product := _product(module, node, used)) is not None:
            found[node] = product
    return found


def _product(module: ImportedModule, node: fx.Node, used: float) -> Product | None:
    if len(node.args) < 2 or stored_tensor(module, node.args[0]) is not None:
        return None
    weight = stored_tensor(module, node.args[1])
    if weight is None or weight.dim() not in (3, 4) or weight.numel() == 0 or weight.dtype != torch.float32:
        return None
    if weight.device.type != "cpu":
        return None
    multiply_adds = math.prod(weight.shape[1:])
    if multiply_adds * (_SLOWNESS / used - 1) > _CONVERSIONS:
        return None
    attributes: dict[str, Any] = dict(node.kwargs)
    is_valid = weight.shape[0] % Convolution(**attributes).group == 0
    return Product(convolve, attributes, is_convolution=True, outputs_first=True) if is_valid else None
