"""Einsum: one size a label; a stored operand is a weight."""

from __future__ import annotations

from typing import Any

import pytest
from nets import Net, widen


def layer(report: Any, name: str) -> Any:
    return next(entry for entry in report["layers"] if entry["name"] == name)


@pytest.mark.parametrize("equation", ["bti,io->bto", "...i,io->...o", "b...i, io -> b...o", "...i,io"])
def test_a_stored_operand_is_a_weight(net: Net, equation: str) -> None:
    h = net.op("Einsum", net.tokens(8), net.weight(8, 12, name="w"), name="mm", equation=equation)
    net.tokens_end(h, 12)
    wide = widen(net)
    assert wide.shape("w") == (16, 24)
    assert wide.shape("mm") == (1, 5, 24)
    entry = layer(wide.report, "w")
    assert entry["status"] == "sparse"
    assert entry["macs_before"] == 5 * 8 * 12


def test_a_weight_as_the_first_operand(net: Net) -> None:
    h = net.op("Einsum", net.weight(12, 8, name="w", fan_in=8), net.tokens(8), name="mm", equation="oi,bti->bto")
    net.tokens_end(h, 12)
    wide = widen(net)
    assert wide.shape("w") == (24, 16)
    assert layer(wide.report, "w")["macs_before"] == 5 * 8 * 12


def test_an_equation_without_an_arrow_sorts_the_labels_that_occur_once(net: Net) -> None:
    """``bat,ac`` is ``bat,ac->bct``."""
    h = net.op("Transpose", net.tokens(8), perm=[0, 2, 1])
    h = net.op("Einsum", h, net.weight(8, 12, name="w"), name="mm", equation="bat, ac")
    net.tokens_end(net.op("Transpose", h, perm=[0, 2, 1]), 12)
    wide = widen(net)
    assert wide.shape("mm") == (1, 24, 5)
    assert wide.shape("w") == (16, 24)


@pytest.mark.parametrize(("attention", "heads", "size"), [("head-dim", 2, 8), ("heads", 4, 4), ("keep", 2, 4)])
def test_a_projection_into_heads_and_back_grows_one_of_their_axes(
    net: Net, attention: str, heads: int, size: int
) -> None:
    """Keras writes attention this way: the weight has an axis for heads and one for their size."""
    h = net.op("Einsum", net.tokens(8), net.weight(8, 2, 4, name="wq", fan_in=8), name="q", equation="btd,dnh->btnh")
    h = net.op("Einsum", h, net.weight(2, 4, 8, name="wo", fan_in=8), name="o", equation="btnh,nhd->btd")
    net.tokens_end(h, 8)
    wide = widen(net, attention=attention)
    assert wide.shape("wq") == (16, heads, size)
    assert wide.shape("wo") == (heads, size, 16)
    assert layer(wide.report, "wq")["macs_before"] == layer(wide.report, "wo")["macs_before"] == 5 * 8 * 8


def test_attention_by_einsum_is_a_product_of_activations(net: Net) -> None:
    h = net.op("Reshape", net.dense(net.tokens(8), 8, 8, name="q"), net.constant([1, 5, 2, 4]))
    scores = net.op("Einsum", h, h, name="scores", equation="bqhd,bkhd->bhqk")
    mixed = net.op("Einsum", net.op("Softmax", scores), h, name="mixed", equation="bhqk,bkhd->bqhd")
    net.tokens_end(net.op("Reshape", mixed, net.constant([1, 5, 8])), 8)
    wide = widen(net)
    assert wide.shape("mixed") == (1, 5, 2, 8)
    totals = wide.report["totals"]
    assert totals["attention_macs_before"] == 2 * 2 * 5 * 5 * 4
    assert totals["attention_macs_after"] == 2 * 2 * 5 * 5 * 8


def test_a_baked_factor_on_scores_of_an_einsum_follows_the_head(net: Net) -> None:
    h = net.op("Reshape", net.dense(net.tokens(32), 32, 32, name="q"), net.constant([1, 5, 2, 16]))
    scores = net.op("Einsum", h, h, name="scores", equation="bqhd,bkhd->bhqk")
    scores = net.op("Mul", scores, net.constant(0.25), name="scaled")
    mixed = net.op("Einsum", net.op("Softmax", scores), h, name="mixed", equation="bhqk,bkhd->bqhd")
    net.tokens_end(net.op("Reshape", mixed, net.constant([1, 5, 32])), 32)
    wide = widen(net)
    assert wide.shape("mixed") == (1, 5, 2, 32)
    assert wide.read("scaled", 1) == pytest.approx([32**-0.5])
    assert wide.report["warnings"] == []


def test_scores_of_an_einsum_without_a_factor_are_reported(net: Net) -> None:
    h = net.op("Reshape", net.dense(net.tokens(32), 32, 32, name="q"), net.constant([1, 5, 2, 16]))
    scores = net.op("Einsum", h, h, name="scores", equation="bqhd,bkhd->bhqk")
    mixed = net.op("Einsum", net.op("Softmax", scores), h, name="mixed", equation="bhqk,bkhd->bqhd")
    net.tokens_end(net.op("Reshape", mixed, net.constant([1, 5, 32])), 32)
    (warning,) = widen(net).report["warnings"]
    assert "'scores'" in warning


def test_a_weight_that_is_computed_from_stored_ones_is_a_layer(net: Net) -> None:
    h = net.tokens(8)
    weight = net.op("Mul", net.weight(8, 8, name="direction"), net.weight(1, 8, name="magnitude"), name="mm.weight")
    h = net.op("Einsum", h, weight, name="mm", equation="bti,io->bto")
    net.tokens_end(net.dense(net.dense(h, 8, 12, name="up"), 12, 8), 8)
    wide = widen(net)
    assert wide.shape("mm.weight") == (16, 16)
    assert wide.status("mm.weight") == "sparse"
    assert wide.shape("up") == (1, 5, 24)


def test_three_operands_share_their_labels(net: Net) -> None:
    h = net.tokens(8)
    gate = net.dense(h, 8, 8, name="gate")
    h = net.op("Einsum", h, gate, net.weight(8, name="diagonal", fan_in=1), name="mm", equation="btd,btd,d->btd")
    net.tokens_end(h, 8)
    wide = widen(net)
    assert wide.shape("diagonal") == (16,)
    assert wide.shape("gate") == (1, 5, 16)
