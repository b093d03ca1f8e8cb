"""Layers that are left out of the analysis, since sizes in front of them are not known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import merged_nets
import numpy as np
import onnx
import pytest
from nets import MICROSOFT, Net
from onnx import TensorProto, helper

import sift_onnx
from sift_onnx.analysis.graph_analysis import analyze
from sift_onnx.analysis.unanalyzed_layers import left_out_layers
from sift_onnx.errors import SiftError, UnsupportedError, UsageError
from sift_onnx.model import Model
from sift_onnx.passes import Densify, Doped, Factorized, LowRank, Parallel, Prune, Wide
from sift_onnx.passes.pipeline import run_recipe
from sift_onnx.recipe import Recipe

DOMAIN = "custom.example"
STOP = r"shape inference stops at node 'strange' \(custom\.example::Mystery\)"


def behind(net: Net, h: str, name: str = "strange") -> str:
    return str(net.op("Mystery", h, name=name, domain=DOMAIN))


def net_of(*, front: bool = False, recorded: bool = False) -> Net:
    """Three layers behind an operator that nobody knows; ``stem``, ``before``, ``free`` before it, unless ``front``."""
    net = Net()
    h = net.input("x", 1, 5, 8) if front else net.dense(net.op("Relu", net.tokens(12)), 12, 8, name="free")
    h = net.dense(net.op("Relu", behind(net, h)), 8, 12, name="mid")
    h = net.dense(net.op("Relu", net.dense(h, 12, 8, name="after")), 8, 2, name="head")
    net.output(h, 1, 5, 2)
    if recorded:
        net.value_infos.append(helper.make_tensor_value_info("strange", TensorProto.FLOAT, [1, 5, 8]))
    return net


LEFT_OUT = ["mid.weight", "after.weight", "head.weight"]


def names(net: Net) -> list[tuple[str, str, str]]:
    found = left_out_layers(analyze(Model.load(net.model())))
    return [(layer.constant.name, str(layer.node.name), str(layer.stop.name)) for layer in found]


PASSES: list[Callable[[], Any]] = [
    lambda: Wide("0.5"),
    lambda: Parallel("0.5"),
    lambda: Factorized("0.5"),
    lambda: Doped("0.5"),
    lambda: LowRank("1.5"),
    lambda: Prune("0.5"),
]


@pytest.mark.parametrize("make", PASSES)
def test_a_pass_that_finds_no_layer_names_those_left_out_and_the_operator(make: Callable[[], Any]) -> None:
    with pytest.raises(UnsupportedError, match=rf"^nothing to .*'mid\.weight' \(MatMul 'mid'\).*{STOP}") as caught:
        make()(net_of(front=True).model())
    assert "make_tensor_value_info('strange', ...)" in str(caught.value)
    assert f"axis rule for {DOMAIN}::Mystery" in str(caught.value)


@pytest.mark.parametrize("make", PASSES)
def test_a_pass_that_finds_some_layers_says_which_are_left_out(make: Callable[[], Any]) -> None:
    net = net_of()
    result = make()(net.model())
    assert [layer["name"] for layer in result.report["layers"]] == ["stem.weight", "before.weight", "free.weight"]
    assert [layer["name"] for layer in result.report["left_out"]] == LEFT_OUT
    (warning,) = result.report["warnings"]
    assert all(repr(name) in warning for name in LEFT_OUT)
    assert "'strange' (custom.example::Mystery)" in warning
    stored = {t.name: t for t in net.model().graph.initializer}
    made = {t.name: t for t in result.model.to_proto().graph.initializer}
    assert all(made[name] == stored[name] for name in LEFT_OUT)


def test_the_entry_of_a_layer() -> None:
    assert sift_onnx.inspect(net_of().model()).to_dict()["left_out"][0] == {
        "name": "mid.weight",
        "node": "mid",
        "op": "MatMul",
        "shape": [8, 12],
        "params": 96,
        "reason": "sizes are not known behind node 'strange' (custom.example::Mystery)",
        "stopped_at": {"node": "strange", "op": "Mystery", "domain": DOMAIN, "outputs": ["strange"]},
    }


def test_inspect_does_not_count_them_but_names_them() -> None:
    document = sift_onnx.inspect(net_of().model()).to_dict()
    assert [layer["name"] for layer in document["layers"]] == ["stem.weight", "before.weight", "free.weight"]
    assert document["totals"]["params"] == 4 * 6 + 6 * 12 + 12 * 8
    assert [layer["name"] for layer in document["left_out"]] == LEFT_OUT
    assert len(document["warnings"]) == 1


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearConcat"])
def test_a_node_on_bytes_of_unknown_shape_is_the_stop_of_those_behind_it(op: str) -> None:
    net = Net()
    scale, zero, half = net.constant(0.5), net.constant(1, dtype=np.uint8), net.constant([0.5] * 8)
    strange = behind(net, net.tokens(8))
    codes = net.op("QuantizeLinear", strange, scale, zero)
    point = scale, zero
    inputs = (codes, *point, codes, *point, *point) if op == "QLinearAdd" else (*point, codes, *point, codes, *point)
    attributes = {"axis": 0} if op == "QLinearConcat" else {}
    made = net.op(op, *inputs, domain=MICROSOFT, name="made", **attributes)
    floats = net.op("Mul", net.op("DequantizeLinear", made, *point), half)
    net.output(net.dense(floats, 8, 2, name="head"), 1, 5, 2)
    assert names(net) == [("head.weight", "head", "strange")]


def test_nothing_is_left_out_once_the_sizes_are_recorded() -> None:
    """The way out that the message names."""
    document = sift_onnx.inspect(net_of(front=True, recorded=True).model()).to_dict()
    assert [layer["name"] for layer in document["layers"]] == LEFT_OUT
    assert (document["left_out"], document["warnings"]) == ([], [])
    report = Wide("0.5", budget="layer")(net_of(front=True, recorded=True).model()).report
    assert [layer["status"] for layer in report["layers"]] == ["dense", "sparse", "dense"]


def test_densify_and_recipes_say_it_too() -> None:
    proto = net_of().model()
    pruned = Prune("0.5")(proto).model
    assert [layer["name"] for layer in Densify()(pruned).report["left_out"]] == LEFT_OUT
    recipe = Recipe.of({"passes": [{"wide": {"sparsity": 0.5}}, {"prune": {"sparsity": 0.8}}]})
    report = run_recipe(Model.load(proto), recipe).report
    assert [layer["name"] for layer in report["left_out"]] == LEFT_OUT
    assert len(report["warnings"]) == 1


def test_a_layer_in_front_of_one_that_is_left_out_is_not_the_last() -> None:
    report = Prune("0.5")(net_of().model()).report
    assert [layer["status"] for layer in report["layers"]] == ["unchanged", "sparse", "sparse"]


def test_a_layer_behind_one_that_is_left_out_is_not_the_first() -> None:
    net = Net()
    h = net.dense(behind(net, net.input("x", 1, 4)), 4, 6, name="hidden")
    h = net.dense(behind(net, h, "known"), 6, 5, name="middle")
    net.value_infos.append(helper.make_tensor_value_info("known", TensorProto.FLOAT, [1, 6]))
    net.output(net.dense(h, 5, 2, name="head"), 1, 2)
    report = Prune("0.5")(net.model()).report
    assert {layer["name"]: layer["status"] for layer in report["layers"]} == {
        "middle.weight": "sparse", "head.weight": "unchanged"
    }  # fmt: skip


def test_a_glob_that_matches_only_what_is_left_out_says_why() -> None:
    with pytest.raises(UsageError, match=rf"^`only` 'mid\*' matches only what is left out: 'mid\.weight'.*{STOP}"):
        Prune("0.5", only=["mid*"])(net_of().model())
    with pytest.raises(SiftError, match="'nobody' matches no weight"):
        Prune("0.5", only=["nobody"])(net_of().model())


def test_what_is_left_out_may_be_kept_dense() -> None:
    report = Prune("0.5", keep_dense=["mid*"])(net_of().model()).report
    assert [layer["status"] for layer in report["layers"]] == ["unchanged", "sparse", "sparse"]


def test_two_operators_are_told_apart() -> None:
    net = Net()
    x = net.input("x", 1, 4)
    a = net.dense(behind(net, x, "one"), 4, 6, name="a")
    b = net.dense(behind(net, net.op("Relu", a), "two"), 6, 6, name="b")
    net.output(net.dense(b, 6, 6, name="c"), 1, 6)
    # "one" has swallowed what there was to know, so nothing can be said of "two".
    assert names(net) == [("a.weight", "a", "one"), ("b.weight", "b", "one"), ("c.weight", "c", "one")]
    net.value_infos.append(helper.make_tensor_value_info("one", TensorProto.FLOAT, [1, 4]))
    assert names(net) == [("b.weight", "b", "two"), ("c.weight", "c", "two")]


def compressed(net: Net) -> None:
    flags = net.input("flags", values=np.asarray([True, False, True]))
    rows = net.op("Compress", net.input("x", 3, 8), flags, axis=0, name="pick")
    net.output(net.dense(net.dense(rows, 8, 6, name="a"), 6, 2, name="b"), 3, 2)


def test_sizes_that_depend_on_data_have_another_way_out() -> None:
    net = Net()
    compressed(net)
    with pytest.raises(UnsupportedError, match=r"'pick' \(ai\.onnx::Compress\).*simplify.*extract_model"):
        Wide("0.5")(net.model())


def stored(net: Net, *shape: int) -> str:
    return net.weight(*shape, name="w")


KINDS: dict[str, Callable[[Net, str], Any]] = {
    "Conv": lambda net, h: net.op("Conv", h, stored(net, 6, 4, 1, 1), name="layer"),
    "ConvTranspose": lambda net, h: net.op("ConvTranspose", h, stored(net, 4, 6, 1, 1), name="layer"),
    "FusedConv": lambda net, h: net.op("FusedConv", h, stored(net, 6, 4, 1, 1), name="layer", domain=MICROSOFT),
    "Gemm": lambda net, h: net.op("Gemm", h, stored(net, 4, 6), name="layer"),
    "FusedGemm": lambda net, h: net.op("FusedGemm", h, stored(net, 4, 6), name="layer", domain=MICROSOFT),
    "on the left": lambda net, h: net.op("MatMul", stored(net, 6, 4), h, name="layer"),
    "transposed": lambda net, h: net.op("MatMul", h, net.op("Transpose", stored(net, 6, 4)), name="layer"),
    "FusedMatMul": lambda net, h: net.op("FusedMatMul", h, stored(net, 4, 6), name="layer", domain=MICROSOFT),
    "Attention": lambda net, h: net.op(
        "Attention", h, stored(net, 4, 12), name="layer", domain=MICROSOFT, num_heads=2
    ),
    "Einsum": lambda net, h: net.op("Einsum", h, stored(net, 4, 6), name="layer", equation="bi,io->bo"),
    "Gather": lambda net, h: net.op("Gather", stored(net, 9, 6), net.op("Cast", h, to=7), name="layer"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_layer_is_found(kind: str) -> None:
    net = Net()
    net.output(KINDS[kind](net, behind(net, net.input("x", 1, 4))), 1, 6)
    ((_, node, stop),) = names(net)
    assert (node, stop) == ("layer", "strange")


def test_both_weights_of_a_recurrent_layer_are_found() -> None:
    net = Net()
    w, r = net.weight(1, 20, 4, name="w"), net.weight(1, 20, 5, name="r")
    net.output(net.op("LSTM", behind(net, net.input("x", 3, 1, 4)), w, r, name="lstm", hidden_size=5), 3, 1, 1, 5)
    assert names(net) == [("w", "lstm", "strange"), ("r", "lstm", "strange")]


def test_what_is_no_layer_is_not_left_out() -> None:
    """A bias, a scale, and products of activations, of constants, and with a vector."""
    net = Net()
    h = behind(net, net.input("x", 4, 4))
    h = net.op("Mul", net.op("Add", h, net.weight(4, 4)), net.weight(4, 4))
    h = net.op("MatMul", net.op("MatMul", h, h), net.weight(4, name="vector", fan_in=4))
    constant = net.op("MatMul", net.weight(4, 4), net.weight(4, 4))
    net.output(net.op("Add", h, constant), 4, 4)
    assert names(net) == []


def test_a_model_without_layers_has_none_left_out() -> None:
    net = Net()
    net.output(net.op("Relu", net.input("x", 1, 3)))
    with pytest.raises(
        UnsupportedError, match=r"the model has no weight layer \(Conv, Gemm, MatMul with a constant\)$"
    ):
        Wide("0.5")(net.model())


def test_a_foreign_operator_of_a_known_name_carries_no_weight() -> None:
    net = Net()
    w = net.op("Transpose", net.weight(4, 6), name="foreign", domain=DOMAIN, perm=[7, 8, 9])
    net.output(net.op("MatMul", behind(net, net.input("x", 1, 4)), w, name="layer"), 1, 6)
    assert names(net) == []


def test_layers_within_the_graphs_of_a_choice_are_left_out_once_each() -> None:
    def model(name: str) -> onnx.ModelProto:
        net = Net()
        h = net.dense(net.input("x", 1, 8), 8, 8, name="shared")
        net.output(net.op("MatMul", h, net.weight(8, 8, name=name), name="y"), 1, 8)
        return net.model()

    merged = merged_nets.merged(model("taken"), model("other"))
    found = left_out_layers(analyze(Model.load(merged)))
    assert sorted(layer.constant.name for layer in found) == ["other", "shared.weight", "taken"]
    assert {layer.reason for layer in found} == {"it is within node 'choice' (ai.onnx::If)"}
    entries = sift_onnx.inspect(merged).to_dict()["left_out"]
    assert [entry["stopped_at"]["node"] for entry in entries] == ["choice"] * 3
    for change in (Wide("0.5"), Prune("0.5")):
        with pytest.raises(UnsupportedError, match=r"within node 'choice' .* no_post_process"):
            change(merged)
