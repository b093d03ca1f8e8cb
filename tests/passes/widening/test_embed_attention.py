"""Wide with ``init="embed"``: attention in all its spellings. Heads of two features become heads of four."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from embedded_models import embedded
from nets import MICROSOFT, Net
from normalized_nets import LENGTH, WIDTH, around_one, bias, layer_norm, layer_norm_without_bias

from sift_onnx.graphs.constants import array_of

HEADS = 4


def projections(net: Net, x: str, kv_heads: int = HEADS, bias_too: bool = True) -> list[str]:
    size = WIDTH // HEADS
    widths = [WIDTH, kv_heads * size, kv_heads * size]
    names = [net.dense(x, WIDTH, width, name=name) for width, name in zip(widths, "qkv", strict=True)]
    return [net.op("Add", n, bias(net, w)) for n, w in zip(names, widths, strict=True)] if bias_too else names


def parted(net: Net, x: str, heads: int = HEADS, perm: tuple[int, ...] = (0, 2, 1, 3)) -> str:
    return net.op("Transpose", net.op("Reshape", x, net.constant([0, LENGTH, heads, -1])), perm=perm)


def attended(net: Net, q: str, k: str, v: str) -> str:
    scores = net.op("Mul", net.op("MatMul", q, k), net.constant((WIDTH // HEADS) ** -0.5))
    y = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
    return net.op("Reshape", net.op("Transpose", y, perm=[0, 2, 1, 3]), net.constant([0, LENGTH, WIDTH]))


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
    h = net.op("Reshape", h, net.constant([1, LENGTH, 3, HEADS, WIDTH // HEADS]))
    h = net.op("Transpose", h, perm=[2, 0, 3, 1, 4])
    q, k, v = (net.op("Gather", h, net.constant(i), axis=0) for i in range(3))
    return attended(net, q, net.op("Transpose", k, perm=[0, 1, 3, 2]), v)


def in_one_sliced(net: Net, x: str) -> str:
    """As in GPT-NeoX: queries, keys and values of a head side by side."""
    h = net.op("Add", net.dense(x, WIDTH, 3 * WIDTH, name="qkv"), bias(net, 3 * WIDTH))
    h = net.op(
        "Transpose", net.op("Reshape", h, net.constant([1, LENGTH, HEADS, 3 * WIDTH // HEADS])), perm=[0, 2, 1, 3]
    )
    size = WIDTH // HEADS
    bounds = [[net.constant([n]) for n in (i * size, (i + 1) * size, 3)] for i in range(3)]
    q, k, v = (net.op("Slice", h, *bound) for bound in bounds)
    return attended(net, q, net.op("Transpose", k, perm=[0, 1, 3, 2]), v)


def by_fused_products(net: Net, x: str) -> str:
    """As onnxruntime optimizes it: keys are not transposed, and the factor is in the product."""
    q, k, v = (parted(net, h) for h in projections(net, x))
    scores = net.op("FusedMatMul", q, k, transB=1, alpha=(WIDTH // HEADS) ** -0.5, domain=MICROSOFT)
    y = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
    return net.op("Reshape", net.op("Transpose", y, perm=[0, 2, 1, 3]), net.constant([0, LENGTH, WIDTH]))


def by_einsum(net: Net, x: str) -> str:
    shape = net.constant([0, LENGTH, HEADS, -1])
    q, k, v = (net.op("Reshape", h, shape) for h in projections(net, x))
    scores = net.op("Div", net.op("Einsum", q, k, equation="bqhd,bkhd->bhqk"), net.constant((WIDTH // HEADS) ** 0.5))
    y = net.op("Einsum", net.op("Softmax", scores, axis=-1), v, equation="bhqk,bkhd->bqhd")
    return net.op("Reshape", y, net.constant([0, LENGTH, WIDTH]))


def scaled_by_shape(net: Net, x: str) -> str:
    """As TorchScript writes it: the root of the size of a head, computed."""
    q, k, v = projections(net, x)
    q, k, v = parted(net, q), parted(net, k, perm=(0, 2, 3, 1)), parted(net, v)
    size = net.op("Gather", net.op("Shape", q), net.constant(-1))
    root = net.op("Sqrt", net.op("Cast", size, to=onnx.TensorProto.FLOAT))
    scores = net.op("Div", net.op("MatMul", q, k), root)
    y = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
    return net.op("Reshape", net.op("Transpose", y, perm=[0, 2, 1, 3]), net.constant([0, LENGTH, WIDTH]))


def grouped_queries(net: Net, x: str) -> str:
    q, k, v = projections(net, x, kv_heads=2)
    k, v = parted(net, k, 2), parted(net, v, 2)
    shape = net.constant([1, 2, 2, LENGTH, WIDTH // HEADS])
    k, v = (net.op("Expand", net.op("Unsqueeze", h, net.constant([2])), shape) for h in (k, v))
    k, v = (net.op("Reshape", h, net.constant([1, HEADS, LENGTH, WIDTH // HEADS])) for h in (k, v))
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
    return net.op("Reshape", net.op("Transpose", y, perm=[0, 2, 1, 3]), net.constant([0, LENGTH, WIDTH]))


def operator_of_onnxruntime(net: Net, x: str) -> str:
    return net.op("MultiHeadAttention", *projections(net, x), bias(net, 3 * WIDTH), num_heads=HEADS, domain=MICROSOFT)


def operator_without_bias(net: Net, x: str) -> str:
    return net.op("MultiHeadAttention", *projections(net, x), num_heads=HEADS, domain=MICROSOFT)


def projecting_operator(net: Net, x: str) -> str:
    weight = net.weight(WIDTH, 3 * WIDTH, name="qkv.weight")
    return net.op("Attention", x, weight, bias(net, 3 * WIDTH), num_heads=HEADS, domain=MICROSOFT)


def between_features(net: Net, x: str) -> str:
    """As in XCiT: features of a head attend to each other."""
    q, k, v = (parted(net, h, perm=(0, 2, 3, 1)) for h in projections(net, x))
    lengths = (net.op("Max", net.op("ReduceL2", h, net.constant([-1])), net.constant(1e-6)) for h in (q, k))
    q, k = (net.op("Div", h, length) for h, length in zip((q, k), lengths, strict=True))
    scores = net.op("MatMul", q, net.op("Transpose", k, perm=[0, 1, 3, 2]))
    y = net.op("MatMul", net.op("Softmax", net.op("Mul", scores, around_one(net, HEADS, 1, 1)), axis=-1), v)
    return net.op("Reshape", net.op("Transpose", y, perm=[0, 3, 1, 2]), net.constant([0, LENGTH, WIDTH]))


def between_features_of_a_computed_size(net: Net, x: str) -> str:
    """As TorchScript writes it: a width, divided by the number of heads."""
    width = net.op("Gather", net.op("Shape", x), net.constant([-1]))
    size = net.op("Div", width, net.constant([HEADS]))
    h = net.op("Add", net.dense(x, WIDTH, 3 * WIDTH, name="qkv"), bias(net, 3 * WIDTH))
    h = net.op("Reshape", h, net.op("Concat", net.constant([1, LENGTH, 3, HEADS]), size, axis=0))
    h = net.op("Transpose", h, perm=[2, 0, 3, 4, 1])
    q, k, v = (net.op("Gather", h, net.constant(i), axis=0) for i in range(3))
    scores = net.op("MatMul", q, net.op("Transpose", k, perm=[0, 1, 3, 2]))
    y = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
    y = net.op("Transpose", y, perm=[0, 3, 1, 2])
    return net.op("Reshape", y, net.op("Concat", net.constant([1, LENGTH]), width, axis=0))


def linear_with_shares(net: Net, x: str) -> str:
    """Queries are shares of the features of a head, keys shares of the positions (Shen et al., 2021)."""
    q, k, v = projections(net, x)
    q, k = net.op("Softmax", parted(net, q), axis=-1), net.op("Softmax", parted(net, k, perm=(0, 2, 3, 1)), axis=-1)
    y = net.op("MatMul", q, net.op("MatMul", k, parted(net, v)))
    return net.op("Reshape", net.op("Transpose", y, perm=[0, 2, 1, 3]), net.constant([0, LENGTH, WIDTH]))


def operator_between_features(net: Net, x: str) -> str:
    y = net.op("Attention", *(parted(net, h, perm=(0, 2, 3, 1)) for h in projections(net, x)))
    return net.op("Reshape", net.op("Transpose", y, perm=[0, 3, 1, 2]), net.constant([0, LENGTH, WIDTH]))


ATTENTIONS = [
    separate,
    in_one_split,
    in_one_gathered,
    in_one_sliced,
    by_fused_products,
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
    between_features,
    linear_with_shares,
    operator_between_features,
]


@pytest.mark.parametrize("growth", ["head-dim", "heads", pytest.param("keep", marks=pytest.mark.slow)])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_attention_grows(attention: Callable[[Net, str], str], growth: str) -> None:
    net = Net(opset=23)
    x = net.tokens(WIDTH, LENGTH)
    y = net.dense(attention(net, layer_norm(net, x)), WIDTH, WIDTH, name="out")
    net.tokens_end(layer_norm_without_bias(net, net.op("Add", x, y)), WIDTH)
    result = embedded(net.model(), net.feeds, attention=growth)
    grown = array_of(result.model.initializers()["out.weight"]).shape
    assert grown == (8 if growth == "keep" else 16, 16)


@pytest.mark.parametrize("growth", ["head-dim", "heads"])
def test_heads_of_a_computed_size_become_more(growth: str) -> None:
    net = Net(opset=23)
    x = net.tokens(WIDTH, LENGTH)
    y = net.dense(between_features_of_a_computed_size(net, layer_norm(net, x)), WIDTH, WIDTH, name="out")
    net.tokens_end(layer_norm_without_bias(net, net.op("Add", x, y)), WIDTH)
    result = embedded(net.model(), net.feeds, attention=growth)
    assert array_of(result.model.initializers()["out.weight"]).shape == (16, 16)


@pytest.mark.parametrize("attention", [separate, in_one_split, in_one_gathered, operator, projecting_operator])
def test_keys_are_added_as_zeros_and_queries_and_values_are_not(attention: Callable[[Net, str], str]) -> None:
    net = Net(opset=23)
    y = net.dense(attention(net, layer_norm(net, net.tokens(WIDTH, LENGTH))), WIDTH, WIDTH, name="out")
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
    angles = np.arange(LENGTH)[:, None] * 10000.0 ** (-np.arange(size // 2) / (size // 2))
    tables = [net.constant(f(angles)[None].astype(np.float32)) for f in (np.cos, np.sin)]
    q, k, v = (net.op("Reshape", h, net.constant([0, LENGTH, 1, -1])) for h in projections(net, x))
    q, k, v = (net.op("Transpose", h, perm=[0, 2, 1, 3]) for h in (q, k, v))
    q, k = (net.op("RotaryEmbedding", h, *tables, interleaved=interleaved) for h in (q, k))
    y = net.op("Attention", q, k, v)
    return net.op("Reshape", net.op("Transpose", y, perm=[0, 2, 1, 3]), net.constant([0, LENGTH, WIDTH]))


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("sparsity", ["0.5", "0.75", "0.9"])
def test_rotated_heads_grow(interleaved: int, sparsity: str) -> None:
    net = Net(opset=23)
    y = rotated_pair(net, layer_norm(net, net.tokens(WIDTH, LENGTH)), interleaved)
    net.tokens_end(net.dense(y, WIDTH, WIDTH, name="out"), WIDTH)
    result = embedded(net.model(), net.feeds, sparsity)
    assert array_of(result.model.initializers()["out.weight"]).shape[0] > WIDTH
