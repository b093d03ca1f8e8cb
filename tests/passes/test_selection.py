"""Which layers stay dense, and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nets import Net

from sift_onnx.analysis.findings import AxisAnalysis
from sift_onnx.analysis.graph_analysis import analyze
from sift_onnx.errors import UsageError
from sift_onnx.model import Model
from sift_onnx.passes.selection import Selection


def network(embedding: bool = False, tied: bool = False) -> AxisAnalysis:
    """``stem``, ``block.0.a``, ``block.0.B``, ``block.1.a``, ``head``; perhaps behind a table, perhaps the head."""
    net = Net()
    if embedding:
        ids = net.input("ids", values=np.asarray([[1, 4, 2]]))
        h = net.op("Gather", net.weight(7, 6, name="table.weight"), ids, name="embed")
        h = net.dense(h, 6, 6, name="stem")
    else:
        h = net.dense(net.input("x", 2, 3), 3, 6, name="stem")
    for name in ("block.0.a", "block.0.B", "block.1.a"):
        h = net.op("Relu", net.dense(h, 6, 6, name=name))
    if tied:
        net.output(net.op("MatMul", h, net.op("Transpose", "table.weight", perm=[1, 0]), name="head"))
    else:
        net.output(net.dense(h, 6, 2, name="head"))
    return analyze(Model.load(net.model()))


def dense(analysis: AxisAnalysis | None = None, **globs: tuple[str, ...]) -> dict[str, str]:
    return Selection(**globs).dense_layers(analysis or network())


ENDS = {"stem.weight": "first layer", "head.weight": "last layer"}


def test_first_and_last_layers_stay_dense() -> None:
    assert dense() == ENDS


def test_an_embedding_stays_dense_as_what_it_is() -> None:
    found = dense(network(embedding=True))
    assert found == {"table.weight": "embedding", "head.weight": "last layer"}


def test_an_embedding_that_is_also_the_head_says_why_it_costs_something() -> None:
    assert dense(network(embedding=True, tied=True)) == {"table.weight": "tied embedding"}


def test_an_embedding_that_is_not_the_first_layer_stays_dense_too() -> None:
    """Codes are looked up by what a layer before found."""
    net = Net()
    h = net.dense(net.input("x", 2, 3), 3, 6, name="stem")
    codes = net.op("ArgMax", net.dense(h, 6, 6, name="scores"), axis=1, keepdims=0)
    h = net.op("Gather", net.weight(6, 5, name="codebook"), codes)
    net.output(net.dense(net.dense(h, 5, 6, name="after"), 6, 2, name="head"))
    found = dense(analyze(Model.load(net.model())))
    assert found == {**ENDS, "codebook": "embedding"}


def test_layers_that_are_not_asked_for_stay_dense() -> None:
    assert dense(only=("block.0.*",)) == {**ENDS, "block.1.a.weight": "not selected by `only`"}


def test_several_globs_select_what_any_of_them_matches() -> None:
    assert dense(only=("*.a.weight", "block.0.B.*")) == ENDS
    assert set(dense(keep_dense=("*.a.weight", "*B*"))) == {
        *ENDS,
        "block.0.a.weight",
        "block.0.B.weight",
        "block.1.a.weight",
    }


def test_what_is_kept_dense_says_so() -> None:
    assert dense(keep_dense=("*.a.weight",)) == {
        **ENDS,
        "block.0.a.weight": "kept dense by `keep_dense`",
        "block.1.a.weight": "kept dense by `keep_dense`",
    }


def test_keeping_dense_wins_over_selecting() -> None:
    found = dense(only=("block.*",), keep_dense=("block.1.a.weight",))
    assert found == {**ENDS, "block.1.a.weight": "kept dense by `keep_dense`"}


@pytest.mark.parametrize("option", ["only", "keep_dense"])
def test_the_position_is_the_reason_for_a_layer_that_is_named_as_well(option: str) -> None:
    globs: dict[str, Any] = {option: ("*",)}
    found = dense(**globs)
    assert found["stem.weight"] == "first layer"
    assert found["head.weight"] == "last layer"


def test_globs_are_matched_by_case_and_as_a_whole() -> None:
    assert "block.0.B.weight" not in dense(keep_dense=("*.a.weight",))
    for glob in ("BLOCK.*", "block.0.b.weight", "block.0"):
        with pytest.raises(UsageError, match="matches no weight"):
            dense(keep_dense=(glob,))


@pytest.mark.parametrize("option", ["only", "keep_dense"])
def test_a_glob_that_matches_nothing_is_refused_with_examples(option: str) -> None:
    globs: dict[str, Any] = {option: ("block.*", "layer*")}
    with pytest.raises(
        UsageError, match=rf"^`{option}` 'layer\*' matches no weight .*'stem\.weight', 'block\.0\.a\.weight'"
    ):
        dense(**globs)
