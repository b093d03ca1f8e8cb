"""Products of two computed values, quotients of them, and softmax, in regions, against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sparse_nets import SparseNet, assert_same_at_batches, left_to_onnxruntime, places, reasons

pytestmark = pytest.mark.usefixtures("every_region_pays")

BATCHES = [1, 3, 17]
HEADS, DEPTH, SIZE = 2, 6, 5
WIDTH, TOKENS = HEADS * DEPTH, 7


def integers(net: SparseNet, *values: int) -> str:
    return net.constant(values, dtype=np.int64)


def images(net: SparseNet, channels: int, size: int = SIZE) -> str:
    x = net.input("x", 2, 4, size, size, declared=["n", 4, size, size])
    return str(net.conv(net.op("Relu", net.conv(x, 4, 6)), 6, channels, name="before"))


def tokens(net: SparseNet, width: int = WIDTH) -> str:
    return str(net.dense(net.input("x", 2, TOKENS, 5, declared=["n", TOKENS, 5]), 5, width, name="before"))


def linear_attention(net: SparseNet) -> str:
    """EfficientViT's: a column of ones behind the values sums the weights."""
    x = net.op("Reshape", images(net, 3 * WIDTH), integers(net, 0, HEADS, 3 * DEPTH, SIZE * SIZE))
    x = net.op("Transpose", x, perm=[0, 1, 3, 2])
    q, k, v = net.op("Split", x, integers(net, DEPTH, DEPTH, DEPTH), outputs=3, axis=-1)
    q, k = net.op("Relu", q), net.op("Relu", k)
    v = net.op("Pad", v, integers(net, *[0] * 7, 1), net.constant(1.0))
    summed = net.op("MatMul", net.op("Transpose", k, perm=[0, 1, 3, 2]), v)
    x = net.op("MatMul", q, summed)
    axes, last = integers(net, -1), integers(net, DEPTH)
    part = net.op("Slice", x, integers(net, 0), last, axes)
    total = net.op("Slice", x, last, integers(net, 2**62), axes)
    x = net.op("Div", part, net.op("Add", total, net.constant(1e-3)))
    x = net.op("Reshape", net.op("Transpose", x, perm=[0, 1, 3, 2]), integers(net, 0, WIDTH, SIZE, SIZE))
    return net.conv(x, WIDTH, 6)


def channel_attention(net: SparseNet) -> str:
    """XCiT's: channels attend to channels of their head, by scores of vectors of length one."""
    x = net.op("Reshape", tokens(net, 3 * WIDTH), integers(net, 0, TOKENS, 3, HEADS, DEPTH))
    x = net.op("Transpose", x, perm=[2, 0, 3, 4, 1])
    q, k, v = (net.op("Gather", x, net.constant(i, dtype=np.int64), axis=0) for i in range(3))
    scores = net.op("MatMul", q, net.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = net.op("Mul", scores, net.constant(np.linspace(0.5, 1, HEADS).reshape(HEADS, 1, 1)))
    weights = net.op("Softmax", scores, axis=-1)
    x = net.op("Transpose", net.op("MatMul", weights, v), perm=[0, 3, 1, 2])
    return net.dense(net.op("Reshape", x, integers(net, 0, TOKENS, WIDTH)), WIDTH, 6)


def attention_with_weights_that_leave(net: SparseNet) -> str:
    """No attention to the kernels, since something else reads its weights."""
    q, k, v = (net.op("Reshape", net.dense(tokens(net) if i == 0 else "before", WIDTH, WIDTH),
                      integers(net, 0, TOKENS, HEADS, DEPTH)) for i in range(3))  # fmt: skip
    q, v = (net.op("Transpose", part, perm=[0, 2, 1, 3]) for part in (q, v))
    scores = net.op("MatMul", q, net.op("Transpose", k, perm=[0, 2, 3, 1]))
    weights = net.op("Softmax", net.op("Mul", scores, net.constant(0.4)), axis=-1)
    net.output(weights)
    x = net.op("Transpose", net.op("MatMul", weights, v), perm=[0, 2, 1, 3])
    return net.dense(net.op("Reshape", x, integers(net, 0, TOKENS, WIDTH)), WIDTH, 6)


def gram_matrix(net: SparseNet) -> str:
    """What styles are told by."""
    x = net.op("Reshape", images(net, WIDTH), integers(net, 0, WIDTH, SIZE * SIZE))
    x = net.op("MatMul", x, net.op("Transpose", x, perm=[0, 2, 1]))
    return net.dense(net.op("Mul", x, net.constant(1 / SIZE**2)), WIDTH, 6)


def interactions(net: SparseNet) -> str:
    """A recommender's: products of all pairs of embeddings, behind what they are of."""
    x = tokens(net)
    pairs = net.op("MatMul", x, net.op("Transpose", x, perm=[0, 2, 1]))
    first = net.op("Flatten", net.op("Gather", x, net.constant(0, dtype=np.int64), axis=1))
    x = net.op("Concat", first, net.op("Reshape", pairs, integers(net, 0, TOKENS * TOKENS)), axis=1)
    return net.dense(x, WIDTH + TOKENS * TOKENS, 6)


def similarities(net: SparseNet) -> str:
    """CLIP's, of all pairs in the batch: both sides are as long."""
    x = net.op("Flatten", net.op("Relu", images(net, 3)))
    first, second = (net.dense(x, 3 * SIZE * SIZE, WIDTH) for _ in range(2))
    return str(net.op("Gemm", first, second, transB=1, alpha=0.3))


def turned_first(net: SparseNet) -> str:
    x = net.op("Reshape", tokens(net), integers(net, -1, WIDTH))
    y = net.dense(x, WIDTH, 3)
    return str(net.op("Gemm", y, x, net.constant(np.linspace(-1, 1, WIDTH)), transA=1, alpha=0.1, beta=2.0))


def one_row(net: SparseNet) -> str:
    """Attention pooling: one query for all tokens, of which the batch has one."""
    x = tokens(net)
    query = net.op("ReduceMean", x, integers(net, 1), keepdims=1)
    weights = net.op("Softmax", net.op("MatMul", query, net.op("Transpose", x, perm=[0, 2, 1])), axis=-1)
    return net.dense(net.op("Squeeze", net.op("MatMul", weights, x), integers(net, 1)), WIDTH, 6)


def windows(net: SparseNet) -> str:
    """Products of 2 x 2 windows of an image, whose rows lie in no order of memory."""
    x = net.op("Reshape", images(net, WIDTH, 4), integers(net, 0, WIDTH, 2, 2, 2, 2))
    x = net.op("Reshape", net.op("Transpose", x, perm=[0, 2, 4, 3, 5, 1]), integers(net, 0, 4, 4, WIDTH))
    scores = net.op("MatMul", x, net.op("Transpose", x, perm=[0, 1, 3, 2]))
    return net.dense(net.op("MatMul", net.op("Tanh", scores), x), WIDTH, 6)


def bilinear_pooling(net: SparseNet) -> str:
    """Of two branches, behind it signs and lengths as they are."""
    x = images(net, WIDTH)
    flat = [net.op("Reshape", net.conv(x, WIDTH, 4), integers(net, 0, 4, SIZE * SIZE)) for _ in range(2)]
    x = net.op("MatMul", flat[0], net.op("Transpose", flat[1], perm=[0, 2, 1]))
    return net.dense(net.op("Flatten", x), 16, 6)


def shares(net: SparseNet) -> str:
    """Values by their sum over tokens, and by those of another branch."""
    x = net.op("Sigmoid", tokens(net))
    x = net.op("Div", x, net.op("ReduceMean", x, integers(net, 1), keepdims=1))
    return net.dense(net.op("Div", x, net.op("Sigmoid", x)), WIDTH, 6)


def probabilities(net: SparseNet) -> str:
    return str(net.op("Softmax", net.dense(net.op("Relu", tokens(net)), WIDTH, 19), axis=-1))


def logarithms(net: SparseNet) -> str:
    x = net.op("Flatten", net.op("GlobalAveragePool", images(net, WIDTH)))
    return str(net.op("LogSoftmax", net.dense(x, WIDTH, 11), axis=1))


def classes_of_pixels(net: SparseNet) -> str:
    return str(net.op("Softmax", images(net, 5), axis=1))


def padded_tokens(net: SparseNet) -> str:
    x = net.op("Pad", tokens(net), integers(net, 0, 1, 2, 0, 2, 0), net.constant(0.5))
    return net.dense(x, WIDTH + 2, 6)


def weights_on_the_left(net: SparseNet) -> str:
    return net.dense(net.op("MatMul", net.weight(9, TOKENS, fan_in=TOKENS), net.op("Relu", tokens(net))), WIDTH, 6)


def sums_of_tokens(net: SparseNet) -> str:
    x = net.op("Relu", tokens(net))
    return net.dense(net.op("Div", net.op("ReduceSum", x, integers(net, 1), keepdims=0), net.constant(3.0)), WIDTH, 6)


def named_axes(net: SparseNet) -> str:
    """Attention between channels by Einsum, between layers whose weights have three axes, as Keras writes it."""
    x = tokens(net)
    q, k, v = (net.op("Einsum", x, net.weight(WIDTH, HEADS, DEPTH), equation="btc,chd->bthd") for _ in range(3))
    scores = net.op("Softmax", net.op("Einsum", q, k, equation="bthd,bthe->bhde"), axis=-1)
    x = net.op("Einsum", scores, v, equation="bhde,bthe->bthd")
    return str(net.op("Einsum", x, net.weight(HEADS, DEPTH, 6, fan_in=WIDTH), equation="bthd,hdo->bto"))


def outer_products(net: SparseNet) -> str:
    x = net.op("Relu", net.op("ReduceMean", tokens(net), integers(net, 1), keepdims=0))
    x = net.op("Einsum", x, net.dense(x, WIDTH, 3), equation="bi,bj->bij")
    return net.dense(net.op("Flatten", x), 3 * WIDTH, 6)


def constant_matrices(net: SparseNet) -> str:
    """Scores of positions that each head projects, and a matrix that is the same for all tokens of a batch."""
    x = net.op("Reshape", tokens(net), net.constant([0, 0, HEADS, DEPTH]))
    heads = net.op("Transpose", x, perm=[0, 2, 1, 3])
    scores = net.op("MatMul", heads, net.op("Transpose", net.weight(1, HEADS, 5, DEPTH), perm=[0, 1, 3, 2]))
    x = net.op("Transpose", net.op("MatMul", scores, net.weight(HEADS, 5, DEPTH)), perm=[0, 2, 1, 3])
    x = net.op("Reshape", x, net.constant([0, 0, WIDTH]))
    return net.dense(net.op("MatMul", x, net.weight(1, WIDTH, WIDTH)), WIDTH, 6)


NETS: dict[str, Callable[[SparseNet], str]] = {
    make.__name__.replace("_", " "): make
    for make in (
        linear_attention, channel_attention, attention_with_weights_that_leave, gram_matrix, interactions,
        similarities, turned_first, one_row, windows, bilinear_pooling, shares, probabilities, logarithms,
        classes_of_pixels, padded_tokens, weights_on_the_left, sums_of_tokens, named_axes, outer_products,
        constant_matrices,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_the_whole_net_is_one_region(name: str) -> None:
    net = SparseNet()
    net.output(NETS[name](net))
    program = assert_same_at_batches(net.model(), BATCHES)
    assert left_to_onnxruntime(program) == {}


@pytest.mark.parametrize("isa", ["avx2", "portable"])
@pytest.mark.parametrize("name", ["linear attention", "one row", "logarithms"])
def test_other_instruction_sets(name: str, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIFT_ISA", isa)
    net = SparseNet()
    net.output(NETS[name](net))
    assert assert_same_at_batches(net.model(), [2, 17]).isa == isa


def test_a_mask_of_another_kind_leaves_all_of_attention_to_onnxruntime() -> None:
    """Products and softmax alone would cut its part in three."""
    net = SparseNet()
    x = tokens(net)
    scores = net.op("MatMul", x, net.op("Transpose", x, perm=[0, 2, 1]), name="scores")
    hidden = net.op("Mod", scores, net.constant(2.0), fmod=1)
    weights = net.op("Softmax", hidden, axis=-1, name="softmax")
    net.output(net.dense(net.op("MatMul", weights, x, name="weighed"), WIDTH, 6, name="after"))
    program = assert_same_at_batches(net.model(), BATCHES)
    where = places(program)
    assert {where[name] for name in ("scores", "softmax", "weighed")} == {"onnxruntime"}
    assert where["before"] == where["after"] == "kernels"
    assert reasons(program)["softmax"] == "it is between nodes of onnxruntime"


def test_scores_that_their_own_values_hide() -> None:
    net = SparseNet()
    x = tokens(net)
    scores = net.op("MatMul", x, net.op("Transpose", x, perm=[0, 2, 1]))
    hidden = net.op("Where", net.op("Greater", scores, net.constant(0.0)), scores, net.constant(-1.0))
    weights = net.op("Softmax", hidden, axis=-1)
    net.output(net.dense(net.op("MatMul", weights, x), WIDTH, 6))
    assert left_to_onnxruntime(assert_same_at_batches(net.model(), BATCHES)) == {}


def test_open_sizes_are_those_of_the_run() -> None:
    net = SparseNet()
    x = net.dense(net.input("x", 2, 9, 5, declared=["n", "t", 5]), 5, WIDTH)
    weights = net.op("Softmax", net.op("MatMul", x, net.op("Transpose", x, perm=[0, 2, 1])), axis=-1)
    net.output(weights)
    net.output(net.dense(net.op("MatMul", weights, x), WIDTH, 6))
    for length in (1, 4, 33):
        program = assert_same_at_batches(net.model(), [1, 2], {"x": (0, length, 5)})
        assert set(places(program).values()) <= {"kernels", "folded"}
