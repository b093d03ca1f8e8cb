"""Sums, differences and products of tensors in lanes."""

from __future__ import annotations

import pytest
import torch

from sift_onnx.training.sparse_layers.lanes.operators import combine, kernel_of
from sift_onnx.training.sparse_layers.lanes.tensors import image_lanes


@pytest.mark.parametrize("kernel", ["add", "sub", "mul", "div"])
@pytest.mark.parametrize("channels", [3, 1], ids=["of one shape", "that broadcast"])
def test_results_and_gradients_have_the_bits_of_torch(kernel: str, channels: int) -> None:
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(16, c, 5, 4, generator=draw, requires_grad=True) for c in (3, channels))
    gradient = torch.randn(16, 3, 5, 4, generator=draw)
    lanes = [image_lanes(x.detach()) for x in (a, b)]
    for x in lanes:
        x.data.requires_grad_()
    out = combine(kernel, *lanes)
    out.data.backward(image_lanes(gradient).data)
    wanted = kernel_of(kernel)(a, b)
    wanted.backward(gradient)
    assert torch.equal(out.data, image_lanes(wanted).data)
    for found, tensor in zip(lanes, (a, b), strict=True):
        assert found.data.grad is not None
        assert tensor.grad is not None
        if channels == 3:
            assert torch.equal(found.data.grad, image_lanes(tensor.grad).data)
        else:
            torch.testing.assert_close(found.data.grad, image_lanes(tensor.grad).data)


def test_the_operand_of_a_sum_may_be_the_same_tensor_twice() -> None:
    x = image_lanes(torch.randn(16, 2, 3, 3)).data.requires_grad_()
    lanes = image_lanes(torch.zeros(16, 2, 3, 3)).with_data(x)
    combine("mul", combine("add", lanes, lanes), lanes).data.sum().backward()
    torch.testing.assert_close(x.grad, 4 * x.detach())


def test_only_gradients_that_are_wanted_are_computed() -> None:
    a, b = (image_lanes(torch.randn(16, 2, 3, 3)) for _ in range(2))
    a.data.requires_grad_()
    combine("mul", a, b).data.sum().backward()
    torch.testing.assert_close(a.data.grad, b.data)
    assert b.data.grad is None
