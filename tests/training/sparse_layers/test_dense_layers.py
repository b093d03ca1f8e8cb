"""Convolutions of dense weights that run in lanes beside sparse layers."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from nets import Net
from torch import nn
from training.sparse_layers.masked_models import assert_as_exact_as_torch, sparsified, with_masks
from training.sparse_layers.test_regions import conversions, normalized

from sift_onnx.training import ImportedModule, densify_layers, sparsify_layers, to_torch
from sift_onnx.training.sparse import RigL, Static, attach
from sift_onnx.training.sparse_layers.dense_layer import DenseLayer
from sift_onnx.training.sparse_layers.kernels import DepthwiseKernels
from sift_onnx.training.sparse_layers.lanes.tensors import from_lanes, image_lanes


def imported(net: Net, *sparse: str) -> ImportedModule:
    """The model with masks on these weights alone."""
    module = with_masks(to_torch(net.model()))
    module.masks = {name: mask for name, mask in module.masks.items() if name in sparse}
    return module


def images(net: Net, channels: int = 3, size: int = 8) -> str:
    return net.input("x", 2, channels, size, size, declared=["n", channels, size, size])


def stem(**attributes: Any) -> ImportedModule:
    net = Net()
    x = net.op("Relu", normalized(net, net.conv(images(net), 3, 12, 3, name="stem", **attributes), 12))
    net.output(net.conv(x, 12, 7, 3, name="body"))
    return imported(net, "body.weight")


def between(channels: int = 6, kernel: int = 3, bias: bool = True, **attributes: Any) -> ImportedModule:
    """A dense convolution between two sparse ones."""
    net = Net()
    x = net.op("Relu", net.conv(images(net), 3, channels, name="first"))
    group = attributes.get("group", 1)
    shift = [net.constant([0.1 * i for i in range(channels)], "shift")] if bias else []
    weight = net.weight(channels, channels // group, kernel, kernel, name="dense.weight")
    x = net.op("Relu", net.op("Conv", x, weight, *shift, name="dense", **attributes))
    net.output(net.conv(x, channels, 5, name="last"))
    return imported(net, "first.weight", "last.weight")


def dense_layers(module: Any) -> list[DenseLayer]:
    return [value for value in vars(module.layers).values() if isinstance(value, DenseLayer)]


def batches(*sizes: int, size: int = 8) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(n, 3, size, size, generator=draw) for n in sizes]


def test_of_a_stem_the_image_is_converted_and_not_its_output() -> None:
    module, _ = sparsified(stem(strides=[2, 2]))
    (conversion,) = (node for node in module.graph.nodes if node.target is image_lanes)
    assert conversion.args[0].op == "placeholder"
    assert conversions(module) == (1, 1)


@pytest.mark.parametrize("attributes", [
    {"pads": [1, 1, 1, 1]},
    {"strides": [2, 2], "pads": [0, 1, 2, 1], "bias": False},
    {"group": 2, "dilations": [2, 1], "pads": [2, 1, 2, 1]},
    {"group": 6, "pads": [1, 1, 1, 1]},
    {"group": 6, "strides": [2, 2], "auto_pad": "SAME_UPPER", "bias": False},
], ids=str)  # fmt: skip
def test_a_dense_convolution_between_sparse_layers_trains_as_exactly_as_torch(attributes: dict[str, Any]) -> None:
    module = between(**attributes)
    twin, _ = sparsified(module)
    assert conversions(twin) == (1, 1)
    twin(batches(3)[0])
    (layer,) = dense_layers(twin)
    (kernels,) = layer._kernels.values()
    assert isinstance(kernels, DepthwiseKernels) == (attributes.get("group") == 6)
    assert_as_exact_as_torch(module, batches(16, 5, 33, 2))


def test_a_stem_trains_as_exactly_as_torch() -> None:
    assert_as_exact_as_torch(stem(strides=[2, 2]), batches(16, 5, 33, 2))


def test_a_convolution_of_one_axis_with_several_outputs_of_each_channel_trains_as_exactly_as_torch() -> None:
    net = Net()
    x = net.input("x", 2, 4, 9, declared=["n", 4, 9])
    x = net.op("Conv", x, net.weight(4, 4, 3, name="first.weight"), pads=[1, 1])
    x = net.op("Conv", net.op("Relu", x), net.weight(8, 1, 3, name="dense.weight"), group=4, strides=[2])
    net.output(net.op("Conv", net.op("Relu", x), net.weight(5, 8, 1, name="last.weight")))
    module = imported(net, "first.weight", "last.weight")
    assert conversions(sparsified(module)[0]) == (1, 1)
    draw = torch.Generator().manual_seed(1)
    assert_as_exact_as_torch(module, [torch.randn(n, 4, 9, generator=draw) for n in (16, 3)])


def test_a_dense_weight_that_two_convolutions_share_gets_the_gradients_of_both() -> None:
    net = Net()
    x, weight = net.conv(images(net), 3, 6, name="first"), net.weight(6, 6, 1, 1, name="shared.weight")
    x = net.op("Conv", net.op("Relu", net.op("Conv", x, weight)), weight)
    net.output(net.conv(x, 6, 5, name="last"))
    module = imported(net, "first.weight", "last.weight")
    assert conversions(sparsified(module)[0]) == (1, 1)
    assert_as_exact_as_torch(module, batches(4, 17))


def test_the_parameter_stays_as_it_is() -> None:
    module = between()
    twin, choices = sparsified(module)
    assert list(choices) == ["first.weight", "last.weight"]
    assert type(twin.get_parameter("dense.weight")) is nn.Parameter
    assert torch.equal(twin.get_parameter("dense.weight"), module.get_parameter("dense.weight"))
    assert {name: value.shape for name, value in twin.state_dict().items() if not name.endswith("_mask")} == {
        name: value.shape for name, value in module.state_dict().items()
    }


@pytest.mark.parametrize("setting", [{}, {"batch_size": 16}, {"batch_size": 30}])
def test_a_convolution_of_many_multiply_adds_ends_a_region(setting: dict[str, Any]) -> None:
    module = between(channels=40, kernel=3)
    twin, _ = sparsified(module, **setting)
    assert conversions(twin) == (2, 2)
    assert dense_layers(twin) == []


@pytest.mark.parametrize(("batch_size", "count"), [(16, 1), (4, 0), (33, 0), (64, 1)])
def test_a_batch_that_leaves_lanes_idle_counts(batch_size: int, count: int) -> None:
    assert len(dense_layers(sparsified(between(), batch_size=batch_size)[0])) == count


def test_behind_the_last_sparse_layer_it_is_torch_that_computes() -> None:
    net = Net()
    net.output(net.conv(net.op("Relu", net.conv(images(net), 3, 6, name="first")), 6, 6, name="last"))
    assert dense_layers(sparsified(imported(net, "first.weight"))[0]) == []


def test_before_a_region_a_convolution_of_more_channels_than_it_gives_is_torchs() -> None:
    net = Net()
    x = net.op("Relu", net.conv(images(net, 12), 12, 3, name="dense"))
    net.output(net.conv(x, 3, 6, name="body"))
    assert dense_layers(sparsified(imported(net, "body.weight"))[0]) == []


def test_two_branches_before_a_region_belong_to_it() -> None:
    net = Net()
    x = net.conv(images(net), 3, 6, name="stem")
    x = net.op("Mul", x, net.op("Sigmoid", x))
    net.output(net.conv(x, 6, 5, name="body"))
    module = imported(net, "body.weight")
    twin, _ = sparsified(module)
    assert conversions(twin) == (1, 1)
    assert len(dense_layers(twin)) == 1
    assert_as_exact_as_torch(module, batches(16, 3))


def test_an_operator_that_something_else_reads_too_stays_outside() -> None:
    net = Net()
    x = normalized(net, net.op("Softmax", images(net), axis=1), 3)
    y = net.conv(x, 3, 3, name="body")
    net.output(net.op("Sub", net.op("Softmax", x, axis=1), net.op("Softmax", y, axis=1)))
    assert conversions(sparsified(imported(net, "body.weight"))[0]) == (1, 1)


def test_layers_can_be_made_dense_again_and_sparse_once_more() -> None:
    module = between()
    twin, _ = sparsified(module)
    x = batches(5)[0]
    wanted = twin(x)
    plain = densify_layers(copy.deepcopy(twin))
    assert dense_layers(plain) == []
    assert torch.equal(plain(x), module(x))
    assert [node.target for node in plain.graph.nodes] == [node.target for node in module.graph.nodes]
    sparsify_layers(plain, kernels="sparse")
    assert torch.equal(plain(x), wanted)


def test_a_dense_layer_that_becomes_sparse_later_takes_its_place() -> None:
    module, x = with_masks(between()), batches(5)[0]
    wanted = module(x)
    attach(Static(), module, torch.optim.SGD(module.parameters(), lr=0.1))
    sparsify_layers(module, kernels={"first.weight": "sparse", "last.weight": "sparse"})
    assert len(dense_layers(module)) == 1
    sparsify_layers(module, kernels="sparse")
    assert dense_layers(module) == []
    assert conversions(module) == (1, 1)
    torch.testing.assert_close(module(x), wanted)


def test_copies_and_pickles_compute_the_same() -> None:
    twin, _ = sparsified(between(group=6))
    x = batches(5)[0]
    wanted = twin(x)
    for other in (copy.deepcopy(twin), pickle.loads(pickle.dumps(twin))):
        assert torch.equal(other(x), wanted)
        assert torch.equal(densify_layers(other)(x), densify_layers(copy.deepcopy(twin))(x))


@pytest.mark.parametrize("group", [1, 6])
def test_a_frozen_weight_gets_no_gradient_and_hands_on_that_of_its_input(group: int) -> None:
    module = between(group=group).eval()
    twin, _ = sparsified(module)
    for net in (module, twin):
        net.get_parameter("dense.weight").requires_grad_(False)
    x, other = (torch.ones(2, 3, 8, 8, requires_grad=True) for _ in range(2))
    twin(x).sum().backward()
    module(other).sum().backward()
    assert twin.get_parameter("dense.weight").grad is None
    torch.testing.assert_close(x.grad, other.grad)


@pytest.mark.parametrize("group", [1, 6])
def test_values_that_an_optimizer_writes_behind_autograd_are_seen(group: int) -> None:
    twin, _ = sparsified(between(group=group, bias=False))
    x = batches(2)[0]
    before = twin(x)
    for factor in (2, 4):
        twin.get_parameter("dense.weight").data.mul_(2)
        torch.testing.assert_close(twin(x), factor * before)


def test_a_module_in_double_precision_computes_by_torch() -> None:
    module = between(group=6)
    twin, _ = sparsified(module)
    x = batches(2)[0].double()
    with pytest.warns(UserWarning, match="moved to float64"):
        found = twin.double()(x)
    assert torch.equal(found, module.double()(x))


@pytest.mark.parametrize("group", [1, 6])
def test_it_runs_between_compiled_graphs(group: int) -> None:
    twin, _ = sparsified(between(group=group))
    x = batches(5)[0]
    wanted = twin(x)
    wanted.sum().backward()
    gradient = twin.get_parameter("dense.weight").grad.clone()
    twin.zero_grad()
    found = torch.compile(twin, backend="aot_eager")(x)
    found.sum().backward()
    assert torch.equal(found, wanted)
    assert torch.equal(twin.get_parameter("dense.weight").grad, gradient)


def test_a_masked_layer_on_dense_kernels_trains_under_an_algorithm_in_lanes() -> None:
    def trained(kernels: Any) -> tuple[Any, dict[str, torch.Tensor]]:
        module = with_masks(copy.deepcopy(between(group=6))).train()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
        attach(RigL(update={"freq": 3}), module, optimizer)
        sparsify_layers(module, optimizer, kernels=kernels)
        for x in batches(16, 5, 17, 16, 2, 16, 5, 17, 16, 2):
            y = module(x)
            (y * torch.linspace(-1, 1, y.numel()).reshape(y.shape)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return module, module.state_dict()

    module, ours = trained("sparse")
    _, theirs = trained("dense")
    assert len(dense_layers(module)) == 1
    assert module.get_parameter("dense.weight").dim() == 4
    assert ours.keys() == theirs.keys()
    assert "dense.weight_mask" in ours
    for name, wanted in theirs.items():
        torch.testing.assert_close(ours[name], wanted)


def test_where_nothing_is_sparse_nothing_is_in_lanes() -> None:
    module = with_masks(between())
    twin, _ = sparsified(module, "dense")
    assert [node.target for node in twin.graph.nodes] == [node.target for node in module.graph.nodes]
    assert from_lanes not in [node.target for node in twin.graph.nodes]
