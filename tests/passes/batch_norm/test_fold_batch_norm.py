"""FoldBatchNorm: the same outputs, the same masks, and what cannot be folded is left and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nets import Net, run

import sift_onnx
from sift_onnx.errors import UsageError
from sift_onnx.model import Model
from sift_onnx.passes import FoldBatchNorm, Wide, get_pass
from sift_onnx.shapes.random_inputs import random_feeds
from sift_onnx.shapes.tensor_specs import graph_inputs

rng = np.random.default_rng(0)


def normalized(net: Net, source: str, channels: int, **attrs: Any) -> None:
    """A normalization that is the graph's output."""
    values = [
        rng.uniform(-2, 2, channels),
        rng.standard_normal(channels),
        rng.standard_normal(channels),
        rng.uniform(0.1, 4, channels),
    ]
    net.output(net.op("BatchNormalization", source, *(net.constant(value) for value in values), **attrs))


def assert_folded(model: onnx.ModelProto, count: int = 1) -> Model:
    result = FoldBatchNorm()(model)
    assert len(result.report["layers"]) == count, result.report
    assert not any(node.op == "BatchNormalization" for node in result.model.graph.nodes)
    proto = result.model.to_proto()
    onnx.checker.check_model(proto, full_check=True)
    feeds = random_feeds(graph_inputs(model))
    found, wanted = run(proto, feeds), run(model, feeds)
    for name in (output.name for output in model.graph.output):
        np.testing.assert_allclose(found[name], wanted[name], rtol=2e-4, atol=2e-4)
    assert not FoldBatchNorm()(result.model).changed
    return result.model


@settings(max_examples=30, deadline=None)
@given(
    op=st.sampled_from(["Conv", "ConvTranspose"]),
    groups=st.sampled_from([1, 2, 4]),
    biased=st.booleans(),
    epsilon=st.sampled_from([1e-5, 1e-1]),
)
def test_convolutions_of_any_kind(op: str, groups: int, biased: bool, epsilon: float) -> None:
    net = Net()
    shape = (12, 8 // groups, 3, 3) if op == "Conv" else (8, 12 // groups, 3, 3)
    inputs = [net.input("x", 2, 8, 5, 5), net.constant(rng.standard_normal(shape), "conv.weight")]
    if biased:
        inputs.append(net.constant(rng.standard_normal(12), "conv.bias"))
    normalized(net, net.op(op, *inputs, group=groups), 12, epsilon=epsilon)

    assert {"conv.weight", "conv.bias"} <= assert_folded(net.model()).graph.tensors().keys()


@settings(max_examples=20, deadline=None)
@given(transposed=st.booleans(), bias=st.sampled_from([None, (12,), (1, 12), (1,)]), beta=st.sampled_from([1.0, 0.5]))
def test_gemm(transposed: bool, bias: tuple[int, ...] | None, beta: float) -> None:
    net = Net()
    shape = (12, 8) if transposed else (8, 12)
    inputs = [net.input("x", 3, 8), net.constant(rng.standard_normal(shape))]
    if bias:
        inputs.append(net.constant(rng.standard_normal(bias)))
    normalized(net, net.op("Gemm", *inputs, transB=int(transposed), alpha=0.7, beta=beta), 12)

    assert_folded(net.model())


def test_masks_stay(tmp_path: Any) -> None:
    pytest.importorskip("torch")
    from sift_onnx.models import export

    path = tmp_path / "m.onnx"
    export("resnet18-cifar", path, width=0.125, num_classes=10, keep_batch_norm=True)
    wide = Wide("0.75")(path).model
    masks = sift_onnx.masks(wide)
    folded = assert_folded(wide.to_proto(), 20)
    after = sift_onnx.masks(folded)

    assert after.keys() == masks.keys()
    for name, mask in masks.items():
        np.testing.assert_array_equal(after[name], mask)


def test_a_factor_of_zero_prunes_nothing() -> None:
    net = Net()
    first = net.op("Relu", net.conv(net.images(4), 4, 6))
    y = net.op("Conv", first, net.constant(rng.standard_normal((6, 6, 1, 1)), "w"))
    parameters = [net.constant(values) for values in (np.arange(6.0), np.ones(6), np.ones(6), np.ones(6))]
    middle = net.op("Relu", net.op("BatchNormalization", y, *parameters))
    net.images_end(net.conv(middle, 6, 4), 4)
    pruned = sift_onnx.transform(net.model(), recipe={"passes": [{"prune": {"sparsity": 0.5, "only": ["w"]}}]})
    folded = assert_folded(pruned)

    np.testing.assert_array_equal(sift_onnx.masks(folded)["w"], sift_onnx.masks(pruned)["w"])


def conv(net: Net, **attrs: Any) -> str:
    weight = net.constant(rng.standard_normal((6, 4, 1, 1)), "w")
    return str(net.op("Conv", net.input("x", 2, 4, 5, 5), weight, **attrs))


def read_twice(net: Net) -> None:
    y = conv(net)
    normalized(net, y, 6)
    net.output(y)


def after_a_rectifier(net: Net) -> None:
    normalized(net, net.op("Relu", conv(net)), 6)


def computed(net: Net) -> None:
    rest = [net.constant(np.ones(6)) for _ in range(3)]
    net.output(net.op("BatchNormalization", conv(net), net.input("scale", 6), *rest))


def of_negative_variance(net: Net) -> None:
    ones = [net.constant(np.ones(6)) for _ in range(3)]
    net.output(net.op("BatchNormalization", conv(net), *ones, net.constant(-np.ones(6))))


def behind_a_shared_weight(net: Net) -> None:
    weight = net.constant(rng.standard_normal((4, 4, 1, 1)), "w")
    hidden = net.op("Relu", net.op("Conv", net.input("x", 2, 4, 5, 5), weight))
    normalized(net, net.op("Conv", hidden, weight), 4)


def behind_a_bias_by_row(net: Net) -> None:
    weight, bias = net.constant(rng.standard_normal((8, 6))), net.constant(rng.standard_normal((2, 6)))
    normalized(net, net.op("Gemm", net.input("x", 2, 8), weight, bias), 6)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (read_twice, "something else reads"),
        (after_a_rectifier, "it follows Relu"),
        (computed, "computed"),
        (of_negative_variance, "not finite"),
        (behind_a_shared_weight, "used elsewhere"),
        (behind_a_bias_by_row, "row to row"),
    ],
)
def test_what_cannot_be_folded_stays_and_is_named(build: Callable[[Net], None], reason: str) -> None:
    net = Net()
    build(net)
    result = FoldBatchNorm()(net.model())

    assert not result.changed
    assert [reason in text for text in result.report["kept"].values()] == [True]


def test_it_has_a_place_in_recipes() -> None:
    net = Net()
    hidden = net.op("Relu", net.conv(net.images(4), 4, 8, 3))
    hidden = net.op("Relu", net.conv(hidden, 8, 8, 3))
    normalized(net, net.conv(hidden, 8, 4), 4)
    recipe = {"passes": ["fold-batch-norm", {"wide": {"sparsity": 0.5}}]}
    wide = sift_onnx.transform(net.model(), recipe=recipe)

    assert not any(node.op_type == "BatchNormalization" for node in wide.graph.node)
    assert sift_onnx.transform(wide, recipe=recipe).SerializeToString() == wide.SerializeToString()
    assert get_pass("fold-batch-norm") is FoldBatchNorm


def test_recipes_of_another_version_are_refused() -> None:
    with pytest.raises(UsageError, match="version 2 is unknown"):
        sift_onnx.transform(Net().model(), recipe={"version": 2, "passes": ["fold-batch-norm"]})
