"""Gather, Scatter and their kin: what indices point into stays, the rest grows."""

from __future__ import annotations

import numpy as np
import pytest
from nets import Net, Widened, widen

IDS = np.array([[3, 1, 4, 1, 5]], np.int64)


def embedded(net: Net, *, tied: bool = False) -> None:
    """Rows of a table ``[11, 8]``, a hidden layer, and a head, which may be the table again."""
    table = net.weight(11, 8, name="table")
    h = net.op("Gather", table, net.input("ids", values=IDS), name="embedded")
    h = net.dense(net.op("Relu", net.dense(h, 8, 12, name="up")), 12, 8, name="down")
    if tied:
        net.output(net.op("MatMul", h, net.op("Transpose", table, perm=[1, 0]), name="logits"))
    else:
        net.output(net.dense(h, 8, 11, name="logits"))


@pytest.mark.parametrize(("sparsity", "width", "hidden"), [("0.5", 11, 17), ("0.75", 16, 24), ("0.9", 25, 38)])
def test_an_embedding_grows_in_its_features_and_stays_dense(net: Net, sparsity: str, width: int, hidden: int) -> None:
    embedded(net)
    wide = widen(net, sparsity)
    assert wide.shape("table") == (11, width)
    assert wide.shape("up.weight") == (width, hidden)
    assert wide.status("table") == "dense"
    (entry,) = [layer for layer in wide.report["layers"] if layer["name"] == "table"]
    assert entry["kind"] == "embedding"
    assert entry["macs_after"] == 0


def test_a_table_that_is_also_the_head_costs_what_the_head_costs(net: Net) -> None:
    embedded(net, tied=True)
    wide = widen(net)
    (entry,) = [layer for layer in wide.report["layers"] if layer["name"] == "table"]
    assert entry["shape_after"] == [11, 16]
    assert entry["status"] == "dense"
    assert entry["macs_before"] == 5 * 8 * 11
    assert entry["macs_after"] == 5 * 16 * 11


@pytest.mark.parametrize("einsum", [False, True])
def test_queries_and_keys_grow_with_the_relative_positions_that_queries_meet(net: Net, einsum: bool) -> None:
    """Rows of a learned table, looked up at constant distances, are multiplied with the queries of two heads of 8."""
    distances = net.constant(np.arange(5) - np.arange(5)[:, None] + 4)
    h = net.tokens(16)
    q, k = (
        net.op("Transpose", net.op("Reshape", net.dense(h, 16, 16, name=name), split), name=f"{name}.heads", perm=perm)
        for split in [net.constant([1, 5, 2, 8])]
        for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]))
    )
    q = net.op("Mul", q, net.constant(np.float32(8**-0.5)), name="scaled")
    rows = net.op("Gather", net.weight(9, 8, name="table"), distances, name="rows")
    if einsum:
        bias = net.op("Einsum", q, rows, name="bias", equation="bhid,ijd->bhij")
    else:
        by_query = net.op("Reshape", net.op("Transpose", q, perm=[2, 0, 1, 3]), net.constant([5, 2, 8]))
        met = net.op("MatMul", by_query, net.op("Transpose", rows, perm=[0, 2, 1]), name="met")
        bias = net.op("Unsqueeze", net.op("Transpose", met, perm=[1, 0, 2]), net.constant([0]), name="bias")
    scores = net.op("Softmax", net.op("Add", net.op("MatMul", q, k, name="content"), bias))
    v = net.dense(h, 16, 16, name="v")
    v = net.op("Transpose", net.op("Reshape", v, net.constant([1, 5, 2, 8])), perm=[0, 2, 1, 3])
    mixed = net.op("Transpose", net.op("MatMul", scores, v), perm=[0, 2, 1, 3])
    net.tokens_end(net.op("Reshape", mixed, net.constant([1, 5, 16])), 16)
    wide = widen(net)
    assert wide.shape("table") == (9, 16)
    assert wide.shape("q.heads") == (1, 2, 5, 16)
    assert wide.shape("k.heads") == (1, 2, 16, 5)
    (entry,) = [layer for layer in wide.report["layers"] if layer["name"] == "table"]
    assert (entry["kind"], entry["status"], entry["reason"]) == ("embedding", "dense", "embedding")
    # Products of activations: scores, what is added to them, and the weighted sum of the values.
    assert wide.report["totals"]["attention_macs_before"] == 3 * 2 * 5 * 5 * 8
    assert wide.report["totals"]["attention_macs_after"] == 3 * 2 * 5 * 5 * 16
    assert wide.report["warnings"] == []


def test_an_embedding_whose_first_row_is_padding_grows(net: Net) -> None:
    """Zero in the first row, and no value beyond 1, as in a table of sines."""
    table = np.random.default_rng(0).normal(0, 0.02, (11, 8)).astype(np.float32)
    table[0] = 0
    h = net.op("Gather", net.constant(table, "table"), net.input("ids", values=IDS))
    net.tokens_end(net.op("Mul", h, net.op("Sigmoid", h)), 8)
    assert widen(net).shape("table") == (11, 16)


def test_a_rotary_table_that_is_looked_up_is_no_embedding(net: Net) -> None:
    """Its rows multiply nothing that is learned, and its product with a weight stays a computed weight."""
    table = net.constant(np.cos(np.arange(16)[:, None] * 10000.0 ** (-np.arange(8) / 8)).astype(np.float32), "cos")
    rows = net.op("Gather", table, net.constant(np.arange(5)), name="rows")
    h = net.op("MatMul", net.tokens(8), net.op("Transpose", rows, perm=[1, 0]), name="met")
    net.tokens_end(h, 5)
    assert "computed, not stored" in widen(net).reason("before.weight")


def test_features_of_a_gathered_row_grow(net: Net) -> None:
    """The class token: ``x[:, 0]``."""
    h = net.op("Gather", net.tokens(8), net.constant(0), name="first", axis=1)
    net.tokens_end(h, 8)
    assert widen(net).shape("first") == (1, 16)


def test_one_of_three_stacked_projections(net: Net) -> None:
    """``qkv.reshape(B, T, 3, d)[:, :, 1]``."""
    h = net.op("Reshape", net.dense(net.tokens(8), 8, 24, name="qkv"), net.constant([1, 5, 3, 8]))
    net.tokens_end(net.op("Gather", h, net.constant(1), name="k", axis=2), 8)
    wide = widen(net)
    assert wide.shape("qkv") == (1, 5, 48)
    assert wide.shape("k") == (1, 5, 16)


# The name of the operator, its inputs behind the data, its attributes, and the reason that is given.
PINNING = {
    "Gather": ([np.array([2, 0, 1])], {"axis": 2}, "indices point into it"),
    "GatherElements": ([np.zeros((1, 5, 3), np.int64)], {"axis": 2}, "element by element"),
    "GatherND": ([np.array([[0, 1, 2], [0, 3, 4]])], {}, "indices point into it"),
    "ScatterND": ([np.array([[0, 1, 2]]), np.ones(1, np.float32)], {}, "indices point into it"),
    "ScatterElements": ([np.zeros((1, 5, 8), np.int64), np.ones((1, 5, 8), np.float32)], {"axis": 2}, "element by"),
    "ArgMax": ([], {"axis": 2, "keepdims": 0}, "its index is an output"),
    "TopK": ([np.array([3])], {"axis": -1}, "largest elements are picked"),
    "Compress": ([np.array([True, False, True])], {"axis": 2}, "Compress depends on it"),
    "NonZero": ([], {}, "NonZero depends on it"),
    "Unique": ([], {}, "Unique depends on it"),
}


@pytest.mark.parametrize("kind", PINNING)
def test_an_axis_that_indices_point_into_stays(net: Net, kind: str) -> None:
    inputs, attrs, reason = PINNING[kind]
    h = net.tokens(8)
    constants = [net.constant(values) for values in inputs]
    picked = net.op(kind, h, *constants, name="picked", outputs=2 if kind == "TopK" else 1, **attrs)
    picked = net.op("Cast", picked[0] if kind == "TopK" else picked, to=1)
    total = net.op("ReduceSum", net.op("Reshape", picked, net.constant([-1])), name="total", keepdims=1)
    net.output(total, 1)
    net.tokens_end(net.dense(h, 8, 12, name="free"), 12)
    wide = widen(net)
    assert wide.shape("before") == (1, 5, 8)
    assert wide.shape("free") == (1, 5, 24)
    assert reason in wide.reason("before.weight")


def features_grow(net: Net, h: str, name: str) -> Widened:
    net.tokens_end(h, 8)
    wide = widen(net)
    assert wide.shape(name)[-1] == 16
    return wide


def test_gather_nd_of_positions_keeps_the_features_free(net: Net) -> None:
    h = net.op("GatherND", net.tokens(8), net.constant([[0, 1], [0, 4]]), name="rows")
    assert features_grow(net, h, "rows").shape("rows") == (2, 16)


def test_gather_nd_with_batch_axes_keeps_the_features_free(net: Net) -> None:
    h = net.op("GatherND", net.tokens(8), net.constant([[[1], [4], [0]]]), name="rows", batch_dims=1)
    assert features_grow(net, h, "rows").shape("rows") == (1, 3, 16)


def test_scattered_rows_have_the_width_of_what_they_are_written_into(net: Net) -> None:
    h = net.tokens(8)
    rows = net.weight(1, 8, name="rows")
    h = net.op("ScatterND", h, net.constant([[0, 2]]), rows, name="written")
    assert features_grow(net, h, "written").shape("rows") == (1, 16)


def test_the_largest_positions_leave_the_features_free(net: Net) -> None:
    h = net.op("TopK", net.tokens(8), net.constant([3]), name="top", outputs=2, axis=1)[0]
    assert features_grow(net, h, "top").shape("top") == (1, 3, 16)


def test_positions_picked_element_by_element_pin_only_when_they_meet_features(net: Net) -> None:
    """Token pruning: the score of a position is compared, the features are gathered by row."""
    h = net.tokens(8)
    score = net.op("ReduceMean", h, net.constant([-1]), keepdims=0)
    best = net.op("TopK", score, net.constant([2]), name="best", outputs=2, axis=1)[1]
    h = net.op("Gather", h, net.op("Squeeze", best, net.constant([0])), name="kept", axis=1)
    assert features_grow(net, h, "kept").shape("kept") == (1, 2, 16)


def test_a_filled_tensor_is_as_wide_as_what_it_meets(net: Net) -> None:
    zeros = net.op("ConstantOfShape", net.constant([1, 5, 8]), name="zeros")
    h = net.op("Add", net.tokens(8), zeros, name="sum")
    assert features_grow(net, h, "sum").shape("zeros") == (1, 5, 16)


def test_flat_indices_are_named_as_what_they_are(net: Net) -> None:
    """torch's ``as_strided``: the tensor is flattened and gathered at places that were counted out."""
    h = net.tokens(8)
    flat = net.op("Reshape", h, net.constant([-1]))
    places = net.constant(np.arange(0, 32, 4).reshape(8, 1) + np.arange(8))
    net.output(net.op("Gather", flat, places, name="overlapping"))
    net.tokens_end(net.dense(h, 8, 12, name="free"), 12)
    assert "as_strided" in widen(net).reason("before.weight")


def test_one_hot_of_a_computed_index_is_fixed(net: Net) -> None:
    h = net.tokens(8)
    index = net.op("ArgMax", net.dense(h, 8, 6, name="choice"), axis=-1, keepdims=0)
    hot = net.op("OneHot", index, net.constant(6), net.constant([0.0, 1.0]), name="hot")
    net.tokens_end(net.op("Concat", net.dense(h, 8, 8, name="free"), hot, axis=-1, name="cat"), 14)
    wide = widen(net)
    assert wide.shape("choice") == (1, 5, 6)
    assert wide.shape("cat") == (1, 5, 22)
