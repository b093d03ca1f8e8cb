"""Wide with ``init="embed"`` on layers of transformers: they compute what they did, at exactly their cost."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from embedded_models import embedded, net_of
from nets import MICROSOFT, Net

from sift_onnx.graphs.constants import array_of

WIDTH, LENGTH = 8, 5


def around_one(net: Net, *shape: int) -> str:
    return net.constant(np.random.default_rng(3).uniform(0.5, 1.5, shape).astype(np.float32))


def bias(net: Net, *shape: int) -> str:
    return net.weight(*shape, fan_in=9)


# Normalizations over features, in all their spellings.


def layer_norm(net: Net, x: str) -> str:
    return net.op("LayerNormalization", x, around_one(net, WIDTH), bias(net, WIDTH), axis=-1, name="norm")


def layer_norm_without_bias(net: Net, x: str) -> str:
    return net.op("LayerNormalization", x, around_one(net, WIDTH), axis=-1, epsilon=0.1)


def centred(net: Net, x: str) -> str:
    return net.op("Sub", x, net.op("ReduceMean", x, net.constant([-1])))


def spelled(net: Net, x: str, square: str, root: str) -> str:
    squares = net.op("Mul", x, x) if square == "Mul" else net.op("Pow", x, net.constant(2.0))
    mean = net.op("Add", net.op("ReduceMean", squares, net.constant([-1])), net.constant(0.1))
    deviation = net.op("Sqrt", mean)
    if root == "Reciprocal":
        return net.op("Mul", x, net.op("Reciprocal", deviation))
    if root == "Pow":
        return net.op("Mul", x, net.op("Pow", mean, net.constant(-0.5)))
    return net.op("Div", x, deviation)


def layer_norm_in_nodes(net: Net, x: str) -> str:
    y = net.op("Mul", spelled(net, centred(net, x), "Pow", "Div"), around_one(net, WIDTH))
    return net.op("Add", y, bias(net, WIDTH))


def layer_norm_with_two_differences(net: Net, x: str) -> str:
    mean = net.op("ReduceMean", x, net.constant([-1]))
    difference, again = net.op("Sub", x, mean), net.op("Sub", x, mean)
    variance = net.op("ReduceMean", net.op("Mul", again, again), net.constant([-1]))
    y = net.op("Div", difference, net.op("Sqrt", net.op("Add", variance, net.constant(0.1))))
    return net.op("Mul", y, around_one(net, WIDTH))


def layer_norm_by_moments(net: Net, x: str) -> str:
    """The variance is the mean of squares less the square of the mean."""
    mean = net.op("ReduceMean", x, net.constant([-1]))
    squares = net.op("ReduceMean", net.op("Mul", x, x), net.constant([-1]))
    variance = net.op("Sub", squares, net.op("Mul", mean, mean))
    deviation = net.op("Sqrt", net.op("Add", variance, net.constant(0.1)))
    return net.op("Mul", net.op("Div", net.op("Sub", x, mean), deviation), around_one(net, WIDTH))


def rms_norm(net: Net, x: str) -> str:
    return net.op("RMSNormalization", x, around_one(net, WIDTH), axis=-1, epsilon=0.1)


def rms_norm_of_onnxruntime(net: Net, x: str) -> str:
    return net.op("SimplifiedLayerNormalization", x, around_one(net, WIDTH), axis=-1, epsilon=0.1)


def rms_norm_in_nodes(net: Net, x: str) -> str:
    return net.op("Mul", spelled(net, x, "Pow", "Reciprocal"), around_one(net, WIDTH))


def rms_norm_scaled_first(net: Net, x: str) -> str:
    return net.op("Mul", around_one(net, WIDTH), spelled(net, x, "Mul", "Pow"))


def rms_norm_without_scale(net: Net, x: str) -> str:
    return spelled(net, x, "Mul", "Div")


def norm_by_the_sum_of_squares(net: Net, x: str) -> str:
    """T5 and Gemma divide by a stored width; zeros add nothing to a sum."""
    squares = net.op("ReduceSumSquare", x, net.constant([-1]))
    mean = net.op("Add", net.op("Div", squares, net.constant(float(WIDTH))), net.constant(0.1))
    return net.op("Mul", net.op("Div", x, net.op("Sqrt", mean)), around_one(net, WIDTH))


def unit_length(net: Net, x: str) -> str:
    return net.op("Div", x, net.op("Add", net.op("ReduceL2", x, net.constant([-1])), net.constant(0.1)))


def lp_norm(net: Net, x: str) -> str:
    return net.op("LpNormalization", x, axis=-1)


NORMS = [
    layer_norm,
    layer_norm_without_bias,
    layer_norm_in_nodes,
    layer_norm_with_two_differences,
    layer_norm_by_moments,
    rms_norm,
    rms_norm_of_onnxruntime,
    rms_norm_in_nodes,
    rms_norm_scaled_first,
    rms_norm_without_scale,
    norm_by_the_sum_of_squares,
    unit_length,
    lp_norm,
]


@pytest.mark.parametrize("sparsity", ["0.5", "0.75", "0.9"])
@pytest.mark.parametrize("norm", NORMS)
def test_a_normalization_over_features_grows(norm: Callable[[Net, str], str], sparsity: str) -> None:
    net = Net(opset=23)
    x = net.op("Add", net.tokens(WIDTH, LENGTH), bias(net, WIDTH))
    net.tokens_end(norm(net, x), WIDTH)
    result = embedded(net.model(), net.feeds, sparsity)
    after = result.model.initializers()["before.weight"]
    assert array_of(after).shape[1] > WIDTH


@pytest.mark.parametrize("norm", NORMS)
def test_a_residual_stream_that_normalizations_read_grows(norm: Callable[[Net, str], str]) -> None:
    net = Net(opset=23)
    x = net.op("Add", net.tokens(WIDTH, LENGTH), net.weight(1, LENGTH, WIDTH, fan_in=1, name="positions"))
    y = net.op("Gelu", net.dense(norm(net, x), WIDTH, 12, name="up"))
    x = net.op("Add", x, net.op("Add", net.dense(y, 12, WIDTH, name="down"), bias(net, WIDTH)))
    net.tokens_end(
        net.op("RMSNormalization" if norm in NORMS[5:] else "LayerNormalization", x, around_one(net, WIDTH)), WIDTH
    )
    result = embedded(net.model(), net.feeds)
    assert array_of(result.model.initializers()["up.weight"]).shape == (16, 24)


@pytest.mark.parametrize("norm", [layer_norm, layer_norm_in_nodes])
def test_a_stream_whose_mean_nobody_sees_is_centred_where_it_is_stored(norm: Callable[[Net, str], str]) -> None:
    net = Net()
    x = net.op("Add", net.tokens(WIDTH, LENGTH), bias(net, WIDTH))
    net.tokens_end(norm(net, x), WIDTH)
    model = embedded(net.model(), net.feeds).model
    assert np.abs(array_of(model.initializers()["before.weight"]).mean(axis=1)).max() < 1e-7
    assert sum(node.op == "ReduceMean" for node in model.graph.nodes) == (0 if norm is layer_norm else 2)


def test_a_stream_whose_mean_others_see_is_centred_by_nodes() -> None:
    net = Net()
    x = net.tokens(WIDTH, LENGTH)
    net.tokens_end(net.op("Add", layer_norm(net, x), x), WIDTH)
    model = embedded(net.model(), net.feeds).model
    assert [node.op for node in model.graph.nodes].count("ReduceMean") == 1
    before = array_of(model.initializers()["before.weight"])[:6, :WIDTH]
    original = net.model().graph.initializer
    stored = next(onnx.numpy_helper.to_array(t) for t in original if t.name == "before.weight")
    np.testing.assert_array_equal(before, stored)


@pytest.mark.parametrize("reads_mean", [False, True])
def test_what_has_grown_grows_again_without_further_nodes(reads_mean: bool) -> None:
    net = Net()
    x = net.op("Add", net.tokens(WIDTH, LENGTH), bias(net, WIDTH))
    y = layer_norm(net, x)
    net.tokens_end(net.op("Add", y, x) if reads_mean else y, WIDTH)
    first = embedded(net.model(), net.feeds, "0.5")
    again = embedded(first.model.to_proto(), net.feeds, "0.5", seed=1)
    assert again.report["centred"] == []
    ops = [[node.op for node in r.model.graph.nodes if node.op != "Constant"] for r in (first, again)]
    assert ops[0] == ops[1]
    for name, constant in first.model.masked().items():
        assert constant.nnz == again.model.masked()[name].nnz


def test_the_report_names_what_nodes_centre() -> None:
    net = Net()
    x = net.tokens(WIDTH, LENGTH)
    net.tokens_end(net.op("Add", layer_norm(net, x), x), WIDTH)
    assert embedded(net.model(), net.feeds).report["centred"] == ["before"]


def test_a_normalization_behind_another_is_centred_by_nodes() -> None:
    """As in BERT: the stream is what a normalization gives, whose scale and shift leave it with a mean."""
    net = Net()
    x = layer_norm_without_bias(net, net.tokens(WIDTH, LENGTH))
    y = net.dense(net.op("Gelu", net.dense(x, WIDTH, 12)), 12, WIDTH)
    net.tokens_end(layer_norm(net, net.op("Add", x, y)), WIDTH)
    model = embedded(net.model(), net.feeds).model
    assert array_of(model.initializers()["after.weight"]).shape[0] == 16


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_stored_scale_of_a_branch_is_multiplied_into_what_it_scales(has_bias: bool) -> None:
    """As in deep vision transformers; what stays behind is one number for all features."""
    net = Net()
    x = net.tokens(WIDTH, LENGTH)
    y = net.dense(net.op("Gelu", net.dense(layer_norm(net, x), WIDTH, 12)), 12, WIDTH, name="down")
    y = net.op("Add", bias(net, WIDTH), y) if has_bias else y
    x = net.op("Add", x, net.op("Mul", y, around_one(net, WIDTH), name="branch"))
    net.tokens_end(layer_norm_without_bias(net, x), WIDTH)
    result = embedded(net.model(), net.feeds)
    assert result.report["centred"] == []
    scale = next(node for node in result.model.graph.nodes if node.name == "branch").inputs[1]
    assert len(set(array_of(scale)[:WIDTH].tolist())) == 1


def test_a_stream_that_is_averaged_over_positions_is_centred_where_it_is_stored() -> None:
    net = Net()
    positions = bias(net, 1, LENGTH, WIDTH)
    x = net.op("Add", net.op("Add", net.tokens(WIDTH, LENGTH), positions), positions)
    x = net.op("Add", x, net.dense(net.op("Gelu", net.dense(layer_norm(net, x), WIDTH, 12)), 12, WIDTH))
    x = net.op("ReduceMean", x, net.constant([1]))
    net.tokens_end(layer_norm_without_bias(net, x), WIDTH)
    assert embedded(net.model(), net.feeds).report["centred"] == []


def test_a_scale_that_several_branches_share_stays_as_it_is() -> None:
    net = Net()
    x, scale = net.tokens(WIDTH, LENGTH), around_one(net, WIDTH)
    for _ in range(2):
        y = net.dense(net.op("Gelu", net.dense(layer_norm_without_bias(net, x), WIDTH, 12)), 12, WIDTH)
        x = net.op("Add", x, net.op("Mul", y, scale))
    net.tokens_end(layer_norm_without_bias(net, x), WIDTH)
    assert len(embedded(net.model(), net.feeds).report["centred"]) == 2


def test_channels_that_are_normalized_where_they_lie_last_grow() -> None:
    net = Net()
    x = net.op("Transpose", net.conv(net.images(WIDTH), WIDTH, WIDTH, 3, group=WIDTH), perm=[0, 2, 3, 1])
    x = net.op("Transpose", layer_norm(net, x), perm=[0, 3, 1, 2])
    net.images_end(x, WIDTH)
    embedded(net.model(), net.feeds)


@pytest.mark.parametrize("kind", ["SkipSimplifiedLayerNormalization", "SkipLayerNormalization"])
@pytest.mark.parametrize("opset", [16, 20])
def test_skipped_sums_of_onnxruntime_are_normalized(kind: str, opset: int) -> None:
    """The sum is an output as well, which goes on as the residual stream."""
    net = Net(opset)
    x, shifts = net.tokens(WIDTH, LENGTH), () if "Simplified" in kind else (bias(net, WIDTH),)
    for i in range(2):
        h = net.op("FastGelu", net.dense(x, WIDTH, 12), bias(net, 12), domain=MICROSOFT)
        operands = x, net.dense(h, 12, WIDTH), around_one(net, WIDTH), *shifts
        y, _, _, x = net.op(kind, *operands, domain=MICROSOFT, outputs=4, epsilon=0.1, name=f"mixer{i}")
    net.tokens_end(y, WIDTH)
    result = embedded(net.model(), net.feeds)
    assert array_of(result.model.initializers()["after.weight"]).shape[0] == 2 * WIDTH


@pytest.mark.parametrize("opset", [12, 16, 20])
@pytest.mark.parametrize("kind", ["plain", "summed", "places"])
def test_embeddings_that_onnxruntime_normalizes_grow(kind: str, opset: int) -> None:
    net = Net(opset)
    ids = net.input("ids", 2, LENGTH, values=np.array([[3, 1, 4, 1, 5], [2, 7, 1, 8, 2]], np.int32))
    segments = net.input("segments", 2, LENGTH, values=np.array([[0, 0, 0, 1, 1]] * 2, np.int32))
    mask = net.input("mask", 2, LENGTH, values=np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int32))
    tables = [net.weight(rows, WIDTH, fan_in=1) for rows in (9, 7, 2)]
    read = [ids, segments, *tables, around_one(net, WIDTH), bias(net, WIDTH), mask]
    if kind == "places":
        places = net.input("places", 2, LENGTH, values=np.array([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]], np.int32))
        read.append(places)
    count = 3 if kind == "summed" else 2
    outputs = net.op("EmbedLayerNormalization", *read, domain=MICROSOFT, outputs=count, epsilon=0.1, name="embedded")
    h = net.op("Gelu" if opset == 20 else "Relu", net.dense(outputs[0], WIDTH, 12))
    x = net.op("Add", outputs[0] if count == 2 else outputs[2], net.dense(h, 12, WIDTH))
    net.output(net.op("Add", net.dense(x, WIDTH, 3, name="after"), bias(net, 3)))
    net.output(net.op("Cast", outputs[1], to=onnx.TensorProto.FLOAT), 2)
    result = embedded(net.model(), net.feeds)
    assert array_of(result.model.initializers()["after.weight"]).shape[0] == 2 * WIDTH


# What stands around attention.


def looked_up(net: Net) -> None:
    net.input("x", 1, LENGTH, values=np.array([[3, 1, 4, 1, 5]], dtype=np.int64))
    x = net.op("Gather", net.weight(9, WIDTH, fan_in=1, name="table"), "x")
    net.tokens_end(layer_norm(net, net.dense(x, WIDTH, WIDTH)), WIDTH)


def tied(net: Net) -> None:
    net.input("x", 1, LENGTH, values=np.array([[3, 1, 4, 1, 5]], dtype=np.int64))
    table = net.weight(9, WIDTH, fan_in=1, name="table")
    x = net.op("Gather", table, "x")
    x = net.op("Add", x, net.dense(net.op("Gelu", net.dense(layer_norm(net, x), WIDTH, 12)), 12, WIDTH))
    net.output(net.op("MatMul", layer_norm_without_bias(net, x), net.op("Transpose", table, perm=[1, 0])))


def class_token(net: Net) -> None:
    x = net.op("Concat", net.weight(1, 1, WIDTH, fan_in=1), net.tokens(WIDTH, LENGTH), axis=1)
    x = net.op("Add", x, net.weight(1, LENGTH + 1, WIDTH, fan_in=1))
    x = net.op("Gather", layer_norm(net, x), net.constant(0), axis=1)
    net.tokens_end(net.op("Unsqueeze", x, net.constant([1])), WIDTH)


def number_of_channels(net: Net) -> None:
    x = net.images(WIDTH)
    count = net.op("Cast", net.op("Shape", x, start=1, end=2), to=onnx.TensorProto.FLOAT)
    net.images_end(net.op("Mul", x, count), WIDTH)


def first_state(net: Net) -> None:
    """Zeros as many as there are features, as exporters write the state that a recurrence starts from."""
    x = net.op("Add", net.tokens(WIDTH, LENGTH), bias(net, WIDTH))
    state = net.op("ConstantOfShape", net.constant([1, 1, WIDTH]))
    x = net.op("Concat", state, x, net.op("Expand", net.constant(0.0), net.constant([1, 2, WIDTH])), axis=1)
    net.tokens_end(layer_norm(net, x), WIDTH)


@pytest.mark.parametrize("block", [looked_up, tied, class_token, number_of_channels, first_state])
def test_a_block_keeps_its_outputs(block: Callable[[Net], None]) -> None:
    net = net_of(block)
    embedded(net.model(), net.feeds)


# Attention, in all its spellings. Heads of two features that become four.

HEADS, TOKENS = 4, 5


def projections(net: Net, x: str, kv_heads: int = HEADS, bias_too: bool = True) -> list[str]:
    size = WIDTH // HEADS
    widths = [WIDTH, kv_heads * size, kv_heads * size]
    names = [net.dense(x, WIDTH, width, name=name) for width, name in zip(widths, "qkv", strict=True)]
    return [net.op("Add", n, bias(net, w)) for n, w in zip(names, widths, strict=True)] if bias_too else names


def parted(net: Net, x: str, heads: int = HEADS, perm: tuple[int, ...] = (0, 2, 1, 3)) -> str:
    return net.op("Transpose", net.op("Reshape", x, net.constant([0, TOKENS, heads, -1])), perm=perm)


def attended(net: Net, q: str, k: str, v: str) -> str:
    scores = net.op("Mul", net.op("MatMul", q, k), net.constant((WIDTH // HEADS) ** -0.5))
    y = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
    return net.op("Reshape", net.op("Transpose", y, perm=[0, 2, 1, 3]), net.constant([0, TOKENS, WIDTH]))


def separate(net: Net, x: str) -> str:
    q, k, v = projections(net, x)
    return attended(net, parted(net, q), parted(net, k, perm=(0, 2, 3, 1)), parted(net, v))


def in_one_split(net: Net, x: str) -> str:
    h = net.op("Add", net.dense(x, WIDTH, 3 * WIDTH, name="qkv"), bias(net, 3 * WIDTH))
    q, k, v = net.op("Split", h, net.constant([WIDTH] * 3), axis=-1, outputs=3)
    return attended(net, parted(net, q), parted(net, k, perm=(0, 2, 3, 1)), parted(net, v))


def in_one_gathered(net: Net, x: str) -> str:
    """As in vision transformers: reshaped to ``[.., 3, heads, d]``, transposed, and unbound."""
    h = net.op("Add", net.dense(x, WIDTH, 3 * WIDTH, name="qkv"), bias(net, 3 * WIDTH))
    h = net.op("Reshape", h, net.constant([1, TOKENS, 3, HEADS, WIDTH // HEADS]))
    h = net.op("Transpose", h, perm=[2, 0, 3, 1, 4])
    q, k, v = (net.op("Gather", h, net.constant(i), axis=0) for i in range(3))
    return attended(net, q, net.op("Transpose", k, perm=[0, 1, 3, 2]), v)


def in_one_sliced(net: Net, x: str) -> str:
    """As in GPT-NeoX: queries, keys and values of a head side by side."""
    h = net.op("Add", net.dense(x, WIDTH, 3 * WIDTH, name="qkv"), bias(net, 3 * WIDTH))
    h = net.op(
        "Transpose", net.op("Reshape", h, net.constant([1, TOKENS, HEADS, 3 * WIDTH // HEADS])), perm=[0, 2, 1, 3]
    )
    size = WIDTH // HEADS
    bounds = [[net.constant([n]) for n in (i * size, (i + 1) * size, 3)] for i in range(3)]
    q, k, v = (net.op("Slice", h, *bound) for bound in bounds)
    return attended(net, q, net.op("Transpose", k, perm=[0, 1, 3, 2]), v)


def by_einsum(net: Net, x: str) -> str:
    shape = net.constant([0, TOKENS, HEADS, -1])
    q, k, v = (net.op("Reshape", h, shape) for h in projections(net, x))
    scores = net.op("Div", net.op("Einsum", q, k, equation="bqhd,bkhd->bhqk"), net.constant((WIDTH // HEADS) ** 0.5))
    y = net.op("Einsum", net.op("Softmax", scores, axis=-1), v, equation="bhqk,bkhd->bqhd")
    return net.op("Reshape", y, net.constant([0, TOKENS, WIDTH]))


def scaled_by_shape(net: Net, x: str) -> str:
    """As TorchScript writes it: the root of the size of a head, computed."""
    q, k, v = projections(net, x)
    q, k, v = parted(net, q), parted(net, k, perm=(0, 2, 3, 1)), parted(net, v)
    size = net.op("Gather", net.op("Shape", q), net.constant(-1))
    root = net.op("Sqrt", net.op("Cast", size, to=onnx.TensorProto.FLOAT))
    scores = net.op("Div", net.op("MatMul", q, k), root)
    y = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
    return net.op("Reshape", net.op("Transpose", y, perm=[0, 2, 1, 3]), net.constant([0, TOKENS, WIDTH]))


def grouped_queries(net: Net, x: str) -> str:
    q, k, v = projections(net, x, kv_heads=2)
    k, v = parted(net, k, 2), parted(net, v, 2)
    shape = net.constant([1, 2, 2, TOKENS, WIDTH // HEADS])
    k, v = (net.op("Expand", net.op("Unsqueeze", h, net.constant([2])), shape) for h in (k, v))
    k, v = (net.op("Reshape", h, net.constant([1, HEADS, TOKENS, WIDTH // HEADS])) for h in (k, v))
    return attended(net, parted(net, q), net.op("Transpose", k, perm=[0, 1, 3, 2]), v)


def normalized_heads(net: Net, x: str) -> str:
    """Queries and keys are normalized within their heads, as in recent language models."""
    q, k, v = (parted(net, h) for h in projections(net, x, bias_too=False))
    size = WIDTH // HEADS
    q, k = (net.op("RMSNormalization", h, around_one(net, size), axis=-1, epsilon=0.1) for h in (q, k))
    return attended(net, q, net.op("Transpose", k, perm=[0, 1, 3, 2]), v)


def operator(net: Net, x: str) -> str:
    return net.op("Attention", *projections(net, x), q_num_heads=HEADS, kv_num_heads=HEADS)


def operator_of_grouped_queries(net: Net, x: str) -> str:
    return net.op("Attention", *projections(net, x, 2), q_num_heads=HEADS, kv_num_heads=2, scale=0.3)


def operator_of_heads(net: Net, x: str) -> str:
    y = net.op("Attention", *(parted(net, h) for h in projections(net, x)))
    return net.op("Reshape", net.op("Transpose", y, perm=[0, 2, 1, 3]), net.constant([0, TOKENS, WIDTH]))


def operator_of_onnxruntime(net: Net, x: str) -> str:
    return net.op("MultiHeadAttention", *projections(net, x), bias(net, 3 * WIDTH), num_heads=HEADS, domain=MICROSOFT)


def operator_without_bias(net: Net, x: str) -> str:
    return net.op("MultiHeadAttention", *projections(net, x), num_heads=HEADS, domain=MICROSOFT)


def projecting_operator(net: Net, x: str) -> str:
    weight = net.weight(WIDTH, 3 * WIDTH, name="qkv.weight")
    return net.op("Attention", x, weight, bias(net, 3 * WIDTH), num_heads=HEADS, domain=MICROSOFT)


ATTENTIONS = [
    separate,
    in_one_split,
    in_one_gathered,
    in_one_sliced,
    by_einsum,
    scaled_by_shape,
    grouped_queries,
    normalized_heads,
    operator,
    operator_of_grouped_queries,
    operator_of_heads,
    operator_of_onnxruntime,
    operator_without_bias,
    projecting_operator,
]


@pytest.mark.parametrize("growth", ["head-dim", "heads", "keep"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_attention_grows(attention: Callable[[Net, str], str], growth: str) -> None:
    net = Net(opset=23)
    x = net.tokens(WIDTH, TOKENS)
    y = net.dense(attention(net, layer_norm(net, x)), WIDTH, WIDTH, name="out")
    net.tokens_end(layer_norm_without_bias(net, net.op("Add", x, y)), WIDTH)
    result = embedded(net.model(), net.feeds, attention=growth)
    grown = array_of(result.model.initializers()["out.weight"]).shape
    assert grown == (8 if growth == "keep" else 16, 16)


@pytest.mark.parametrize("attention", [separate, in_one_split, in_one_gathered, operator, projecting_operator])
def test_keys_are_added_as_zeros_and_queries_and_values_are_not(attention: Callable[[Net, str], str]) -> None:
    net = Net(opset=23)
    y = net.dense(attention(net, layer_norm(net, net.tokens(WIDTH, TOKENS))), WIDTH, WIDTH, name="out")
    net.tokens_end(y, WIDTH)
    wide = embedded(net.model(), net.feeds).model
    biases = [array_of(c) for n, c in wide.initializers().items() if array_of(c).shape in ((48,), (16,))]
    fused = [values for values in biases if values.size == 3 * 16]
    q, k, v = np.split(fused[0], 3) if fused else biases[2:5]
    added = np.arange(16).reshape(HEADS, 4)[:, 2:].reshape(-1)
    assert np.all(q[added] > 0)
    assert np.all(k[added] == 0)
    assert np.all(v[added] > 0)


def rotated_pair(net: Net, x: str, interleaved: int) -> str:
    size = 8
    angles = np.arange(TOKENS)[:, None] * 10000.0 ** (-np.arange(size // 2) / (size // 2))
    tables = [net.constant(f(angles)[None].astype(np.float32)) for f in (np.cos, np.sin)]
    q, k, v = (net.op("Reshape", h, net.constant([0, TOKENS, 1, -1])) for h in projections(net, x))
    q, k, v = (net.op("Transpose", h, perm=[0, 2, 1, 3]) for h in (q, k, v))
    q, k = (net.op("RotaryEmbedding", h, *tables, interleaved=interleaved) for h in (q, k))
    y = net.op("Attention", q, k, v)
    return net.op("Reshape", net.op("Transpose", y, perm=[0, 2, 1, 3]), net.constant([0, TOKENS, WIDTH]))


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("sparsity", ["0.5", "0.75", "0.9"])
def test_rotated_heads_grow(interleaved: int, sparsity: str) -> None:
    net = Net(opset=23)
    y = rotated_pair(net, layer_norm(net, net.tokens(WIDTH, TOKENS)), interleaved)
    net.tokens_end(net.dense(y, WIDTH, WIDTH, name="out"), WIDTH)
    result = embedded(net.model(), net.feeds, sparsity)
    assert array_of(result.model.initializers()["out.weight"]).shape[0] > WIDTH


# Recurrent layers.


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_recurrent_layer_grows(kind: str, direction: str, has_bias: bool) -> None:
    gates, directions, units = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind], 2 if direction == "bidirectional" else 1, 6
    net = Net()
    x = net.op("Transpose", net.tokens(WIDTH, TOKENS), perm=[1, 0, 2])
    weights = [net.weight(directions, gates * units, n, fan_in=n, name=f"r{n}.weight") for n in (WIDTH, units)]
    biases = [bias(net, directions, 2 * gates * units)] if has_bias else []
    y = net.op(kind, x, *weights, *biases, hidden_size=units, direction=direction, outputs=2)[0]
    y = net.op("Reshape", net.op("Transpose", y, perm=[2, 0, 1, 3]), net.constant([1, TOKENS, directions * units]))
    net.tokens_end(y, directions * units)
    result = embedded(net.model(), net.feeds)
    assert array_of(result.model.initializers()["r6.weight"]).shape == (directions, gates * 12, 12)
    node = next(node for node in result.model.graph.nodes if node.op == kind)
    assert np.count_nonzero(array_of(node.inputs[3])) >= directions * 2 * gates * 6


def test_what_a_recurrent_layer_gives_is_normalized() -> None:
    net = Net()
    x = net.op("Transpose", net.tokens(WIDTH, TOKENS), perm=[1, 0, 2])
    weights = [net.weight(1, 4 * WIDTH, WIDTH, fan_in=WIDTH) for _ in range(2)]
    y = net.op("LSTM", x, *weights, bias(net, 1, 8 * WIDTH), hidden_size=WIDTH, outputs=2)[0]
    y = net.op("Squeeze", net.op("Transpose", y, perm=[2, 0, 1, 3]), net.constant([2]))
    net.tokens_end(layer_norm(net, y), WIDTH)
    result = embedded(net.model(), net.feeds)
    assert array_of(result.model.initializers()["after.weight"]).shape[0] == 16
