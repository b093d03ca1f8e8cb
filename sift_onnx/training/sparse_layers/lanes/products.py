"""Products of a layer's weights with lanes, and their gradients."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sift_onnx.training.sparse_layers.kernels import LayerKernels, channel_sums
from sift_onnx.training.sparse_layers.lanes.tensors import Lanes, Recomputation, from_lanes

__all__ = ["DenseGradient", "product_in_lanes"]


class DenseGradient(Protocol):
    """Who may want the gradient of the dense weight, pruned places included."""

    def is_wanted(self) -> bool:
        """Whether this backward pass has to compute it."""

    def give(self, x: Tensor, dy: Tensor) -> Tensor:
        """Compute it from the input and the output's gradient, both ``[n, c, h, w]``; the part of active weights."""


def product_in_lanes(
    x: Lanes, values: Tensor, bias: Tensor | None, kernels: LayerKernels, gradient: DenseGradient | None = None
) -> Lanes:
    """The product of kernels, with its gradients.

    Args:
        x: the input.
        values: of the weights, flat.
        bias: one number per output feature.
        kernels: of the layer.
        gradient: asks whether the dense gradient of the weight is wanted besides.
    """
    data: Tensor = _Product.apply(  # type: ignore[no-untyped-call]
        x.data, values, bias, kernels, x.kernel_shape, gradient, x.recomputation
    )
    return x.with_data(data)


class _Product(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
    def forward(
        ctx: Any,
        x: Tensor,
        values: Tensor,
        bias: Tensor | None,
        kernels: LayerKernels,
        shape: tuple[int, int, int, int],
        gradient: DenseGradient | None,
        recomputation: Recomputation | None,
    ) -> Tensor:
        x = x.contiguous()
        kernels.take(values)
        # Half of what a step keeps would be results of normalization, beside what they were computed from.
        kept = (x,) if recomputation is None else recomputation.tensors
        ctx.save_for_backward(values, *kept)
        ctx.input_again = None if recomputation is None else recomputation.run
        ctx.kernels, ctx.shape, ctx.gradient = kernels, shape, gradient
        return kernels.forward(shape, x, bias)

    @staticmethod
    @once_differentiable
    @torch.amp.custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        values, *kept = ctx.saved_tensors
        kernels, shape, dy = ctx.kernels, ctx.shape, dy.contiguous()
        dx = dvalues = dbias = None
        if ctx.needs_input_grad[1]:
            x = kept[0] if ctx.input_again is None else ctx.input_again(*kept)
            if ctx.gradient is not None and ctx.gradient.is_wanted():
                n = shape[0]
                dvalues = ctx.gradient.give(_planes(x, n), _planes(dy, n))
            else:
                dvalues = kernels.weight_gradient(shape, x, dy, values.numel())
            del x
        if ctx.needs_input_grad[0]:
            kernels.take_again(values)
            dx = kernels.input_gradient(shape, dy)
        if ctx.needs_input_grad[2]:
            dbias = channel_sums(kernels.output_shape(shape), dy)
        return dx, dvalues, dbias, None, None, None, None


def _planes(data: Tensor, n: int) -> Tensor:
    return from_lanes(Lanes(data, n, (n, *data.shape[1:4]), is_tokens=False))
