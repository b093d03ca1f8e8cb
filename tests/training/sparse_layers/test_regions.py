"""Regions in lanes: what lies in them, and that models train in them as exactly as by torch."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from nets import Net
from training.sparse_layers.masked_models import assert_as_exact_as_torch, sparsified, with_masks

from sift_onnx.training import ImportedModule, densify_layers, sparsify_layers, to_torch
from sift_onnx.training.sparse import Static, attach
from sift_onnx.training.sparse_layers.lanes.batch_norm import normalize
from sift_onnx.training.sparse_layers.lanes.batch_norm_pool import normalize_and_pool
from sift_onnx.training.sparse_layers.lanes.layer_norm import layer_norm, rms_norm
from sift_onnx.training.sparse_layers.lanes.max_pool import max_pool
from sift_onnx.training.sparse_layers.lanes.operators import elementwise, with_vector
from sift_onnx.training.sparse_layers.lanes.tensors import from_lanes, image_lanes, token_lanes
from sift_onnx.training.sparse_layers.spelled import spelled_in_lanes


def imported(net: Net, density: float = 0.3) -> ImportedModule:
    return with_masks(to_torch(net.model()), density)


def conversions(module: Any) -> tuple[int, int]:
    """How many nodes convert to lanes, and from them."""
    targets = [node.target for node in module.graph.nodes]
    return targets.count(image_lanes) + targets.count(token_lanes), targets.count(from_lanes)


def images(net: Net) -> str:
    return net.conv(net.input("x", 2, 5, 8, 8, declared=["n", 5, 8, 8]), 5, 6, 3, name="first")


def normalized(net: Net, x: str, channels: int) -> str:
    constants = [net.constant(torch.rand(channels).numpy() + 0.5) for _ in range(4)]
    return str(net.op("BatchNormalization", x, *constants))


def residual_block() -> Net:
    net = Net()
    x = net.op("Relu", normalized(net, images(net), 6))
    inner = net.op("Relu", normalized(net, net.conv(x, 6, 7, 3, name="second"), 7))
    net.output(net.op("Relu", net.op("Add", normalized(net, net.conv(inner, 7, 6, name="third"), 6), x)))
    return net


def pooled_classifier() -> Net:
    net = Net()
    x = net.op("MaxPool", net.op("HardSwish", images(net)), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 1, 1])
    x = net.op("Flatten", net.op("GlobalAveragePool", net.conv(x, 6, 9, 3, name="second")))
    net.output(net.op("Gemm", x, net.weight(9, 4, name="head"), net.constant([0.1, 0.2, 0.3, 0.4])))
    return net


def flattened_classifier() -> Net:
    net = Net()
    x = net.op("Flatten", net.op("Relu", images(net)))
    net.output(net.dense(net.op("Relu", net.dense(x, 384, 5, name="hidden")), 5, 3, name="head"))
    return net


def gated_images() -> Net:
    net = Net()
    x = images(net)
    gate = net.op("Sigmoid", net.conv(net.op("GlobalAveragePool", x), 6, 6, name="gate"))
    scale = net.constant(torch.rand(1, 6, 1, 1).numpy(), "scale")
    net.output(net.conv(net.op("Sub", scale, net.op("Mul", x, gate)), 6, 4, name="last"))
    return net


def averaged() -> Net:
    net = Net()
    x = net.op("AveragePool", net.op("Relu", images(net)), kernel_shape=[2, 2], strides=[2, 2])
    x = net.op("AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    window = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}
    x = net.op("AveragePool", x, **window, ceil_mode=1, count_include_pad=1)
    net.output(net.conv(x, 6, 4, name="last"))
    return net


def parted() -> Net:
    net = Net()
    first, second = net.op("Split", net.op("Relu", images(net)), axis=1, num_outputs=2, outputs=2)
    sizes = net.constant([2, 1], "sizes", "int64")
    third, fourth = net.op("Split", net.conv(second, 3, 3, 3, name="second"), sizes, axis=1, outputs=2)
    net.output(net.conv(net.op("Concat", fourth, first, third, axis=1), 6, 4, name="last"))
    return net


def squeezed() -> Net:
    """A gate and a classifier on means over space, as torch's ``mean`` is exported."""
    net = Net()
    x, space = images(net), net.constant([-1, 2], "space", "int64")
    gate = net.op("Sigmoid", net.conv(net.op("ReduceMean", x, space), 6, 6, name="gate"))
    x = net.op("ReduceMean", net.conv(net.op("Mul", x, gate), 6, 9, 3, name="second"), space, keepdims=0)
    net.output(net.op("Gemm", x, net.weight(9, 4, name="head"), net.constant([0.1, 0.2, 0.3, 0.4])))
    return net


def side_by_side() -> Net:
    """Channels of a dense branch, and of one before a sparse layer and behind it."""
    net = Net()
    x = net.op("Relu", images(net))
    z = net.op("Softmax", net.input("z", 1, 2, 8, 8), axis=1)
    x = net.op("Concat", x, net.conv(x, 6, 3, 3, name="second"), axis=1)
    x = net.conv(net.op("Concat", x, x, axis=1), 18, 4, name="last")
    net.output(net.op("Add", x, net.op("ReduceMax", z, keepdims=1)))
    return net


def biases_as_exported() -> Net:
    """A bias of zeros in the type of the input, as torch's exporter writes convolutions without bias."""
    net = Net()
    zero, x = net.constant(0.0, "zero"), images(net)
    for name in ("second", "third"):
        bias = net.op("Expand", net.op("CastLike", zero, x), net.constant([6], f"size_{name}", "int64"))
        weight = net.weight(6, 6, 1, 1, name=f"{name}.weight")
        x = net.op("Relu", net.op("Conv", x, weight, bias))
    sizes = net.op("Shape", x, start=0, end=2)
    net.output(net.op("Reshape", net.op("GlobalAveragePool", x), sizes))
    return net


def feed_forward() -> Net:
    net = Net()
    x = net.input("x", 2, 3, 8, declared=["n", 3, 8])
    inner = net.op("Gelu", net.op("Add", net.constant([0.1] * 12, "b1"), net.dense(x, 8, 12, name="up")))
    net.output(net.op("Add", net.op("Add", net.dense(inner, 12, 8, name="down"), net.constant([0.2] * 8, "b2")), x))
    return net


def stem() -> Net:
    net = Net()
    x = net.op("Relu", normalized(net, net.conv(net.op("Abs", images(net)), 6, 6, name="dense"), 6))
    x = net.op("MaxPool", x, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], ceil_mode=1)
    net.output(net.conv(x, 6, 4, 3, name="last"))
    return net


def pre_norm(halves_first: bool = False) -> Net:
    net = Net()
    x = net.input("x", 2, 3, 8, declared=["n", 3, 8])
    scale, shift = net.constant((torch.rand(8) + 0.5).numpy()), net.constant(torch.rand(8).numpy())
    inner = net.dense(net.op("LayerNormalization", x, scale, shift, axis=-1), 8, 12, name="up")
    inner = net.op("Add", inner, net.constant([0.1] * 12, "b1"))
    factor = net.op("Add", net.op("Erf", net.op("Div", inner, net.constant(2**0.5, "root"))), net.constant(1.0, "one"))
    half = net.constant(0.5, "half")
    if halves_first:
        gelu = net.op("Mul", net.op("Mul", inner, half), factor)
    else:
        gelu = net.op("Mul", net.op("Mul", inner, factor), half)
    net.output(net.op("LayerNormalization", net.op("Add", net.dense(gelu, 12, 8, name="down"), x), scale))
    return net


def pre_norm_halves_first() -> Net:
    return pre_norm(halves_first=True)


def root_mean_square() -> Net:
    net = Net(opset=23)
    x = net.input("x", 2, 3, 8, declared=["n", 3, 8])
    scale = net.constant((torch.rand(8) + 0.5).numpy())
    inner = net.dense(net.op("RMSNormalization", x, scale, epsilon=1e-3), 8, 12, name="up")
    net.output(net.op("Add", net.dense(net.op("Tanh", inner), 12, 8, name="down"), x))
    return net


TOKENS = (feed_forward, pre_norm, pre_norm_halves_first, root_mean_square)
NETS = [
    residual_block, pooled_classifier, flattened_classifier, gated_images, averaged, parted, squeezed,
    biases_as_exported, stem, *TOKENS,
]  # fmt: skip


def targets(module: Any) -> list[Any]:
    return [node.target for node in module.graph.nodes]


def functions(module: Any) -> list[Any]:
    return [target for target in targets(module) if not isinstance(target, str)]


def test_normalization_and_pooling_before_a_sparse_layer_are_in_lanes() -> None:
    module, _ = sparsified(imported(stem()), kernels={"last.weight": "sparse"})
    wanted = (image_lanes, normalize, normalize_and_pool, max_pool)
    # In one pass.
    assert [target for target in targets(module) if target in wanted] == [image_lanes, normalize_and_pool]


@pytest.mark.parametrize("build", [pre_norm, pre_norm_halves_first])
def test_a_spelled_gelu_is_one_function_and_biases_are_those_of_layers(build: Any) -> None:
    found = targets(sparsified(imported(build()))[0])
    assert found.count(spelled_in_lanes) == 1
    assert found.count(layer_norm) == 1  # what comes after the sum with the input is torch's
    assert elementwise not in found
    assert with_vector not in found


def test_root_mean_square_normalization_before_a_sparse_layer_is_in_lanes() -> None:
    assert targets(sparsified(imported(root_mean_square()))[0]).count(rms_norm) == 1


@pytest.mark.parametrize("build", NETS)
def test_a_region_trains_as_exactly_as_torch(build: Any) -> None:
    shape = (3, 8) if build in TOKENS else (5, 8, 8)
    draw = torch.Generator().manual_seed(1)
    assert_as_exact_as_torch(imported(build()), [torch.randn(n, *shape, generator=draw) for n in (16, 5, 33, 2)])


@pytest.mark.parametrize(("build", "count"), [
    (residual_block, (1, 1)),
    (pooled_classifier, (1, 1)),
    (flattened_classifier, (1, 1)),
    (gated_images, (1, 1)),
    (averaged, (1, 1)),
    (parted, (1, 1)),
    (squeezed, (1, 1)),
    (side_by_side, (1, 1)),
    (biases_as_exported, (1, 1)),
    (stem, (1, 1)),
    (feed_forward, (1, 1)),
    (pre_norm, (1, 1)),
])  # fmt: skip
def test_a_tensor_is_converted_at_the_border_alone(build: Any, count: tuple[int, int]) -> None:
    assert conversions(sparsified(imported(build()))[0]) == count


@pytest.mark.parametrize("build", NETS)
def test_layers_can_be_made_dense_again(build: Any) -> None:
    module = imported(build())
    twin, _ = sparsified(module)
    plain = densify_layers(copy.deepcopy(twin))
    x = torch.randn(4, *((3, 8) if build in TOKENS else (5, 8, 8)))
    assert torch.equal(plain(x), module(x))
    assert [node.target for node in plain.graph.nodes if node.op != "get_attr"] == [
        node.target for node in module.graph.nodes if node.op != "get_attr"
    ]
    shapes = [{name: tensor.shape for name, tensor in m.state_dict().items()} for m in (plain, module)]
    assert shapes[0] == shapes[1]
    assert not any("sparse" in name for name in vars(plain.layers))


@pytest.mark.parametrize("build", NETS)
def test_layers_that_change_one_after_the_other_give_the_graph_of_all_at_once(build: Any) -> None:
    module = imported(build())
    attach(Static(), module, torch.optim.SGD(module.parameters(), lr=0.1))
    at_once, found = sparsified(module)
    first, *rest = found
    without_first, _ = sparsified(module, dict.fromkeys(rest, "sparse"))
    twin = copy.deepcopy(module)
    for name in found:
        sparsify_layers(twin, kernels={name: "sparse"})
    assert functions(twin) == functions(at_once)
    densify_layers(twin, names=[first])
    assert functions(twin) == functions(without_first)
    assert twin.get_parameter(first).dim() > 1


def test_evaluation_and_odd_batches_agree_with_torch() -> None:
    module = imported(residual_block()).eval()
    twin, _ = sparsified(module)
    with torch.no_grad():
        for n in (1, 15, 16, 17):
            x = torch.randn(n, 5, 8, 8)
            torch.testing.assert_close(twin(x), module(x))


def test_an_operator_that_is_not_known_to_be_safe_ends_a_region() -> None:
    net = Net()
    x = net.op("Reciprocal", net.op("Sigmoid", images(net)))
    net.output(net.conv(x, 6, 4, name="second"))
    module = imported(net)
    assert conversions(sparsified(module)[0]) == (2, 2)
    assert_as_exact_as_torch(module, [torch.randn(5, 5, 8, 8)])


def test_an_operator_beside_a_dense_branch_joins_only_on_the_way_to_another_sparse_layer() -> None:
    net = Net()
    x = images(net)
    net.output(net.op("Add", x, net.op("Softmax", net.input("z", 2, 6, 8, 8, declared=["n", 6, 8, 8]), axis=1)))
    assert "combine" not in sparsified(imported(net))[0].code


def test_channels_side_by_side_are_those_of_torch() -> None:
    module = imported(side_by_side())
    twin, _ = sparsified(module)
    for n in (1, 16, 21):
        feeds = torch.randn(n, 5, 8, 8), torch.randn(1, 2, 8, 8)
        torch.testing.assert_close(twin(*feeds), module(*feeds))
    torch.testing.assert_close(densify_layers(twin)(*feeds), module(*feeds))


def test_a_product_that_reads_images_converts_between_the_two_kinds() -> None:
    net = Net()
    net.output(net.dense(net.op("Relu", images(net)), 8, 3, name="product"))
    module = imported(net)
    assert conversions(sparsified(module)[0]) == (2, 2)
    assert_as_exact_as_torch(module, [torch.randn(5, 5, 8, 8)])


def test_sums_that_broadcast_batches_are_those_of_torch() -> None:
    net = Net()
    x = images(net)
    one = net.conv(net.input("z", 1, 5, 8, 8), 5, 6, 3, name="other")
    net.output(net.conv(net.op("Add", x, one), 6, 4, name="last"))
    module = imported(net)
    twin, _ = sparsified(module)
    feeds = torch.randn(3, 5, 8, 8), torch.randn(1, 5, 8, 8)
    torch.testing.assert_close(twin(*feeds), module(*feeds))


def test_a_rewritten_graph_can_be_copied_and_pickled() -> None:
    twin, _ = sparsified(imported(pooled_classifier()))
    x = torch.randn(4, 5, 8, 8)
    for other in (copy.deepcopy(twin), pickle.loads(pickle.dumps(twin))):
        assert torch.equal(other(x), twin(x))
        densify_layers(other)
        torch.testing.assert_close(other(x), twin(x))


@pytest.mark.parametrize("activation", ["Relu", "HardSwish"])
def test_what_one_pass_computes_again_is_not_kept(activation: str) -> None:
    net = Net()
    x = normalized(net, images(net), 6) if activation == "Relu" else images(net)
    net.output(net.conv(net.op(activation, x), 6, 4, name="second"))
    module = sparsified(imported(net))[0].train()
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module(torch.randn(16, 5, 8, 8)).sum().backward()
    assert [t.shape[1] for t in kept.values() if t.dim() == 5] == [5, 6]
