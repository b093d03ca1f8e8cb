"""Wide with ``init="embed"``: what keeps its width, which settings are refused, and what grows at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from builders import linear, random_weight
from embedded_models import embedded, kept_for, net_of, perceptron
from nets import Net

from sift_onnx.errors import UnsupportedError, UsageError
from sift_onnx.graphs.constants import array_of
from sift_onnx.passes import Wide

# What keeps its width.


def softmax(net: Net) -> None:
    net.images_end(net.op("Softmax", net.images(8), axis=1, name="mixer"), 8)


def local_response(net: Net) -> None:
    net.images_end(net.op("LRN", net.images(8), size=3, name="mixer"), 8)


def maximum_of_channels(net: Net) -> None:
    x = net.images(8)
    net.images_end(net.op("Mul", x, net.op("ReduceMax", x, net.constant([1]), keepdims=1, name="mixer")), 8)


def logarithm(net: Net) -> None:
    net.images_end(net.op("Log", net.op("Abs", net.images(8)), name="mixer"), 8)


def quotient(net: Net) -> None:
    x = net.images(8)
    net.images_end(net.op("Div", x, net.op("Sin", net.conv(x, 8, 8)), name="mixer"), 8)


def quotient_of_a_computed_constant(net: Net) -> None:
    divisor = net.op("Sub", net.weight(8, 1, 1), net.weight(8, 1, 1))
    net.images_end(net.op("Div", net.images(8), divisor, name="mixer"), 8)


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (softmax, "normalizes over an axis that grows from 8 to 16"),
        (local_response, "normalizes over neighbours along an axis that grows"),
        (maximum_of_channels, "reduces an axis that grows"),
        (logarithm, "may be infinite or undefined"),
        (quotient, "divides by features that are added"),
        (quotient_of_a_computed_constant, "divides by features that are added"),
    ],
)
def test_what_mixes_features_keeps_its_width_by_name(block: Callable[[Net], None], reason: str) -> None:
    net = net_of(block, opset=21)
    assert reason in kept_for(embedded(net.model(), net.feeds), "mixer")


def test_where_nothing_else_can_grow_the_first_reason_is_the_error() -> None:
    net = Net(opset=21)
    x = net.op("Softmax", net.conv(net.input("x", 1, 3, 8, 8), 3, 8), axis=1, name="mixer")
    x = net.op("Softmax", net.conv(x, 8, 8), axis=1)
    net.output(net.conv(x, 8, 2, name="head"))
    with pytest.raises(UnsupportedError, match=r"node 'mixer' \(Softmax\) normalizes over .*Use `init='random'`"):
        Wide("0.75", init="embed")(net.model())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"init": "kaiming"}, "init 'kaiming' is unknown"),
        ({"init": "embed", "resize_output": ["y"]}, "drop `resize_output`"),
        ({"init": "embed", "pattern": "2:4"}, "drop `pattern`"),
        ({"init": "embed", "distribution": "erk"}, "drop `pattern` and `distribution`"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Wide("0.75", **settings)


def test_only_what_was_chosen_grows_and_all_that_grows_is_sparse() -> None:
    result = Wide("0.75", init="embed", only=["w2"])(perceptron(4, 6, 6, 6, 6, 4))
    statuses = [layer["status"] for layer in result.report["layers"]]
    assert statuses == ["unchanged", "sparse", "sparse", "sparse", "unchanged"]


def test_an_axis_that_nobody_stores_may_be_of_any_length() -> None:
    model = linear({f"w{i}": random_weight(8, 8, seed=i) for i in range(4)})
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2**40
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 2**40
    result = Wide("0.75", init="embed")(model)
    assert [len(array_of(c)) for n, c in result.model.initializers().items() if n == "w1"] == [16]


def test_a_hidden_layer_grows_between_the_first_weight_and_the_last() -> None:
    result = Wide("0.75", init="embed")(perceptron(4, 6, 4))
    assert [layer["shape_after"] for layer in result.report["layers"]] == [[4, 12], [12, 4]]


def test_the_reason_is_what_keeps_a_width_and_not_a_kernel_of_one_place() -> None:
    """A kernel of size 1 does not grow either, and says nothing."""
    net = Net(opset=21)
    x = net.op("Softmax", net.images(8), axis=1)
    net.images_end(net.op("Softmax", net.conv(x, 8, 8, name="kept"), axis=1), 8)
    result = embedded(net.model(), net.feeds)
    (kept,) = [layer for layer in result.report["layers"] if layer["name"] == "kept.weight"]
    assert "normalizes over an axis that grows" in kept["reason"]


# A transformer of which a part grows.


def transformer() -> Net:
    net = Net(opset=21)
    x = net.op("Add", net.tokens(8, 5), net.weight(5, 8, fan_in=1))
    for i in range(2):
        y = net.op("LayerNormalization", x, net.weight(8, fan_in=1), net.weight(8, fan_in=1))
        heads = [
            net.op("Transpose", net.op("Reshape", net.dense(y, 8, 8, name=f"{n}{i}"), "heads"), perm=[0, 2, 1, 3])
            for n in "qkv"
        ]
        keys = net.op("Transpose", heads[1], perm=[0, 1, 3, 2])
        scores = net.op("Softmax", net.op("Mul", net.op("MatMul", heads[0], keys), net.constant(0.5)), axis=-1)
        y = net.op("Transpose", net.op("MatMul", scores, heads[2]), perm=[0, 2, 1, 3])
        x = net.op("Add", x, net.dense(net.op("Reshape", y, net.constant([0, 5, -1])), 8, 8, name=f"o{i}"))
        y = net.op("LayerNormalization", x, net.weight(8, fan_in=1), net.weight(8, fan_in=1))
        y = net.op("Gelu", net.dense(y, 8, 12, name=f"up{i}"))
        x = net.op("Add", x, net.dense(y, 12, 8, name=f"down{i}"))
    net.tokens_end(net.op("LayerNormalization", x, net.weight(8, fan_in=1), net.weight(8, fan_in=1)), 8)
    net.constant([0, 5, 2, 4], name="heads")
    return net


def grown_shapes(**settings: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    net = transformer()
    layers = embedded(net.model(), net.feeds, **settings).report["layers"]
    return {layer["name"]: (tuple(layer["shape_after"]), layer["status"]) for layer in layers}


def test_only_what_was_chosen_of_a_transformer_grows() -> None:
    found = grown_shapes(only=["down*"])
    # The stream that `down` writes to grows, with all that reads it and writes to it; heads do not.
    assert {name: found[name] for name in ("up0.weight", "down1.weight", "q0.weight", "o1.weight")} == {
        "up0.weight": ((16, 24), "sparse"),
        "down1.weight": ((24, 16), "sparse"),
        "q0.weight": ((16, 8), "sparse"),
        "o1.weight": ((8, 16), "sparse"),
    }


def test_what_stays_dense_of_a_transformer_keeps_its_sizes_and_the_rest_grows() -> None:
    found = grown_shapes(keep_dense=["q*"])
    # The stream and the size of heads, which queries share with keys, stay; values and the inner layer grow.
    assert {name: found[name] for name in ("q0.weight", "k1.weight", "v0.weight", "o0.weight", "up1.weight")} == {
        "q0.weight": ((8, 8), "unchanged"),
        "k1.weight": ((8, 8), "unchanged"),
        "v0.weight": ((8, 16), "sparse"),
        "o0.weight": ((16, 8), "sparse"),
        "up1.weight": ((8, 24), "sparse"),
    }


def test_a_layer_that_stays_dense_says_so() -> None:
    net = transformer()
    layers = embedded(net.model(), net.feeds, keep_dense=["up1.weight"]).report["layers"]
    (reason,) = [layer["reason"] for layer in layers if layer["name"] == "up1.weight"]
    assert "kept dense by `keep_dense`" in reason


def test_products_of_activations_keep_their_cost_where_the_total_is_to_stay() -> None:
    net = transformer()
    report = embedded(net.model(), net.feeds, budget="total").report
    assert report["totals"]["attention_macs_after"] == report["totals"]["attention_macs_before"]
    shapes = {layer["name"]: tuple(layer["shape_after"]) for layer in report["layers"]}
    assert shapes["q0.weight"] == shapes["v1.weight"] == (16, 8)
    assert shapes["up0.weight"] == (16, 24)
    assert grown_shapes()["q0.weight"] == ((16, 16), "sparse")
