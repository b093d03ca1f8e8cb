"""What Prune promises: exact counts, the largest weights, nested masks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nets import Net
from onnx import numpy_helper

import sift_onnx
from sift_onnx.errors import BudgetError, UnsupportedError, UsageError
from sift_onnx.model import Model
from sift_onnx.passes import Factorized, Prune, Wide
from sift_onnx.passes.base import HISTORY_KEY, Pass

settings.register_profile("machine may be busy", deadline=None)
settings.load_profile("machine may be busy")


def convolutions() -> onnx.ModelProto:
    """``conv0`` to ``conv3`` between a stem and a head; ``conv2`` is depthwise."""
    net = Net()
    h = net.images(8)
    for i, (inputs, outputs, group) in enumerate(((8, 16, 1), (16, 16, 1), (16, 16, 16), (16, 8, 1))):
        h = net.op("Relu", net.conv(h, inputs, outputs, 3, name=f"conv{i}", group=group))
    net.images_end(h, 8)
    return net.model()


MODEL = convolutions()
SPARSE = ["before.weight", "conv0.weight", "conv1.weight", "conv2.weight", "conv3.weight", "after.weight"]


def weights(model: onnx.ModelProto) -> dict[str, Any]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def by_name(report: Any) -> dict[str, Any]:
    return {layer["name"]: layer for layer in report["layers"]}


# Counts.


@settings(max_examples=40)
@given(
    st.sampled_from(["0.5", "0.613", "0.75", "0.9"]),
    st.sampled_from(["magnitude", "random"]),
    st.sampled_from(["unstructured", "1:4", "2:4", "1:2-transposable", "block:2x2"]),
    st.sampled_from(["uniform", "erk"]),
)
def test_counts_are_exact_and_values_stay(sparsity: str, method: Any, pattern: str, distribution: Any) -> None:
    if pattern == "1:4" and float(sparsity) < 0.75:
        with pytest.raises(UsageError, match=r"use a sparsity of 0\.75 or above"):
            Prune(sparsity, pattern=pattern)
        return
    options: dict[str, Any] = {"method": method, "pattern": pattern, "distribution": distribution}
    # A depthwise convolution has one input channel: no block, and no transposable group of that sparsity.
    only = [name for name in SPARSE if name != "conv2.weight"]
    result = Prune(sparsity, only=only, **options)(MODEL)
    masks, before, after = sift_onnx.masks(result.model), weights(MODEL), weights(result.model.to_proto())
    layers = by_name(result.report)
    assert set(masks) == {name for name, layer in layers.items() if layer["status"] == "sparse"}
    for name, mask in masks.items():
        assert mask.sum() == layers[name]["nnz"]
        assert np.array_equal(after[name], np.where(mask, before[name], 0))
    for name in before.keys() - masks.keys():
        assert np.array_equal(after[name], before[name])
    chosen = [layers[name] for name in only]
    unit = 4 if pattern.startswith("block") else 1
    kept = 1 - float(sparsity)
    spent = sum(layer["macs_after"] for layer in chosen)
    assert kept * sum(layer["macs_before"] for layer in chosen) - 64 * unit < spent
    assert spent <= kept * sum(layer["macs_before"] for layer in chosen) + 1e-6
    if distribution == "uniform":
        for layer in chosen:
            assert abs(layer["nnz"] - kept * np.prod(layer["shape_after"])) < unit
    again = Prune(sparsity, only=only, **options)(result.model)
    assert not again.changed
    assert again.model is result.model


def test_the_largest_weights_of_each_layer_stay() -> None:
    masks = sift_onnx.masks(Prune("0.75")(MODEL).model)
    assert set(masks) == set(SPARSE)
    for name, mask in masks.items():
        magnitudes = np.abs(weights(MODEL)[name])
        assert magnitudes[mask].min() > magnitudes[~mask].max()


def test_groups_keep_their_largest_weights() -> None:
    mask = sift_onnx.masks(Prune("0.5", pattern="2:4", only=["conv1.weight"])(MODEL).model)["conv1.weight"]
    groups = np.moveaxis(np.abs(weights(MODEL)["conv1.weight"]), 1, -1).reshape(-1, 4)
    kept = np.moveaxis(mask, 1, -1).reshape(-1, 4)
    assert np.all(kept.sum(axis=1) == 2)
    assert np.all(np.where(kept, groups, np.inf).min(axis=1) > np.where(kept, -np.inf, groups).max(axis=1))


def test_random_masks_depend_on_the_seed_and_the_name_only() -> None:
    first, same, other = (sift_onnx.masks(Prune("0.5", method="random", seed=s)(MODEL).model) for s in (1, 1, 2))
    for name in SPARSE:
        assert np.array_equal(first[name], same[name])
        assert not np.array_equal(first[name], other[name])
    alone = sift_onnx.masks(Prune("0.5", method="random", seed=1, only=["conv1.weight"])(MODEL).model)
    assert np.array_equal(alone["conv1.weight"], first["conv1.weight"])


def test_erdos_renyi_keeps_more_of_small_layers() -> None:
    layers = by_name(Prune("0.8", distribution="erk")(MODEL).report)
    assert layers["conv2.weight"]["reason"] == "it is as sparse already"  # saturated: it has 144 weights
    assert layers["conv1.weight"]["sparsity"] > layers["conv0.weight"]["sparsity"]


# Nesting.


@pytest.mark.parametrize("method", ["magnitude", "random"])
@pytest.mark.parametrize("pattern", ["unstructured", "2:4", "2:4-transposable", "block:2x2"])
def test_a_sparser_mask_lies_within_the_old_one(method: Any, pattern: str) -> None:
    options: dict[str, Any] = {"method": method, "pattern": pattern, "only": ["conv0.weight", "conv1.weight"]}
    model, masks = Model.load(MODEL), None
    for sparsity in ("0.5", "0.7", "0.9"):
        result = Prune(sparsity, **options)(model)
        assert result.changed
        finer = sift_onnx.masks(result.model)
        assert masks is None or all(not np.any(finer[name] & ~masks[name]) for name in masks)
        assert masks is None or all(finer[name].sum() < masks[name].sum() for name in masks)
        model, masks = result.model, finer
    assert [entry["sparsity"] for entry in json.loads(model.metadata[HISTORY_KEY])] == ["0.5", "0.7", "0.9"]


def test_active_weights_that_are_zero_stay_active_before_pruned_ones_return() -> None:
    """Eight weights of which six are active, three of them zero; half of eight are to stay."""
    net = Net()
    net.tokens_end(net.dense(net.tokens(2), 2, 4, name="mid"), 4)
    model = Prune("0.25", only=["mid.weight"])(net.model()).model
    constant = model.masked()["mid.weight"]
    mask = constant.weight.mask()
    zeroed = np.where(np.arange(8).reshape(2, 4) < 4, 0, constant.values)
    constant.values = sift_onnx.weights.sparse.SparseWeight(
        (2, 4), constant.weight.indices, zeroed.reshape(-1)[constant.weight.indices]
    )
    finer = sift_onnx.masks(Prune("0.5", only=["mid.weight"])(model).model)["mid.weight"]
    assert finer.sum() == 4
    assert not np.any(finer & ~mask)


def test_a_model_that_is_sparser_already_stays_as_it_is() -> None:
    model = Prune("0.9")(MODEL).model
    result = Prune("0.5")(model)
    assert not result.changed
    assert result.model is model
    assert {by_name(result.report)[name]["reason"] for name in SPARSE} == {"it is as sparse already"}


def test_an_old_mask_that_leaves_too_little_room_for_a_pattern_says_so() -> None:
    random = Prune("0.5", method="random", only=["conv1.weight"])(MODEL).model
    layer = by_name(Prune("0.5", pattern="2:4", only=["conv1.weight"])(random).report)["conv1.weight"]
    assert layer["status"] == "sparse"
    assert layer["reason"] == "its old mask leaves room for no more"
    assert layer["sparsity"] > 0.5


def test_a_widened_model_can_be_pruned_further(tmp_path: Path) -> None:
    wide = Wide("0.5", budget="layer")(MODEL).model
    wide.save(tmp_path / "wide.onnx")
    result = Prune("0.9")(tmp_path / "wide.onnx")
    old, new = sift_onnx.masks(wide), sift_onnx.masks(result.model)
    assert all(not np.any(new[name] & ~old[name]) for name in new)
    assert [entry["pass"] for entry in json.loads(result.model.metadata[HISTORY_KEY])] == ["wide", "prune"]


# What stays, and what is refused.


def test_first_and_last_layers_and_what_the_globs_say_stay_dense() -> None:
    layers = by_name(Prune("0.5", keep_dense=["conv1*"])(MODEL).report)
    reasons = {name: layer["reason"] for name, layer in layers.items() if layer["status"] == "unchanged"}
    assert reasons == {
        "stem.weight": "first layer", "head.weight": "last layer", "conv1.weight": "kept dense by `keep_dense`"
    }  # fmt: skip


def test_a_layer_that_blocks_do_not_divide_stays_dense() -> None:
    layers = by_name(Prune("0.5", pattern="block:2x2")(MODEL).report)
    assert layers["conv2.weight"]["status"] == "unchanged"
    assert layers["conv2.weight"]["reason"] == "2x2 blocks do not divide its 16x1 features"


def test_the_input_is_not_changed_and_shapes_stay() -> None:
    before = MODEL.SerializeToString()
    result = Prune("0.5")(MODEL).model.to_proto()
    assert MODEL.SerializeToString() == before
    onnx.checker.check_model(result, full_check=True)
    assert {n: w.shape for n, w in weights(result).items()} == {n: w.shape for n, w in weights(MODEL).items()}


def test_weights_of_half_precision_keep_their_type() -> None:
    net = Net()
    x = net.input("x", 1, 4, values=np.ones((1, 4), dtype=np.float16))
    rng = np.random.default_rng(0)
    for name in "abc":
        x = net.op("MatMul", x, net.constant(rng.standard_normal((4, 4)), name, dtype=np.float16))
    net.output(x)
    result = Prune("0.5")(net.model()).model
    assert result.masked()["b"].weight.values.dtype == np.float16
    assert sift_onnx.masks(result)["b"].sum() == 8


def test_nothing_is_done_at_a_sparsity_of_zero() -> None:
    result = Prune(0)(MODEL)
    assert not result.changed
    assert by_name(result.report)["conv0.weight"]["reason"] == "a sparsity of 0 changes nothing"


def test_a_sparsity_that_leaves_nothing_of_a_layer_is_refused() -> None:
    with pytest.raises(BudgetError, match=r"leaves no non-zero weight for 'conv0.weight'; use a lower one"):
        Prune("0.9999")(MODEL)


def test_layers_of_a_few_weights_stay_dense_where_they_would_lose_all() -> None:
    """A network that makes a table of positions has layers of two weights."""
    net = Net()
    x = net.op("Relu", net.dense(net.input("x", 1, 8), 8, 2, name="first"))
    for name, fan_in, fan_out in (("tiny", 2, 2), ("small", 2, 16), ("large", 16, 16)):
        x = net.op("Relu", net.dense(x, fan_in, fan_out, name=name))
    net.output(net.dense(x, 16, 3, name="last"))
    result = Prune("0.8")(net.model())
    reasons = {name: layer["reason"] for name, layer in by_name(result.report).items()}
    assert reasons["tiny.weight"] == "too small: a sparsity of 0.8 leaves none of its 4 weights"
    assert {name: int(mask.sum()) for name, mask in sift_onnx.masks(result.model).items()} == {
        "small.weight": 6,
        "large.weight": 51,
    }
    assert not Prune("0.8")(result.model).changed
    with pytest.raises(UnsupportedError, match=r"nothing to prune: .*'tiny.weight': too small"):
        Prune("0.8", keep_dense=("small*", "large*"))(net.model())


def test_a_model_of_first_and_last_layers_has_nothing_to_prune() -> None:
    net = Net()
    net.output(net.dense(net.dense(net.input("x", 1, 4), 4, 4, name="a"), 4, 4, name="b"))
    with pytest.raises(UnsupportedError, match=r"nothing to prune: 'a.weight': first layer; 'b.weight': last layer"):
        Prune("0.5")(net.model())


@pytest.mark.parametrize("transform", [Prune(0.5), Wide(0.75), Factorized(0.75)])
def test_where_nothing_is_left_to_do_layers_without_known_sizes_are_named(transform: Pass) -> None:
    net = Net()
    x = net.conv(net.input("x", 1, 3, 8, 8), 3, 8, 3, name="first")
    strange = net.op("Relu", x, name="strange")
    net.output(net.conv(net.op("Relu", net.conv(strange, 8, 8, 3, name="second")), 8, 8, 3, name="third"))
    model = net.model()
    for node in model.graph.node:
        if node.name == "strange":
            node.op_type, node.domain = "Mystery", "nobody"
    model.opset_import.add(domain="nobody", version=1)
    with pytest.raises(UnsupportedError, match=r"first layer.*left out besides: 'second.*'strange'"):
        transform(model)


@pytest.mark.parametrize(
    "settings_", [{"sparsity": 1}, {"sparsity": "x"}, {"method": "best"}, {"pattern": "4:4"}, {"distribution": "er"}]
)
def test_settings_out_of_range_are_refused(settings_: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Prune(**{"sparsity": "0.5", **settings_})
