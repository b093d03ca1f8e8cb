"""Modules that were not imported: torch's layers on sparse kernels, one at a time."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

from sift_onnx.training import LayerChoice, densify_layers, sparsify_layers
from sift_onnx.training.sparse import SET, RigL, Static, attach


class Net(nn.Module):
    """Convolutions and a classifier."""

    def __init__(self, groups: int = 1, **settings: Any) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, bias=False, **settings)
        self.norm = nn.BatchNorm2d(8)
        self.body = nn.Conv2d(8, 12, 3, stride=2, groups=groups)
        self.head = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        return self.head(self.body(x).mean((2, 3)))


def trained(algorithm: Any, kernels: str, steps: int = 10, **settings: Any) -> tuple[Net, list[LayerChoice]]:
    torch.manual_seed(0)
    net, found = Net(**settings), list[LayerChoice]()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    attach(algorithm, net, optimizer)
    sparsify_layers(net, optimizer, kernels=kernels, report=found.append)  # type: ignore[arg-type]
    draw = torch.Generator().manual_seed(0)
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(7, 3, 10, 9, generator=draw)
        nn.functional.cross_entropy(net(x), torch.randint(0, 5, (7,), generator=draw)).backward()
        optimizer.step()
    return net, found


ALGORITHMS = {
    "static": lambda: Static(sparsity=0.7),
    "SET": lambda: SET(sparsity=0.7, update={"freq": 3}),
    "RigL": lambda: RigL(sparsity=0.7, update={"freq": 3}),
}


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("settings", [{"padding": 1}, {"padding": "same", "groups": 2}], ids=str)
def test_masks_that_move_and_weights_are_those_of_dense_kernels(name: str, settings: dict[str, Any]) -> None:
    sparse, found = trained(ALGORITHMS[name](), "sparse", **settings)
    dense, _ = trained(ALGORITHMS[name](), "dense", **settings)
    on_sparse = {choice.name for choice in found if choice.kernels == "sparse"}
    assert on_sparse == {"stem.weight", "body.weight", "head.weight"}
    assert sparse.stem.weight.dim() == 1
    ours, theirs = sparse.state_dict(), dense.state_dict()
    assert list(ours) == list(theirs) or set(ours) == set(theirs)
    for key, tensor in theirs.items():
        if key.endswith("_mask"):
            assert torch.equal(ours[key], tensor), key
        else:
            torch.testing.assert_close(ours[key], tensor, rtol=1e-3, atol=1e-4)


def test_layers_can_be_made_dense_again_and_train_on() -> None:
    net, _ = trained(Static(sparsity=0.7), "sparse")
    x = torch.randn(3, 3, 10, 9)
    wanted = net(x)
    densify_layers(net)
    assert net.stem.weight.shape == (8, 3, 3, 3)
    assert "forward" not in vars(net.stem)
    torch.testing.assert_close(net(x), wanted)


def test_copies_and_pickles_have_layers_of_their_own() -> None:
    net, _ = trained(Static(sparsity=0.7), "sparse")
    for hook in list(net._forward_pre_hooks):
        del net._forward_pre_hooks[hook]
    x = torch.randn(3, 3, 10, 9)
    wanted = net.eval()(x)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        torch.testing.assert_close(other(x), wanted)
        assert other.stem.forward.layer.owner[0] is other.stem


def test_a_convolution_takes_one_image_without_a_batch() -> None:
    net, _ = trained(Static(sparsity=0.7), "sparse")
    x = torch.randn(3, 10, 9)
    torch.testing.assert_close(net.stem(x), net.stem(x[None])[0])


def reason(layer: nn.Module, **masks: torch.Tensor) -> str:
    found: list[LayerChoice] = []
    for name, mask in masks.items():
        layer.register_buffer(name, mask)
    sparsify_layers(nn.Sequential(layer), kernels="sparse", report=found.append)
    (choice,) = found
    assert choice.kernels == "dense"
    return choice.reason


def test_layers_that_sparse_kernels_cannot_take_say_why() -> None:
    ones = torch.ones
    assert reason(nn.Conv2d(4, 4, 3, groups=4), weight_mask=ones(4, 1, 3, 3)) == "it is a depthwise convolution"
    reflecting = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
    assert reason(reflecting, weight_mask=ones(4, 4, 3, 3)) == "its padding is reflect"
    assert reason(nn.Embedding(4, 3), weight_mask=ones(4, 3)) == (
        "it is a Embedding; sparse kernels compute Conv1d, Conv2d and Linear"
    )
    assert reason(prune.l1_unstructured(nn.Linear(4, 3), "weight", 0.5)) == (
        "its weight is computed by torch.nn.utils.prune"
    )
    normed = parametrize.register_parametrization(nn.Linear(4, 3), "bias", nn.Identity())
    assert reason(normed, weight_mask=ones(3, 4)) == "its weight is parametrized"


def test_tied_weights_stay_dense() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    first.register_buffer("weight_mask", torch.ones(4, 4, dtype=torch.bool))
    found: list[LayerChoice] = []
    sparsify_layers(nn.Sequential(first, second), kernels="sparse", report=found.append)
    assert [choice.reason for choice in found] == ["its weight is shared with another layer"]
