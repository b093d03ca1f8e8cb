"""Which masked layers get sparse kernels, and what is said of the others."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from nets import Net
from training.sparse_layers.masked_models import sparsified, with_masks

from sift_onnx.errors import UsageError
from sift_onnx.training import ImportedModule, LayerChoice, densify_layers, layer_rows, sparsify_layers, to_torch
from sift_onnx.training.sparse import Static, attach


def choices(net: Net, kernels: Any = "sparse", density: float = 0.3) -> dict[str, LayerChoice]:
    return sparsified(with_masks(to_torch(net.model()), density), kernels)[1]


def images(net: Net) -> str:
    return net.input("x", 2, 4, 8, 8)


def two_products() -> Net:
    net = Net()
    net.output(net.dense(net.dense(net.input("x", 2, 6), 6, 9, name="one"), 9, 3, name="two"))
    return net


def depthwise(net: Net) -> str:
    return net.conv(images(net), 4, 4, 3, group=4, name="layer")


def of_three_axes(net: Net) -> str:
    x = net.input("x", 2, 3, 4, 4, 4)
    return str(net.op("Conv", x, net.weight(5, 3, 2, 2, 2, name="layer.weight")))


def transposed(net: Net) -> str:
    return str(net.op("ConvTranspose", images(net), net.weight(4, 5, 3, 3, name="layer.weight")))


def used_twice(net: Net) -> str:
    x, weight = net.input("x", 2, 6), net.weight(6, 6, name="layer.weight")
    return str(net.op("MatMul", net.op("Relu", net.op("MatMul", x, weight)), weight))


def on_the_left(net: Net) -> str:
    return str(net.op("MatMul", net.weight(5, 6, name="layer.weight"), net.input("x", 2, 6, 4)))


def of_a_transposed_activation(net: Net) -> str:
    return str(net.op("Gemm", net.input("x", 6, 2), net.weight(6, 5, name="layer.weight"), transA=1))


def scaled(net: Net) -> str:
    return str(net.op("Gemm", net.input("x", 2, 6), net.weight(6, 5, name="layer.weight"), alpha=0.5))


def with_a_bias_per_token(net: Net) -> str:
    x, weight = net.input("x", 2, 6), net.weight(6, 5, name="layer.weight")
    return str(net.op("Gemm", x, weight, net.weight(2, 5, name="bias")))


@pytest.mark.parametrize(("build", "reason"), [
    (depthwise, "it is a depthwise convolution"),
    (of_three_axes, "it is a convolution of 3 spatial axes"),
    (transposed, "it is not a Conv, Gemm or MatMul that reads the weight as it is stored"),
    (used_twice, "its weight is used 2 times"),
    (on_the_left, "its weight is not the second operand"),
    (of_a_transposed_activation, "it is a Gemm of a transposed activation"),
    (scaled, "it is a Gemm with alpha or beta"),
    (with_a_bias_per_token, "its bias is not a vector of the output's features"),
])  # fmt: skip
def test_a_layer_that_sparse_kernels_cannot_take_stays_as_it_is_and_says_why(build: Any, reason: str) -> None:
    net = Net()
    net.output(build(net))
    module = to_torch(net.model())
    module.masks["layer.weight"] = torch.ones(module.get_parameter("layer.weight").shape, dtype=torch.bool)
    twin, found = sparsified(module)
    assert found["layer.weight"] == LayerChoice("layer.weight", "dense", reason)
    assert twin.code == module.code


def test_weights_of_other_types_and_without_active_elements_stay_dense() -> None:
    module = with_masks(to_torch(two_products().model()))
    assert sparsified(module.double())[1]["one.weight"].reason == (
        "its weight is float64; sparse kernels compute in float32"
    )
    module = module.float()
    module.masks["two.weight"] = torch.zeros_like(module.masks["two.weight"])
    assert sparsified(module)[1]["two.weight"].reason == "no weight of it is active"


def test_auto_takes_what_is_sparse_enough_and_says_how_sparse() -> None:
    module = with_masks(to_torch(two_products().model()), 0.2)
    module.masks["two.weight"] = torch.ones_like(module.masks["two.weight"])
    _, found = sparsified(module, "auto")
    assert found["one.weight"].kernels == "sparse"
    assert found["two.weight"] == LayerChoice("two.weight", "dense", "100% of its weights are active")


def small_convolution(density: float) -> ImportedModule:
    net = Net()
    net.output(net.conv(images(net), 6, 5, 3, name="conv"))
    return with_masks(to_torch(net.model()), density)


@pytest.mark.parametrize(("batch_size", "kernels"), [(None, "sparse"), (16, "sparse"), (33, "sparse"), (4, "dense")])
def test_auto_counts_the_lanes_that_a_small_batch_leaves_idle(batch_size: int | None, kernels: str) -> None:
    module = small_convolution(0.15)
    _, found = sparsified(module, "auto", batch_size=batch_size)
    assert {choice.kernels for choice in found.values()} == {kernels}
    if batch_size == 4:
        assert all(choice.reason.endswith("25% of the lanes are used in batches of 4") for choice in found.values())


def test_auto_does_not_count_images_where_lanes_are_tokens() -> None:
    _, found = sparsified(with_masks(to_torch(two_products().model()), 0.15), "auto", batch_size=1)
    assert {choice.kernels for choice in found.values()} == {"sparse"}


@cache
def product(density: float) -> ImportedModule:
    net = Net()
    net.output(net.op("MatMul", net.input("x", 2, 768), net.weight(768, 768, name="layer.weight")))
    return with_masks(to_torch(net.model()), density)


@pytest.mark.parametrize(("rows", "density", "kernels"), [
    (None, 0.3, "sparse"), (2048, 0.3, "sparse"), (2048, 0.35, "dense"), (72, 0.1, "sparse"), (72, 0.3, "dense"),
    (8, 0.1, "dense"), (0, 0.1, "dense"),
])  # fmt: skip
def test_auto_counts_the_rows_of_a_step_where_they_are_known(rows: int | None, density: float, kernels: str) -> None:
    _, found = sparsified(product(density), "auto", rows=None if rows is None else {"layer.weight": rows})
    assert found["layer.weight"].kernels == kernels
    assert (f"in {rows} rows of a step" in found["layer.weight"].reason) == (rows is not None)


class _TwoCalls(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.unused, self.image = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6), torch.nn.Conv2d(2, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.image(self.body(self.body(x)[:, :, :4]))


def test_rows_are_those_that_each_product_has() -> None:
    net = Net()
    x = net.op("Flatten", net.conv(net.input("x", 7, 2, 5, 5), 2, 3, 3, name="conv"))
    net.output(net.dense(net.dense(x, 75, 9, name="one"), 9, 4, name="two"))
    module = with_masks(to_torch(net.model())).train()
    assert layer_rows(module, torch.randn(7, 2, 5, 5)) == {"one.weight": 7, "two.weight": 7}
    assert all(part.training for part in module.modules())
    own = _TwoCalls()
    Static(0.5).apply(own)
    assert layer_rows(own, torch.randn(3, 2, 5, 6)) == {"body.weight": 24}


def test_a_batch_size_is_positive() -> None:
    with pytest.raises(UsageError, match="batch_size is 0; it has to be positive"):
        sparsified(small_convolution(0.3), batch_size=0)


def test_kernels_can_be_given_by_name() -> None:
    module = with_masks(to_torch(two_products().model()))
    twin, found = sparsified(module, {"one.weight": "dense", "two.weight": "sparse"})
    assert {name: choice.kernels for name, choice in found.items()} == {"one.weight": "dense", "two.weight": "sparse"}
    assert twin.get_parameter("one.weight").dim() == 2
    assert twin.get_parameter("two.weight").dim() == 1


def test_layers_can_get_sparse_kernels_one_after_the_other() -> None:
    module = with_masks(to_torch(two_products().model()))
    x = torch.randn(3, 6)
    wanted = module(x)
    attach(Static(), module, torch.optim.SGD(module.parameters(), lr=0.1))
    sparsify_layers(module, kernels={"one.weight": "sparse"})
    found: list[LayerChoice] = []
    sparsify_layers(module, kernels="sparse", report=found.append)
    assert [choice.name for choice in found] == ["two.weight"]
    torch.testing.assert_close(module(x), wanted)
    torch.testing.assert_close(densify_layers(module)(x), wanted)


def test_masks_of_the_file_that_an_algorithm_leaves_out_stay_dense() -> None:
    module = with_masks(to_torch(two_products().model()))
    module.get_parameter("two.weight").requires_dense = True
    algorithm = Static()
    attach(algorithm, module, torch.optim.SGD(module.parameters(), lr=0.1))
    assert list(algorithm.masks()) == ["one.weight"]
    found: list[LayerChoice] = []
    sparsify_layers(module, kernels="sparse", report=found.append)
    assert [choice.name for choice in found] == ["one.weight"]
    found.clear()
    sparsify_layers(module, kernels="sparse", report=found.append)
    assert found == []


def test_dense_kernels_leave_a_module_as_it_is() -> None:
    module = with_masks(to_torch(two_products().model()))
    twin, found = sparsified(module, "dense")
    assert twin.code == module.code
    assert {choice.reason for choice in found.values()} == {"kernels dense"}


def test_a_second_call_changes_nothing() -> None:
    twin, _ = sparsified(with_masks(to_torch(two_products().model())))
    again, found = sparsified(twin)
    assert found == {}
    assert again.code == twin.code


@pytest.mark.parametrize(("kernels", "message"), [
    ("fast", "kernels is 'fast'; choose auto, sparse or dense"),
    ({"one.weight": "auto"}, "kernels of 'one.weight' is 'auto'; choose sparse or dense"),
    ({"three": "sparse"}, "kernels names 'three', which is not a masked weight of the module"),
])  # fmt: skip
def test_settings_that_are_none_are_named(kernels: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choices(two_products(), kernels)
