"""What is timed for the estimate of the dense original."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from training.trainer.cases import classifier, examples, language_model

import sift_onnx
from sift_onnx.training.trainer.kernels.dense_original import seconds_of_dense_original


class Products(TorchDispatchMode):
    """Notes the shapes of the factors of each product."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[tuple[int, ...], ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.convolution, torch.ops.aten.mm, torch.ops.aten.addmm):
            self.shapes.append(tuple(tuple(arg.shape) for arg in args if isinstance(arg, torch.Tensor)))
        return func(*args, **(kwargs or {}))


def products(module: torch.fx.GraphModule, densities: dict[str, float], x: torch.Tensor) -> Any:
    with Products() as found:
        assert seconds_of_dense_original(module.train(), densities, [x]) > 0
    return found.shapes


def test_masked_layers_are_timed_with_as_many_multiply_accumulates(tmp_path: Path) -> None:
    module = sift_onnx.to_torch(classifier(tmp_path / "net.onnx", width=20))
    x = torch.from_numpy(examples(5)[0])
    found = products(module, {"body.weight": 0.25, "head.weight": 1.0}, x)
    assert ((5, 1, 6, 6), (20, 1, 3, 3)) in found
    assert ((5, 10, 6, 6), (20, 10, 3, 3)) in found
    assert ((5, 20, 6, 6), (40, 20, 3, 3)) not in found
    # The layer behind it gets as many inputs as before.
    assert ((4,), (5, 40), (40, 4)) in found


def test_few_channels_are_rounded_to_as_many_multiply_accumulates(tmp_path: Path) -> None:
    module = sift_onnx.to_torch(classifier(tmp_path / "net.onnx", norm=False, width=30))
    x = torch.from_numpy(examples(5)[0])
    found = products(module, {"stem.weight": 0.1}, x)
    assert ((5, 1, 6, 6), (3, 1, 3, 3)) in found


def test_products_of_matrices_are_timed_in_either_order(tmp_path: Path) -> None:
    module = sift_onnx.to_torch(language_model(tmp_path / "net.onnx", width=16))
    tokens = torch.zeros(2, 5, dtype=torch.int64)
    found = products(module, {"inner.weight": 0.25}, tokens)
    assert ((10, 8), (8, 8)) in found
    assert ((10, 16), (16, 7)) in found


@pytest.mark.parametrize("density", [0.1, 1.0])
def test_the_model_stays_as_it_is(tmp_path: Path, density: float) -> None:
    module = sift_onnx.to_torch(classifier(tmp_path / "net.onnx")).train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state = torch.get_rng_state()
    seconds_of_dense_original(module, {"body.weight": density}, [torch.from_numpy(examples(5)[0])])
    assert torch.equal(torch.get_rng_state(), state)
    assert all(param.grad is None for param in module.parameters())
    assert module.training
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name]), name
