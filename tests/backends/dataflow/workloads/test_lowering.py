import math

import numpy as np
import onnx
import pytest
from dataflow_cases import convolution, linear, sparse_integers
from function_nets import layers_in_functions
from hypothesis import given
from hypothesis import strategies as st
from nets import Net
from onnx import TensorProto, helper, numpy_helper
from sparse_nets import SparseNet, emptied, everything, some_rows

from sift_onnx.backends.dataflow.workloads.lowering import lower
from sift_onnx.backends.dataflow.workloads.matrix_maps import conv_maps, conv_transpose_maps, matrix_maps
from sift_onnx.backends.dataflow.workloads.pattern import (
    FullPattern,
    SampledPattern,
    StoredPattern,
    coordinates,
    shard_counts,
    shards_of,
)
from sift_onnx.errors import UsageError

small = st.integers(1, 5)


@st.composite
def index_maps(draw):
    """A map of any kind, forward or backward."""
    groups, kernel, strides = draw(st.integers(1, 3)), draw(small), draw(st.integers(1, 3))
    per_group, fan_in = draw(small), draw(small)
    kind = draw(st.sampled_from(["matrix", "transposed", "stack", "conv", "depthwise", "conv_transpose"]))
    maps = {
        "matrix": lambda: matrix_maps((per_group, fan_in), 0, 1),
        "transposed": lambda: matrix_maps((per_group, fan_in), 1, 0),
        "stack": lambda: matrix_maps((groups, per_group, fan_in), 2, 1),
        "conv": lambda: conv_maps((groups * per_group, fan_in, kernel, 2), 0, 1, groups, (strides, 1)),
        "depthwise": lambda: conv_maps((4 * per_group, 1, kernel, 2), 0, 1, 4, (strides, 2)),
        "conv_transpose": lambda: conv_transpose_maps((groups * fan_in, per_group, kernel), 1, 0, groups),
    }[kind]()
    return maps[draw(st.integers(0, 1))]


@given(index_maps())
def test_each_weight_has_a_place_of_its_own(index_map):
    rows, columns = index_map.locate(np.arange(index_map.size))
    assert rows.min() >= 0
    assert rows.max() < index_map.rows
    assert columns.max() < index_map.columns
    assert len(set(zip(rows.tolist(), columns.tolist(), strict=True))) == index_map.size


@given(index_maps(), st.integers(1, 9))
def test_a_full_pattern_counts_what_all_indices_count(index_map, columns):
    shard = shards_of(index_map, columns)
    used = int(shard[-1]) + 1
    full = shard_counts(FullPattern(index_map), shard, used)
    stored = shard_counts(StoredPattern(index_map, np.arange(index_map.size, dtype=np.int32)), shard, used)
    repeated = np.tile(full.values, (full.repeat, 1))
    np.testing.assert_array_equal(repeated, stored.values)


@given(index_maps(), st.integers(1, 9), st.floats(0, 1), st.integers(0, 9))
def test_a_sampled_pattern_has_exactly_its_non_zeros(index_map, columns, density, seed):
    shard = shards_of(index_map, columns)
    used = int(shard[-1]) + 1
    nnz = int(density * index_map.size)
    counts = shard_counts(SampledPattern(index_map, nnz, seed, "w"), shard, used)
    room = shard_counts(FullPattern(index_map), shard, used)
    assert counts.values.sum() == nnz
    assert counts.values.min() >= 0
    assert (counts.values <= np.tile(room.values, (room.repeat, 1))).all()


@given(index_maps(), st.integers(1, 9))
def test_shares_of_features_differ_by_at_most_a_unit(index_map, columns):
    sizes = np.bincount(shards_of(index_map, columns))
    assert len(sizes) <= columns
    assert sizes.max() - sizes.min() <= index_map.unit
    assert (np.diff(shards_of(index_map, columns)) >= 0).all()


def test_the_gradient_of_a_matrix_is_its_transpose():
    forward, backward = matrix_maps((3, 5), 0, 1)
    rows, columns = forward.locate(np.arange(15))
    np.testing.assert_array_equal(backward.locate(np.arange(15)), (columns, rows))


def test_a_strided_gradient_has_a_row_per_phase_that_taps_reach():
    _, backward = conv_maps((8, 4, 3, 3), 0, 1, 1, (2, 2))
    assert (backward.rows, backward.columns) == (4 * 4, 8 * 9)
    _, pointwise = conv_maps((8, 4, 1, 1), 0, 1, 1, (2, 2))
    assert pointwise.rows == 4


def test_channels_of_a_depthwise_convolution_are_not_reduced():
    forward, backward = conv_maps((16, 1, 3, 3), 0, 1, 16, (1, 1))
    assert (forward.rows, forward.unit, forward.reduced) == (1, 9, False)
    assert not backward.reduced


def test_a_convolution_is_the_matrix_of_its_kernel():
    weight = sparse_integers(6, 4, 3, 3)
    workload = lower(convolution(weight, size=9, batch=2, pads=[1] * 4, strides=[2, 2]))
    conv = workload.products[1]
    assert (conv.name, conv.kind, conv.tokens) == ("w", "conv", 2 * 5 * 5)
    dense = np.zeros((6, 36))
    rows, columns = coordinates(conv.pattern)
    dense[rows, columns] = weight.reshape(-1)[conv.pattern.indices]
    np.testing.assert_array_equal(dense, weight.reshape(6, 36))
    assert not workload.products[0].needs_input_gradient
    assert conv.needs_input_gradient
    assert [op.op for op in workload.weightless] == ["Relu"]


@pytest.mark.parametrize(("density", "kind"), [(0.3, StoredPattern), (0.85, StoredPattern), (0.97, FullPattern)])
def test_a_weight_without_a_mask_is_sparse_from_a_tenth_of_zeros_on(density, kind):
    (only,) = lower(linear(sparse_integers(40, 50, density=density))).products
    assert isinstance(only.pattern, kind)


@pytest.mark.parametrize("zeros", [some_rows, everything])
def test_active_zeros_are_in_the_pattern(zeros):
    net = SparseNet()
    net.density = 1.0
    x = net.op("Relu", net.conv(net.input("x", 2, 8, 6, 6), 8, 24, 3, name="first"))
    x = net.op("Relu", net.conv(x, 24, 24, 3, name="grouped", group=3))
    net.output(net.conv(net.op("Relu", net.conv(x, 24, 32, 1, name="pointwise")), 32, 4, 1, name="last"))
    trained, untrained = (lower(emptied(net, which)).products for which in (lambda *_: False, zeros))
    assert [isinstance(p.pattern, StoredPattern) for p in trained] == [False, True, True, False]
    for a, b in zip(trained[1:3], untrained[1:3], strict=True):
        np.testing.assert_array_equal(a.pattern.indices, b.pattern.indices)


def test_batch_scales_every_activation():
    weight = sparse_integers(6, 4, 3, 3)
    one, many = (lower(convolution(weight, batch=2), batch=batch) for batch in (2, 64))
    assert [32 * p.tokens for p in one.products] == [p.tokens for p in many.products]
    assert many.weightless[0].operations == 32 * one.weightless[0].operations
    assert many.assumptions
    assert not one.assumptions
    with pytest.raises(UsageError, match="batch is 0"):
        lower(linear(weight.reshape(6, 36)), batch=0)


def test_recurrent_weights_meet_one_time_step_after_the_other():
    rng = np.random.default_rng(0)
    w, r = (rng.standard_normal((1, 12, n)).astype(np.float32) for n in (5, 3))
    graph = helper.make_graph(
        [helper.make_node("LSTM", ["x", "w", "r"], ["y"], "lstm", hidden_size=3)],
        "lstm",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [7, 2, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(r, "r")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    first, second = lower(model).products
    assert (first.tokens, first.sequential) == (14, 1)
    assert (second.tokens, second.sequential) == (2, 7)


def test_look_ups_and_products_of_activations_are_costed():
    table = np.ones((100, 8), np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["e"], "embed"),
            helper.make_node("Transpose", ["e"], ["t"], "turn", perm=[0, 2, 1]),
            helper.make_node("MatMul", ["e", "t"], ["s"], "scores"),
            helper.make_node("Softmax", ["s"], ["p"], "softmax"),
            helper.make_node("Shape", ["p"], ["size"], "shape"),
        ],
        "attention",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [2, 6])],
        [
            helper.make_tensor_value_info("p", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("size", TensorProto.INT64, None),
        ],
        [numpy_helper.from_array(table, "table")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    workload = lower(model)
    assert not workload.products
    kinds = {op.op: op.kind for op in workload.weightless}
    assert kinds == {"Gather": "lookup", "Transpose": "copy", "MatMul": "product", "Softmax": "reduction"}
    scores = next(op for op in workload.weightless if op.kind == "product")
    assert scores.operations == math.prod((2, 6, 6, 8))
    assert workload.weightless[0].table_elements == 800


def test_layers_in_local_functions_are_products():
    workload = lower(layers_in_functions(Net()).model(), batch=3)
    assert [(p.name, p.tokens) for p in workload.products] == [("w0", 3), ("w1", 3), ("w2", 3)]
    assert not workload.uncosted


def test_what_cannot_be_costed_is_listed():
    branch = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["z"])], "b", [], [helper.make_tensor_value_info("z", TensorProto.FLOAT, [2])]
    )
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], "choice", then_branch=branch, else_branch=branch)],
        "if",
        [
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    (entry,) = lower(model).uncosted
    assert (entry.node, entry.op) == ("choice", "If")
