"""Matrix products: what is contracted, what passes, and what counts as a weight."""

from __future__ import annotations

import numpy as np
import pytest
from nets import Net, widen


@pytest.mark.parametrize(("sparsity", "width"), [("0.5", 11), ("0.75", 16), ("0.9", 25)])
def test_features_of_a_matrix_product_grow(net: Net, sparsity: str, width: int) -> None:
    net.tokens_end(net.dense(net.tokens(8), 8, 12, name="mm"), 12)
    assert widen(net, sparsity).shape("mm.weight")[0] == width


def test_a_weight_on_the_left_side_keeps_its_rows_as_features(net: Net) -> None:
    h = net.op("Transpose", net.tokens(8), perm=[0, 2, 1])
    h = net.op("MatMul", net.weight(12, 8, name="left"), h, name="mm")
    net.tokens_end(net.op("Transpose", h, perm=[0, 2, 1]), 12)
    wide = widen(net)
    assert wide.shape("left") == (24, 16)
    assert wide.shape("mm") == (1, 24, 5)
    (layer,) = [entry for entry in wide.report["layers"] if entry["name"] == "left"]
    assert layer["macs_before"] == 12 * 8 * 5


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_gemm_with_either_side_transposed(net: Net, trans_a: int, trans_b: int) -> None:
    h = net.op("Reshape", net.tokens(8), net.constant([5, 8]))
    h = net.op("Transpose", h, perm=[1, 0]) if trans_a else h
    weight = net.weight(*((12, 8) if trans_b else (8, 12)), name="w", fan_in=8)
    h = net.op("Gemm", h, weight, net.weight(12, name="bias"), name="gemm", transA=trans_a, transB=trans_b)
    net.tokens_end(h, 12)
    wide = widen(net)
    assert wide.shape("w") == ((24, 16) if trans_b else (16, 24))
    assert wide.shape("bias") == (24,)
    (layer,) = [entry for entry in wide.report["layers"] if entry["name"] == "w"]
    assert layer["macs_before"] == 5 * 8 * 12


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (5, 1), (1, 12), (5, 12)])
def test_the_bias_of_a_gemm_is_broadcast(net: Net, shape: tuple[int, ...]) -> None:
    h = net.op("Reshape", net.tokens(8), net.constant([5, 8]))
    bias = net.constant(np.random.default_rng(1).standard_normal(shape), "bias")
    net.tokens_end(net.op("Gemm", h, net.weight(8, 12, name="w"), bias, name="gemm"), 12)
    assert widen(net).shape("bias") == tuple(24 if n == 12 else n for n in shape)


@pytest.mark.parametrize("wrapped", ["Transpose", "Identity", "Cast"])
def test_a_weight_is_found_behind_nodes_that_only_rearrange_it(net: Net, wrapped: str) -> None:
    attrs = {"Transpose": {"perm": [1, 0]}, "Identity": {}, "Cast": {"to": 1}}[wrapped]
    shape = (12, 8) if wrapped == "Transpose" else (8, 12)
    weight = net.constant(
        np.random.default_rng(0).standard_normal(shape) / 3, "w", np.float64 if wrapped == "Cast" else None
    )
    h = net.op("MatMul", net.tokens(8), net.op(wrapped, weight, **attrs), name="mm")
    net.tokens_end(h, 12)
    wide = widen(net)
    (layer,) = [entry for entry in wide.report["layers"] if entry["op"] == "MatMul" and entry["node"] == "mm"]
    assert layer["status"] == "sparse"
    assert layer["shape_after"] == [2 * n for n in shape]
    assert wide.shape("mm") == (1, 5, 24)


def test_a_weight_for_each_head_counts_its_own_rows_only(net: Net) -> None:
    h = net.op("Reshape", net.tokens(12), net.constant([1, 5, 3, 4]))
    h = net.op("Transpose", h, perm=[0, 2, 1, 3])
    h = net.op("MatMul", h, net.weight(3, 4, 6, name="per-head", fan_in=4), name="mm")
    h = net.op("Reshape", net.op("Transpose", h, perm=[0, 2, 1, 3]), net.constant([1, 5, 18]))
    net.tokens_end(h, 18)
    wide = widen(net)
    assert wide.shape("per-head") == (3, 8, 12)
    (layer,) = [entry for entry in wide.report["layers"] if entry["name"] == "per-head"]
    assert layer["macs_before"] == 3 * 5 * 4 * 6
    assert layer["nnz"] == 3 * 4 * 6


def test_a_weight_for_each_head_on_the_left_counts_its_own_columns_only(net: Net) -> None:
    h = net.op("Reshape", net.tokens(12), net.constant([1, 5, 3, 4]))
    h = net.op("Transpose", h, perm=[0, 2, 3, 1])
    h = net.op("MatMul", net.weight(3, 6, 4, name="per-head", fan_in=4), h, name="mm")
    h = net.op("Reshape", net.op("Transpose", h, perm=[0, 3, 1, 2]), net.constant([1, 5, 18]))
    net.tokens_end(h, 18)
    (layer,) = [entry for entry in widen(net).report["layers"] if entry["name"] == "per-head"]
    assert layer["shape_after"] == [3, 12, 8]
    assert layer["macs_before"] == 3 * 5 * 4 * 6


def test_a_stack_of_weights_that_read_the_same_keeps_their_number(net: Net) -> None:
    h = net.op("Unsqueeze", net.tokens(8), net.constant([1]))
    h = net.op("MatMul", h, net.weight(3, 8, 6, name="experts", fan_in=8), name="mm")
    net.tokens_end(net.op("ReduceMean", h, net.constant([1]), keepdims=0), 6)
    wide = widen(net)
    assert wide.shape("experts") == (3, 16, 12)
    assert wide.shape("mm") == (1, 3, 5, 12)


def test_a_weight_that_serves_the_whole_batch_is_applied_at_each_of_its_rows(net: Net) -> None:
    h = net.op("MatMul", net.tokens(8, batch=3), net.weight(1, 8, 12, name="w", fan_in=8), name="mm")
    net.tokens_end(h, 12)
    wide = widen(net)
    (layer,) = [entry for entry in wide.report["layers"] if entry["name"] == "w"]
    assert layer["shape_after"] == [1, 16, 24]
    assert layer["macs_before"] == 3 * 5 * 8 * 12


def test_a_shared_weight_is_one_layer_that_costs_at_each_use(net: Net) -> None:
    h = net.op("Relu", net.dense(net.tokens(8), 8, 8, name="mm"))
    net.tokens_end(net.op("MatMul", h, "mm.weight", name="again"), 8)
    wide = widen(net)
    (layer,) = [entry for entry in wide.report["layers"] if entry["name"] == "mm.weight"]
    assert layer["shape_after"] == [16, 16]
    assert layer["macs_before"] == layer["macs_after"] == 2 * 5 * 64


def test_a_product_of_activations_is_counted_apart(net: Net) -> None:
    h = net.tokens(8)
    scores = net.op("MatMul", h, net.op("Transpose", h, perm=[0, 2, 1]), name="scores")
    net.tokens_end(net.op("MatMul", net.op("Softmax", scores), h, name="mixed"), 8)
    totals = widen(net).report["totals"]
    assert totals["attention_macs_before"] == 2 * 5 * 5 * 8
    assert totals["attention_macs_after"] == 2 * 5 * 5 * 16


def test_a_product_with_a_vector_keeps_what_it_sums_over(net: Net) -> None:
    h = net.tokens(8)
    pooled = net.op("MatMul", h, net.weight(8, name="query", fan_in=8), name="vector")
    h = net.op("Mul", h, net.op("Unsqueeze", pooled, net.constant([-1])))
    net.tokens_end(net.dense(net.dense(h, 8, 12, name="up"), 12, 8), 8)
    wide = widen(net)
    assert wide.shape("query") == (8,)
    assert wide.shape("up") == (1, 5, 24)
    assert "vector" in wide.reason("before.weight")


def test_a_weight_that_is_computed_from_stored_ones_is_a_layer(net: Net) -> None:
    """A weight times a stored scale is stored as one, and masked."""
    h = net.tokens(8)
    weight = net.op("Mul", net.weight(8, 8, name="direction"), net.weight(1, 8, name="magnitude"), name="mm.weight")
    h = net.op("MatMul", h, weight, name="mm")
    net.tokens_end(net.dense(net.dense(h, 8, 12, name="up"), 12, 8), 8)
    wide = widen(net)
    assert wide.shape("mm.weight") == (16, 16)
    assert wide.status("mm.weight") == "sparse"
    assert wide.shape("up") == (1, 5, 24)
    assert wide.report["totals"]["attention_macs_before"] == 0


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_the_fused_matmul_of_onnxruntime(net: Net, trans_a: int, trans_b: int) -> None:
    h = net.tokens(8)
    h = net.op("Transpose", h, perm=[0, 2, 1]) if trans_a else h
    weight = net.weight(*((12, 8) if trans_b else (8, 12)), name="w", fan_in=8)
    h = net.op("FusedMatMul", h, weight, name="mm", domain="com.microsoft", transA=trans_a, transB=trans_b, alpha=0.5)
    net.tokens_end(h, 12)
    wide = widen(net)
    assert wide.shape("w") == ((24, 16) if trans_b else (16, 24))
    assert wide.shape("mm") == (1, 5, 24)
    assert wide.status("w") == "sparse"


def test_the_fused_gemm_of_onnxruntime(net: Net) -> None:
    h = net.op("Reshape", net.tokens(8), net.constant([5, 8]))
    inputs = h, net.weight(8, 12, name="w"), net.weight(12, name="bias")
    h = net.op("FusedGemm", *inputs, name="gemm", domain="com.microsoft", activation="Relu")
    net.tokens_end(h, 12)
    wide = widen(net)
    assert wide.shape("w") == (16, 24)
    assert wide.shape("bias") == (24,)
