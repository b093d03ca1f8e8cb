"""Functions that exporters spell in several nodes: which are found, and that they train as exactly as by torch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from nets import Net
from training.sparse_layers.masked_models import assert_as_exact_as_torch, sparsified
from training.sparse_layers.test_regions import conversions, images, imported, targets

from sift_onnx.training import densify_layers
from sift_onnx.training.sparse_layers.lanes.operators import combine
from sift_onnx.training.sparse_layers.spelled import spelled_in_lanes


def gated_by_themselves() -> Net:
    net = Net()
    x = images(net)
    x = net.conv(net.op("Mul", x, net.op("Sigmoid", x)), 6, 7, 3, name="second")
    x = net.conv(
        net.op("Mul", x, net.op("Sigmoid", net.op("Mul", net.constant(1.702, "alpha"), x))), 7, 7, name="third"
    )
    net.output(net.conv(net.op("Mul", net.op("Sigmoid", x), x), 7, 4, name="last"))
    return net


def spelled_by_tanh(square_first: bool = False) -> Net:
    net = Net()
    x = net.dense(net.input("x", 2, 3, 8, declared=["n", 3, 8]), 8, 12, name="up")
    cube = net.op("Mul", x, net.op("Mul", x, x)) if square_first else net.op("Pow", x, net.constant(3.0, "three"))
    inner = net.op("Add", x, net.op("Mul", net.constant(0.044715, "cubic"), cube))
    tanh = net.op("Tanh", net.op("Mul", net.constant((2 / torch.pi) ** 0.5, "root"), inner))
    factor = net.op("Mul", net.constant(0.5, "half"), net.op("Add", tanh, net.constant(1.0, "one")))
    net.output(net.dense(net.op("Mul", x, factor), 12, 8, name="down"))
    return net


def spelled_by_products_and_tanh() -> Net:
    return spelled_by_tanh(square_first=True)


def spelled_root_mean_square(kind: str = "reciprocal", axis: int = -1) -> Net:
    net = Net()
    x = net.input("x", 2, 3, 8, declared=["n", 3, 8])
    scale = net.constant((torch.rand(8) + 0.5).numpy(), "scale")
    axes = net.constant([axis], "axes", "int64")
    mean = net.op("ReduceMean", net.op("Pow", x, net.constant(2.0, "two")), axes)
    root = net.op("Sqrt", net.op("Add", mean, net.constant(1e-3, "epsilon")))
    if kind == "quotient":
        normalized = net.op("Div", x, root)
    else:
        one = net.constant(1.0, "one")
        inverse = net.op("Reciprocal", root) if kind == "reciprocal" else net.op("Div", one, root)
        normalized = net.op("Mul", x, inverse)
    net.output(
        net.dense(net.op("Tanh", net.dense(net.op("Mul", scale, normalized), 8, 12, name="up")), 12, 8, name="down")
    )
    return net


def spelled_root_mean_square_by_division() -> Net:
    return spelled_root_mean_square("division", axis=2)


def spelled_root_mean_square_as_a_quotient() -> Net:
    return spelled_root_mean_square("quotient")


SPELLED = (
    gated_by_themselves,
    spelled_by_tanh,
    spelled_by_products_and_tanh,
    spelled_root_mean_square,
    spelled_root_mean_square_by_division,
    spelled_root_mean_square_as_a_quotient,
)


def batch(build: Any, n: int) -> torch.Tensor:
    shape = (5, 8, 8) if build is gated_by_themselves else (3, 8)
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(n))


@pytest.mark.parametrize("build", SPELLED)
def test_what_is_spelled_in_several_nodes_is_one_function(build: Any) -> None:
    module, _ = sparsified(imported(build()))
    assert targets(module).count(spelled_in_lanes) == (3 if build is gated_by_themselves else 1)
    assert combine not in targets(module)
    assert conversions(module) == (1, 1)


@pytest.mark.parametrize("build", SPELLED)
def test_they_train_as_exactly_as_torch(build: Any) -> None:
    assert_as_exact_as_torch(imported(build()), [batch(build, n) for n in (16, 5, 33)])


@pytest.mark.parametrize("build", SPELLED)
def test_they_can_be_spelled_again(build: Any) -> None:
    module = imported(build())
    plain = densify_layers(copy.deepcopy(sparsified(module)[0]))
    assert torch.equal(plain(batch(build, 4)), module(batch(build, 4)))
    found, wanted = ([node.target for node in m.graph.nodes if node.op != "get_attr"] for m in (plain, module))
    assert found == wanted


def test_what_is_spelled_outside_of_regions_keeps_its_nodes() -> None:
    module = imported(spelled_root_mean_square())
    twin, _ = sparsified(module, kernels={"down.weight": "sparse"})
    assert spelled_in_lanes not in targets(twin)
    assert [t for t in targets(twin) if t in (torch.reciprocal, torch.sqrt)] == [torch.sqrt, torch.reciprocal]
    x = torch.randn(2, 3, 8)
    torch.testing.assert_close(twin(x), module(x))


def test_a_mean_over_another_axis_is_that_of_torch() -> None:
    net = Net()
    x = net.input("x", 2, 8, 8, declared=["n", 8, 8])
    mean = net.op("ReduceMean", net.op("Pow", x, net.constant(2.0, "two")), net.constant([1], "axes", "int64"))
    root = net.op("Sqrt", net.op("Add", mean, net.constant(1e-3, "epsilon")))
    scale = net.constant((torch.rand(8) + 0.5).numpy(), "scale")
    net.output(net.dense(net.op("Mul", net.op("Div", x, root), scale), 8, 12, name="up"))
    module = imported(net)
    x = torch.randn(3, 8, 8)
    torch.testing.assert_close(sparsified(module)[0](x), module(x))


def test_a_value_that_something_else_reads_stays_spelled() -> None:
    net = Net()
    x = images(net)
    gate = net.op("Sigmoid", x)
    net.output(net.conv(net.op("Add", net.op("Mul", x, gate), gate), 6, 4, name="last"))
    module = imported(net)
    assert spelled_in_lanes not in targets(sparsified(module)[0])
    assert_as_exact_as_torch(module, [torch.randn(5, 5, 8, 8)])
