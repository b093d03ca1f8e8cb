"""A layer whose weight is sparse: its forward pass, its gradients, and the same on torch's kernels."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.grad import conv2d_weight

from sift_onnx.operators.windows import explicit_pads
from sift_onnx.training.compilation import never_compiled
from sift_onnx.training.kernels.matrix import gemm, matmul
from sift_onnx.training.kernels.spatial.convolution import Convolution
from sift_onnx.training.sparse.parameters.compact import CompactWeight, compact_weight
from sift_onnx.training.sparse_layers.kernels import Geometry, ProductKernels
from sift_onnx.training.sparse_layers.lanes.products import product_in_lanes
from sift_onnx.training.sparse_layers.lanes.tensors import Lanes, from_lanes, image_lanes, token_lanes
from sift_onnx.training.windows import subsampled

__all__ = ["Product", "SparseLayer", "fits"]


@dataclass(frozen=True)
class Product:
    """What a layer computes.

    Attributes:
        run: the kernel of torch, a function of activation, weight and, if the layer has one, bias.
        attributes: what ``run`` is called with besides.
        is_convolution: whether it is a convolution; a product of matrices otherwise.
        outputs_first: whether the weight's first axis is that of output features.
        transposed: whether ``run`` takes the weight with its axes swapped.
    """

    run: Callable[..., Tensor]
    attributes: Mapping[str, Any]
    is_convolution: bool
    outputs_first: bool
    transposed: bool = False

    @property
    def is_per_image(self) -> bool:
        """Whether lanes are images of a batch; they are tokens, of which there are mostly more, otherwise."""
        return self.is_convolution or self.run is gemm

    @property
    def takes_bias(self) -> bool:
        """Whether ``run`` adds a bias; otherwise it is added to the product."""
        return self.run is not matmul

    def geometry(self, x: Lanes, weight: torch.Size) -> Geometry:
        """The convolution's, for an input; of one spatial axis, a height of 1."""
        if not self.is_convolution:
            return Geometry()
        window, extents, rank = Convolution(**self.attributes), weight[2:], len(weight) - 2
        strides, dilations = window.steps(rank)
        pads = explicit_pads(window.auto_pad, window.pads, x.shape[2:], extents, strides, dilations)
        if rank == 1:
            one = (1, extents[0]), (1, strides[0]), (1, dilations[0]), (0, pads[0], 0, pads[1])
            return Geometry(*one, window.group)
        top, left, bottom, right = pads
        return Geometry(_pair(extents), _pair(strides), _pair(dilations), (top, left, bottom, right), window.group)


@dataclass(eq=False)
class SparseLayer:
    """A layer over a compact parameter.

    It is not a module: the parameter stays where it was, under its name, and comes as an argument.

    Attributes:
        name: of the weight.
        owner: the module that has the weight, in a tuple.
        parameter: its name there.
        product: what the layer computes.
        is_sparse: whether it runs on sparse kernels; on torch's otherwise, with a weight that is dense for the moment.
    """

    name: str
    owner: tuple[nn.Module]
    parameter: str
    product: Product
    is_sparse: bool = True
    _kernels: dict[Geometry, ProductKernels] = field(default_factory=dict, repr=False)
    _version: int = -1
    _has_warned: bool = False

    @never_compiled
    def __call__(self, x: Lanes, values: Tensor, bias: Tensor | None = None) -> Lanes:
        """The layer's output.

        Args:
            x: images for a convolution, tokens for a product.
            values: the parameter.
            bias: one number per output feature.
        """
        compact = self.weight()
        # A mask may lose its last weight in training, as gradual pruning's does; kernels have no layer without weights.
        if not self.is_sparse or not fits(x, values) or values.dim() != 1 or compact.nnz == 0:
            self._warn_if_moved(values)
            return self.lanes_of(self.dense(from_lanes(x), values, bias))
        rows, columns = self._sizes(compact.shape)
        geometry = self.product.geometry(x, compact.shape)
        if x.data.shape[1] * math.prod(geometry.kernel) != columns * geometry.groups:
            return self.lanes_of(self.dense(from_lanes(x), values, bias))  # torch says what does not fit
        flat = None if bias is None else bias.reshape(rows)
        gradient = _Gradient(compact, self.product, geometry)
        return product_in_lanes(x, values, flat, self._kernels_for(compact, geometry), gradient)

    def on_tensors(self, x: Tensor, values: Tensor, bias: Tensor | None = None) -> Tensor:
        """The same of a tensor as torch has it."""
        return self.dense(x, values, bias) if not self.is_sparse else from_lanes(self(self.lanes_of(x), values, bias))

    def dense(self, x: Tensor, values: Tensor, bias: Tensor | None = None) -> Tensor:
        """The layer's output by torch's kernel."""
        weight = values
        if values.dim() == 1:
            weight = _DenseWeight.apply(values, self.weight())  # type: ignore[no-untyped-call]
        if self.product.transposed:
            weight = weight.T
        if bias is None or self.product.takes_bias:
            return self.product.run(x, weight, *(() if bias is None else (bias,)), **self.product.attributes)
        return self.product.run(x, weight, **self.product.attributes) + bias

    @property
    def features(self) -> int:
        """Output features."""
        return self._sizes(self.weight().shape)[0]

    def lanes_of(self, x: Tensor) -> Lanes:
        """Images or tokens, as the layer takes and gives them."""
        return image_lanes(x) if self.product.is_convolution else token_lanes(x)

    def weight(self) -> CompactWeight:
        """The compact form of the weight."""
        found = compact_weight(self.owner[0], self.parameter)
        assert found is not None, f"{self.name} is not compact"
        return found

    def _warn_if_moved(self, values: Tensor) -> None:
        moved = [str(values.device)] if values.device.type != "cpu" else []
        moved += [str(values.dtype).removeprefix("torch.")] if values.dtype != torch.float32 else []
        if self.is_sparse and moved and not self._has_warned:
            # One text for all layers, so that it is shown once.
            warnings.warn(
                f"the module has been moved to {' and '.join(moved)}; its sparse layers compute by torch's kernels, on "
                "dense weights, until it is back in float32 on the CPU",
                stacklevel=3,
            )
        self._has_warned = bool(moved)

    def _sizes(self, weight: torch.Size) -> tuple[int, int]:
        rows = weight[0] if self.product.outputs_first else weight[-1]
        return rows, math.prod(weight) // rows

    def _kernels_for(self, compact: CompactWeight, geometry: Geometry) -> ProductKernels:
        if compact.version != self._version:
            self._kernels.clear()
            self._version = compact.version
        if geometry not in self._kernels:
            rows, columns = self._sizes(compact.shape)
            indices, places = compact.indices.to(torch.int64), None
            if not self.product.outputs_first:
                indices, places = (indices % rows * columns + indices // rows).sort()
            self._kernels[geometry] = ProductKernels(rows, columns, indices, places, geometry)
        return self._kernels[geometry]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kernels": {}, "_version": -1}


@dataclass(frozen=True)
class _Gradient:
    """What the backward pass asks about the weight."""

    compact: CompactWeight
    product: Product
    geometry: Geometry

    def is_wanted(self) -> bool:
        """Whether a mask's update asks for the gradient of the dense tensor."""
        return self.compact.wants_dense_gradient()

    def give(self, x: Tensor, dy: Tensor) -> Tensor:
        """Hand over the gradient of the dense tensor.

        Args:
            x: the input, ``[n, c, h, w]``.
            dy: the output's gradient, likewise.

        Returns:
            What it is for the active values.
        """
        shape, geometry = self.compact.shape, self.geometry
        if self.product.is_convolution:
            top, left, bottom, right = geometry.pads
            padded = functional.pad(x, (left, right, top, bottom))
            sizes = (*shape[:2], *geometry.kernel)
            dilation, groups = geometry.dilation, geometry.groups
            padded, stride = subsampled(padded, sizes, geometry.stride)
            # conv2d_weight wants the input that the windows read, without a rest that no window reaches.
            gradient = conv2d_weight(padded, sizes, dy, stride, 0, dilation, groups)  # type: ignore[no-untyped-call]
        else:
            rows, columns = dy.flatten(1), x.flatten(1)
            gradient = rows.T @ columns if self.product.outputs_first else columns.T @ rows
        gradient = gradient.reshape(shape)
        self.compact.take_dense_gradient(gradient)
        return self.compact.gathered(gradient)


class _DenseWeight(torch.autograd.Function):
    """The dense tensor of a vector of active values."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, compact: CompactWeight) -> Tensor:
        ctx.compact = compact
        return compact.scattered(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if ctx.compact.wants_dense_gradient():
            ctx.compact.take_dense_gradient(gradient)
        return ctx.compact.gathered(gradient), None


def fits(x: Lanes, values: Tensor) -> bool:
    """Whether kernels take an input and the values of weights."""
    as_float32 = x.data.dtype == torch.float32 or (torch.is_autocast_enabled("cpu") and x.data.is_floating_point())
    on_cpu = x.data.device.type == values.device.type == "cpu"
    return as_float32 and on_cpu and values.dtype == torch.float32 and x.data.numel() > 0


def _pair(sizes: Any) -> tuple[int, int]:
    first, second = sizes
    return int(first), int(second)
