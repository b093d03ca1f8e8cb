"""1x1 convolutions with strides of few channels, whose gradient oneDNN computes beyond its buffer."""

from typing import Any

import pytest
import torch
from nets import Net
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from training.sparse_layers.masked_models import sparsified, with_masks

from sift_onnx.training import ImportedModule, to_torch
from sift_onnx.training.sparse.parameters.compact import CompactWeight


class Gradients(TorchDispatchMode):
    """Strides of all gradients of convolutions that are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.strides: list[list[int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution_backward.default:
            self.strides.append(args[4])
        return func(*args, **(kwargs or {}))


def strided(channels: int) -> ImportedModule:
    net = Net()
    x = net.input("x", 128, channels, 14, 13)
    net.output(net.op("Conv", x, net.weight(8, channels, 1, 1, name="w"), strides=[2, 3], name="y"))
    return to_torch(net.model()).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def images(channels: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(128, channels, 14, 13, generator=draw)
    return x.contiguous(memory_format=torch.channels_last).requires_grad_()


def expected(module: ImportedModule, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Output, and gradients of weight and input, in double precision and in memory of another order."""
    weight = module.get_parameter("w").detach().double().contiguous().requires_grad_()
    twin = x.detach().double().contiguous().requires_grad_()
    y = functional.conv2d(twin, weight, stride=[2, 3])
    return y, list(torch.autograd.grad(y.square().sum(), [weight, twin]))


@pytest.mark.parametrize(("channels", "strides"), [(4, [1, 1]), (15, [1, 1]), (16, [2, 3])])
def test_few_channels_are_convolved_without_strides(channels: int, strides: list[int]) -> None:
    module, x = strided(channels), images(channels)
    with Gradients() as seen:
        y = module(x)
        y.square().sum().backward()
    wanted, gradients = expected(module, x)
    assert seen.strides == [strides]
    torch.testing.assert_close(y.double(), wanted, rtol=1e-4, atol=1e-5)
    for found, exact in zip((module.get_parameter("w").grad, x.grad), gradients, strict=True):
        assert found is not None
        torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-3)


def test_the_dense_gradient_of_a_sparse_layer_is_computed_without_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = with_masks(strided(4)), images(4)
    _, (gradient, _) = expected(module, x)
    twin, _ = sparsified(module)
    taken: list[torch.Tensor] = []
    monkeypatch.setattr(CompactWeight, "wants_dense_gradient", lambda _: True)
    monkeypatch.setattr(CompactWeight, "take_dense_gradient", lambda _, found: taken.append(found))
    with Gradients() as seen:
        twin(x).square().sum().backward()
    assert seen.strides == [[1, 1]]
    torch.testing.assert_close(taken[0].double(), gradient, rtol=1e-4, atol=1e-3)
