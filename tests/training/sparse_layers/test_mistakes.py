"""What a training may meet by accident: sparse layers do then what masked dense ones do, or say what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from training.sparse_layers.test_modules import Net

from sift_onnx.training import LayerChoice, sparsify_layers
from sift_onnx.training.sparse import SET, RigL, Static, attach

ALGORITHMS: dict[str, Callable[[], Any]] = {
    "static": lambda: Static(sparsity=0.3),
    "SET": lambda: SET(sparsity=0.3, update={"freq": 2}),
    "RigL": lambda: RigL(sparsity=0.3, update={"freq": 2}),
}


def trained(algorithm: Any, kernels: str, *, scaler: torch.amp.GradScaler | None = None) -> dict[str, torch.Tensor]:
    """The state after steps of which the third has a loss that is NaN."""
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    attach(algorithm, net, optimizer)
    sparsify_layers(net, optimizer, kernels=kernels)  # type: ignore[arg-type]
    draw = torch.Generator().manual_seed(0)
    for step in range(5):
        loss = net(torch.randn(5, 3, 10, 9, generator=draw)).square().mean()
        loss = loss * (float("nan") if step == 2 else 1.0)
        optimizer.zero_grad()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return net.state_dict()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_step_whose_gradients_are_not_finite_is_skipped_as_on_dense_kernels(algorithm: str) -> None:
    ours, theirs = (
        trained(ALGORITHMS[algorithm](), kernels, scaler=torch.amp.GradScaler("cpu", init_scale=4.0))
        for kernels in ("sparse", "dense")
    )
    assert ours.keys() == theirs.keys()
    for name, wanted in theirs.items():
        assert wanted.isfinite().all()
        torch.testing.assert_close(ours[name], wanted, rtol=1e-4, atol=1e-5, msg=name)


def test_gradients_that_are_nan_spread_to_the_active_weights_as_on_dense_kernels() -> None:
    ours, theirs = (trained(Static(sparsity=0.3), kernels) for kernels in ("sparse", "dense"))
    assert theirs["stem.weight"].isnan().any()
    for name, wanted in theirs.items():
        assert torch.equal(ours[name].isnan(), wanted.isnan()), name


def test_an_image_that_is_nan_leaves_the_others_of_its_lanes_as_they_are() -> None:
    torch.manual_seed(0)
    net = Net().eval()
    attach(Static(sparsity=0.7), net, torch.optim.SGD(net.parameters(), lr=0.1))
    sparsify_layers(net, kernels="sparse")
    x = torch.randn(5, 3, 10, 9)
    wanted = net(x)
    x[2, 1, 3, 3] = float("nan")
    found = net(x)
    others = torch.tensor([0, 1, 3, 4])
    assert found[2].isnan().any()
    assert torch.equal(found[others], wanted[others])


def test_a_module_that_is_called_twice_adds_both_gradients() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 6)
    layer.register_buffer("weight_mask", torch.rand(6, 6) < 0.5)
    with torch.no_grad():
        layer.weight.mul_(layer.weight_mask)
    x = torch.randn(3, 6)
    layer(layer(x)).square().sum().backward()
    mask, wanted = layer.weight_mask.bool(), layer.weight.grad
    layer.weight.grad = None
    sparsify_layers(layer, kernels="sparse")
    layer(layer(x)).square().sum().backward()
    assert wanted is not None
    torch.testing.assert_close(layer.weight.grad, wanted[mask])


def test_a_mask_that_empties_a_layer_later_leaves_its_bias_and_trains_on() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 4, 3)
    layer.register_buffer("weight_mask", torch.ones(4, 3, 3, 3, dtype=torch.bool))
    found: list[LayerChoice] = []
    sparsify_layers(layer, kernels="sparse", report=found.append)
    assert [choice.kernels for choice in found] == ["sparse"]
    state = layer.state_dict()
    layer.load_state_dict({**state, "weight_mask": torch.zeros(4, 3, 3, 3, dtype=torch.bool)})
    x = torch.randn(2, 3, 6, 6, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert layer.bias is not None
    assert layer.bias.grad is not None
    assert x.grad is not None
    torch.testing.assert_close(y, layer.bias[:, None, None].expand(2, 4, 4, 4))
    torch.testing.assert_close(layer.bias.grad, torch.full((4,), 32.0))
    assert layer.weight.grad is not None
    assert layer.weight.grad.shape == (0,)
    assert not x.grad.any()


@pytest.mark.parametrize("size", [0, 1])
def test_batches_of_one_and_of_none_train_as_on_dense_kernels(size: int) -> None:
    torch.manual_seed(0)
    net = Net().eval()
    attach(Static(sparsity=0.7), net, torch.optim.SGD(net.parameters(), lr=0.1))
    found = []
    for kernels in ("dense", "sparse"):
        sparsify_layers(net, kernels=kernels)  # type: ignore[arg-type]
        x = torch.ones(size, 3, 10, 9, requires_grad=True)
        net.zero_grad()
        net(x).square().sum().backward()
        found.append([x.grad, net.norm.weight.grad.clone(), net.head.bias.grad.clone()])
    assert net.stem.weight.dim() == 1
    mask = net.state_dict()["stem.weight_mask"]
    assert net.stem.weight.grad.shape == (int(mask.sum()),)
    for dense, sparse in zip(*found, strict=True):
        torch.testing.assert_close(sparse, dense)


@pytest.mark.parametrize("kernels", ["sparse", "dense"])
def test_a_compiled_module_trains_as_it_does_without_the_compiler(kernels: str) -> None:
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        attach(RigL(sparsity=0.3, update={"freq": 2}), net, optimizer)
        sparsify_layers(net, optimizer, kernels=kernels)  # type: ignore[arg-type]
        run = torch.compile(net, backend="aot_eager") if compiled else net
        for seed in range(3):
            optimizer.zero_grad()
            run(torch.randn(5, 3, 10, 9, generator=torch.Generator().manual_seed(seed))).square().mean().backward()
            optimizer.step()
        found.append(net.state_dict())
    for name, wanted in found[0].items():
        torch.testing.assert_close(found[1][name], wanted, msg=name)
