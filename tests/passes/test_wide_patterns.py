"""Wide under patterns and other distributions: exact budgets, masks that hardware takes, and what is refused."""

from __future__ import annotations

import itertools
import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from nets import Net

import sift_onnx
from sift_onnx.errors import BudgetError, PreconditionError, UsageError
from sift_onnx.model import Model
from sift_onnx.passes import Wide
from sift_onnx.passes.base import HISTORY_KEY
from sift_onnx.passes.masking import Growth, Masking, require_room
from sift_onnx.sparsity.budget import BudgetLayer


@pytest.fixture
def proto() -> Any:
    """Convolutions 3-8-16-16-16-8-4, the first and last of which stay dense."""
    net = Net()
    h, widths = net.input("x", 1, 3, 8, 8), [3, 8, 16, 16, 16, 8]
    for i, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        h = net.op("Relu", net.conv(h, inputs, outputs, 3, name=f"conv{i}"))
    net.output(net.conv(h, 8, 4, name="head"))
    return net.model()


def mask_groups(mask: Any, axis: int, m: int) -> Any:
    """Non-zeros in each group of ``m`` along ``axis``."""
    return np.add.reduceat(np.moveaxis(mask, axis, -1).astype(int), range(0, mask.shape[axis], m), axis=-1)


def sparse_layers(report: Any) -> dict[str, Any]:
    return {layer["name"]: layer for layer in report["layers"] if layer["status"] == "sparse"}


@pytest.mark.parametrize("pattern", ["2:4", "1:4", "2:4-transposable", "1:4-transposable"])
@pytest.mark.parametrize("budget", ["model", "layer"])
def test_groups_hold_at_most_n_and_the_budget_is_met_exactly(proto: Any, pattern: str, budget: Any) -> None:
    sparsity = "0.5" if pattern.startswith("2") else "0.75"
    result = Wide(sparsity, pattern=pattern, budget=budget)(proto)
    masks, layers = sift_onnx.masks(result.model), sparse_layers(result.report)
    assert masks.keys() == layers.keys()
    assert len(masks) == 4
    for name, mask in masks.items():
        assert mask.sum() == layers[name]["nnz"]
        assert mask_groups(mask, 1, 4).max() <= int(pattern[0])
        if "transposable" in pattern:
            assert mask_groups(mask, 0, 4).max() <= int(pattern[0])
        assert all(width % 4 == 0 for width in mask.shape[:2])
    totals = result.report["totals"]
    if budget == "model":
        assert totals["weight_macs_before"] - 64 < totals["weight_macs_after"] <= totals["weight_macs_before"]
    else:
        assert all(layer["macs_after"] == layer["macs_before"] for layer in layers.values())
    assert result.report["pattern"] == pattern


def test_a_factor_of_two_fills_every_group() -> None:
    """s = 0.75 doubles widths exactly, so that as many weights as before are one of four."""
    net = Net()
    net.tokens_end(net.dense(net.tokens(8), 8, 12, name="mid"), 12)
    mask = sift_onnx.masks(Wide("0.75", pattern="1:4", budget="layer")(net.model()).model)["mid.weight"]
    assert mask.shape == (16, 24)
    assert np.all(mask_groups(mask, 0, 4) == 1)


def test_widths_of_groups_are_rounded_up(proto: Any) -> None:
    shapes = {n: layer["shape_after"] for n, layer in sparse_layers(Wide("0.5", pattern="2:4")(proto).report).items()}
    assert shapes["conv2.weight"][:2] == [24, 24]  # 16 * 1.414 = 22.6
    assert shapes["conv1.weight"][:2] == [24, 12]  # 8 * 1.414 = 11.3


def test_blocks_stay_whole_and_within_one_block_of_the_budget() -> None:
    net = Net()
    h, widths = net.tokens(64), [64, 96, 64, 64]
    for i, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        h = net.op("Relu", net.dense(h, inputs, outputs, name=f"mid{i}"))
    net.tokens_end(h, 64)
    result = Wide("0.75", pattern="block:4x2", keep_dense=["before.weight", "after.weight"])(net.model())
    masks = sift_onnx.masks(result.model)
    assert set(masks) == {"mid0.weight", "mid1.weight", "mid2.weight"}
    for mask in masks.values():
        k, n = mask.shape  # [in features, out features]
        assert set(np.unique(mask.reshape(k // 2, 2, n // 4, 4).sum(axis=(1, 3)))) <= {0, 8}
    totals = result.report["totals"]
    assert 0 <= totals["weight_macs_before"] - totals["weight_macs_after"] < 8 * 5
    assert result.report["warnings"] == []


def half_open(width: int) -> Net:
    """Products of which ``half`` grows on one side only: its input is a graph output."""
    net = Net()
    h = net.tokens(width)
    net.output(h)
    net.tokens_end(net.dense(net.dense(h, width, 12, name="half"), 12, 12, name="mid"), 12)
    return net


def test_a_layer_that_blocks_do_not_divide_stays_dense_and_says_so() -> None:
    report = Wide("0.75", pattern="block:4x4", budget="layer")(half_open(10).model()).report
    layers = {layer["name"]: layer for layer in report["layers"]}
    assert layers["half.weight"]["status"] == "dense"
    assert layers["half.weight"]["reason"] == "4x4 blocks do not divide its 24x10 features"
    assert layers["mid.weight"]["status"] == "sparse"


def test_blocks_too_coarse_for_the_budget_are_warned_about() -> None:
    net = Net()
    net.tokens_end(net.dense(net.dense(net.tokens(20), 20, 20, name="mid"), 20, 20, name="next"), 20)
    report = Wide("0.75", pattern="block:8x8", keep_dense=["before*", "after*"])(net.model()).report
    unused = 1 - report["totals"]["weight_macs_ratio"]
    assert unused > 0.001
    assert report["warnings"] == [f"whole blocks (block:8x8) leave {unused:.2%} of the weight MACs unused"]


# Distributions.


def test_erdos_renyi_densities_meet_the_budget_exactly(proto: Any) -> None:
    result = Wide("0.9", distribution="erk")(proto)
    layers = sparse_layers(result.report)
    scales = [layer["nnz"] / sum(layer["shape_after"]) for layer in layers.values()]
    assert max(scales) - min(scales) < 0.1
    totals = result.report["totals"]
    assert totals["weight_macs_before"] - 64 < totals["weight_macs_after"] <= totals["weight_macs_before"]
    assert result.report["distribution"] == "erk"


def test_a_saturated_layer_stays_dense() -> None:
    net = Net()
    h = net.dense(net.tokens(6), 6, 6, name="small")
    for i, (inputs, outputs) in enumerate(((6, 90), (90, 90), (90, 90))):
        h = net.op("Relu", net.dense(h, inputs, outputs, name=f"mid{i}"))
    net.tokens_end(h, 90)
    result = Wide("0.5", distribution="erk")(net.model())
    layers = {layer["name"]: layer for layer in result.report["layers"]}
    assert layers["small.weight"]["status"] == "dense"
    assert layers["small.weight"]["reason"] == "saturated: `distribution='erk'` leaves it no zero"
    assert layers["small.weight"]["sparsity"] == 0
    assert set(sift_onnx.masks(result.model)) == set(sparse_layers(result.report))
    assert result.report["totals"]["weight_macs_ratio"] == pytest.approx(1, abs=1e-3)


def test_patterns_and_distributions_go_together(proto: Any) -> None:
    result = Wide("0.8", pattern="2:4", distribution="erk")(proto)
    assert all(mask_groups(mask, 1, 4).max() <= 2 for mask in sift_onnx.masks(result.model).values())
    totals = result.report["totals"]
    assert totals["weight_macs_before"] - 64 < totals["weight_macs_after"] <= totals["weight_macs_before"]


# What is refused.


@pytest.mark.parametrize(("pattern", "least"), [("2:4", "0.5"), ("1:3", "0.6667"), ("1:8-transposable", "0.875")])
def test_a_sparsity_below_that_of_the_pattern_is_refused_with_the_least_one(pattern: str, least: str) -> None:
    with pytest.raises(
        UsageError, match=rf"`pattern='{pattern}'` leaves at most .* use a sparsity of {least} or above"
    ):
        Wide("0.4", pattern=pattern)
    Wide(least, pattern=pattern)
    Wide(0, pattern=pattern)


def test_a_layer_that_grows_on_one_side_only_needs_more_and_is_told_how_much() -> None:
    options: dict[str, Any] = {"pattern": "2:4", "budget": "layer"}
    model = half_open(8).model()
    with pytest.raises(BudgetError, match=r"in 'half.weight' than `pattern='2:4'` leaves; use a sparsity of 0.75 or"):
        Wide("0.5", **options)(model)
    mask = sift_onnx.masks(Wide("0.75", **options)(model).model)["half.weight"]
    assert mask.sum() == 8 * 12


def test_layers_that_have_no_room_together_are_told_how_much_they_need() -> None:
    layers = [BudgetLayer("a", 100, 1, 160, 80, dims=26), BudgetLayer("b", 100, 1, 200, 100, dims=30)]
    growth = {"a": Growth(100, 2), "b": Growth(100, 2)}
    masking = Masking.of("2:4", "erk")
    require_room(layers, 180, masking, Fraction(1, 2), growth)
    with pytest.raises(BudgetError, match=r"in the sparse layers together than `pattern='2:4'` leaves; .* of 0\.5 or"):
        require_room(layers, 200, masking, Fraction(4, 10), growth)
    with pytest.raises(BudgetError, match=r"use a sparsity of 0\.6 or above"):
        require_room(layers, 250, masking, Fraction(1, 2), growth)


def test_erk_with_a_budget_for_each_layer_is_a_contradiction() -> None:
    with pytest.raises(UsageError, match=r"`budget='layer'` .* `distribution='erk'`"):
        Wide("0.9", distribution="erk", budget="layer")


@pytest.mark.parametrize("option", [{"pattern": "4:2"}, {"pattern": "odd"}, {"distribution": "er"}])
def test_what_is_unknown_is_refused(option: Any) -> None:
    with pytest.raises(UsageError):
        Wide("0.9", **option)


# What is noted.


def test_defaults_are_not_noted_so_that_older_models_are_recognised(proto: Any) -> None:
    model = Wide("0.75")(proto).model
    (entry,) = json.loads(model.metadata[HISTORY_KEY])
    assert not {"pattern", "distribution"} & entry.keys()
    assert not Wide("0.75", pattern="unstructured", distribution="uniform")(model).changed


def test_pattern_and_distribution_are_part_of_the_settings(proto: Any) -> None:
    model = Wide("0.75", pattern="1:4", distribution="erk")(proto).model
    (entry,) = json.loads(model.metadata[HISTORY_KEY])
    assert (entry["pattern"], entry["distribution"]) == ("1:4", "erk")
    assert not Wide("0.75", pattern="1:4", distribution="erk")(Model.load(model.to_proto())).changed
    with pytest.raises(PreconditionError, match="pattern"):
        Wide("0.75")(model)
