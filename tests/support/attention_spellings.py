"""Layers of attention in the spellings of exporters, each between sparse layers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from attention_nets import BATCH, DEPTH, HEADS, TOKENS, WIDTH, AttentionNet

__all__ = ["SPELLINGS", "dynamic_net"]

LEAST = float(np.finfo(np.float32).min)


def plain() -> AttentionNet:
    net = AttentionNet()
    q, k, v = net.projections()
    return net.ends(net.joined(net.attend(net.parted(q), net.parted(k, turned=True), net.parted(v))))


def scaled(where: str) -> AttentionNet:
    net = AttentionNet()
    q, k, v = net.projections()
    half, root = net.constant(0.5), net.constant([0.5**0.5])
    if where == "queries":
        q = net.op("Mul", q, half)
    q, k, v = net.parted(q), net.parted(k, turned=True), net.parted(v)
    if where == "both":
        q, k = net.op("Mul", q, root), net.op("Mul", root, k)
    scores = net.op("MatMul", q, k)
    if where == "scores":
        scores = net.op("Div", scores, net.constant(2.0))
    weighed = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
    return net.ends(net.joined(weighed))


def of_angles(form: str) -> AttentionNet:
    """Cosine attention: vectors of length one, and a number for each head. XCiT's is of channels to each other."""
    net = AttentionNet()
    q, k, v = net.projections()
    is_crossed = form == "channels"
    q, k, v = (net.parted(one, turned=is_crossed) for one in (q, k, v))

    def unit(x: str) -> str:
        length = net.op("ReduceL2", x, axes=[-1])
        return str(net.op("Div", x, net.op("Expand", net.op("Clip", length, net.constant(1e-12)), net.op("Shape", x))))

    q, k = unit(q), net.op("Transpose", unit(k), perm=[0, 1, 3, 2])
    factors = net.constant(np.linspace(1, 9, HEADS).reshape(HEADS, 1, 1))
    scores = net.op("Mul", factors, net.op("MatMul", q, k))
    if form == "masked":
        scores = net.op("Add", scores, net.weight(1, HEADS, TOKENS, TOKENS))
    weighed = net.op("MatMul", net.op("Softmax", scores, axis=-1, name="softmax"), v)
    if is_crossed:
        weighed = net.op("Transpose", weighed, perm=[0, 1, 3, 2])
    return net.ends(net.joined(weighed))


def keys_turned_twice() -> AttentionNet:
    net = AttentionNet()
    q, k, v = net.projections()
    turned = net.op("Transpose", net.parted(k), perm=[0, 1, 3, 2])
    return net.ends(net.joined(net.attend(net.parted(q), turned, net.parted(v))))


def keys_turned_as_three_axes() -> AttentionNet:
    """As torch.onnx writes a transpose of the last two axes: the sizes are computed by Shape nodes."""
    net = AttentionNet()
    q, k, v = net.projections()
    parted = net.parted(k)
    sizes = net.op("Shape", parted)
    front, back = net.constant([0]), net.constant([2])
    batch = net.op("Slice", sizes, front, back, front)
    flat = net.op("Reshape", parted, net.constant([-1, TOKENS, DEPTH], dtype=np.int64))
    target = net.op("Concat", batch, net.constant([DEPTH]), net.constant([TOKENS]), axis=0)
    turned = net.op("Reshape", net.op("Transpose", flat, perm=[0, 2, 1]), target)
    return net.ends(net.joined(net.attend(net.parted(q), turned, net.parted(v))))


def split_of_one_layer() -> AttentionNet:
    net = AttentionNet()
    x = net.dense(net.x, WIDTH, 3 * WIDTH)
    q, k, v = net.op("Split", x, net.constant([WIDTH] * 3), outputs=3, axis=-1)
    return net.ends(net.joined(net.attend(net.parted(q), net.parted(k, turned=True), net.parted(v))))


def stacked(form: str) -> AttentionNet:
    """Vision transformers: [n, tokens, 3, heads, depth], turned so that the three come first."""
    net = AttentionNet()
    shape = net.constant([-1, TOKENS, 3, HEADS, DEPTH], dtype=np.int64)
    x = net.op("Reshape", net.dense(net.x, WIDTH, 3 * WIDTH), shape)
    x = net.op("Transpose", x, perm=[2, 0, 3, 1, 4])
    first = net.constant([0])
    if form == "Split":
        parts = net.op("Split", x, net.constant([1, 1, 1]), outputs=3, axis=0)
    elif form == "Gather":
        parts = [net.op("Gather", x, net.constant(i), axis=0) for i in range(3)]
    else:
        parts = [net.op("Slice", x, net.constant([i]), net.constant([i + 1]), first) for i in range(3)]
    q, k, v = parts if form == "Gather" else (net.op("Squeeze", part, first) for part in parts)
    return net.ends(net.joined(net.attend(q, net.op("Transpose", k, perm=[0, 1, 3, 2]), v)))


def result_is_a_matrix() -> AttentionNet:
    net = AttentionNet()
    q, k, v = net.projections()
    weighed = net.attend(net.parted(q), net.parted(k, turned=True), net.parted(v))
    return net.ends(net.joined(weighed, -1, WIDTH))


def masked(kind: str) -> AttentionNet:
    net = AttentionNet()
    q, k, v = net.projections()
    rng = np.random.default_rng(3)
    if kind == "by key":
        mask = net.input("mask", BATCH, 1, 1, TOKENS, declared=["n", 1, 1, TOKENS])
    elif kind == "by query and head":
        mask = net.input("mask", BATCH, HEADS, TOKENS, TOKENS, declared=["n", HEADS, TOKENS, TOKENS])
    else:
        size = 2 * TOKENS if kind == "causal table" else TOKENS
        if kind == "the same for all keys":
            mask = net.constant(rng.standard_normal((HEADS, TOKENS, 1)))
            return net.ends(net.joined(net.attend(net.parted(q), net.parted(k, turned=True), net.parted(v), mask)))
        causal = np.where(np.arange(size) <= np.arange(size)[:, None], 0.0, LEAST)
        mask = net.constant(rng.standard_normal(TOKENS) if kind == "constant by key" else causal)
        if kind == "causal table":
            mask = net.op("Slice", mask, net.constant([0, 0]), net.constant([TOKENS, TOKENS]), net.constant([0, 1]))
    return net.ends(net.joined(net.attend(net.parted(q), net.parted(k, turned=True), net.parted(v), mask)))


def nan_to_zero() -> AttentionNet:
    net = AttentionNet()
    q, k, v = net.projections()
    nothing = np.zeros((TOKENS, TOKENS))
    nothing[4] = -np.inf
    heads = net.parted(q), net.parted(k, turned=True), net.parted(v)
    return net.ends(net.joined(net.attend(*heads, net.constant(nothing), nan_to_zero=True)))


def mask_of_the_region() -> AttentionNet:
    """The mask is made by a layer that the kernels run as well."""
    net = AttentionNet()
    q, k, v = net.projections()
    mask = net.op("Transpose", net.dense(net.x, WIDTH, 1), perm=[0, 2, 1])
    mask = net.op("Unsqueeze", mask, net.constant([1]))
    return net.ends(net.joined(net.attend(net.parted(q), net.parted(k, turned=True), net.parted(v), mask)))


def heads_stay_apart() -> AttentionNet:
    """What is joined is [n, heads, tokens, depth], without a transpose."""
    net = AttentionNet()
    q, k, v = net.projections()
    weighed = net.attend(net.parted(q), net.parted(k, turned=True), net.parted(v))
    return net.ends(net.op("Reshape", weighed, net.constant([0, TOKENS, WIDTH], dtype=np.int64)))


def heads_between_channels() -> AttentionNet:
    """A head's channels are not side by side."""
    net = AttentionNet()
    shape = net.constant([0, TOKENS, DEPTH, HEADS], dtype=np.int64)
    q, k, v = (net.op("Reshape", y, shape) for y in net.projections())
    q, v = (net.op("Transpose", y, perm=[0, 3, 1, 2]) for y in (q, v))
    return net.ends(net.joined(net.attend(q, net.op("Transpose", k, perm=[0, 3, 2, 1]), v)))


def queries_end_within_the_keys() -> AttentionNet:
    """Queries are made of what the keys are a view of."""
    net = AttentionNet()
    q, _, v = net.projections()
    shape = net.constant([0, TOKENS, HEADS, DEPTH], dtype=np.int64)
    shared = net.op("Reshape", q, shape)
    halves = net.op("Mul", shared, net.constant(np.full(DEPTH, 0.5)))
    q, k = net.op("Transpose", halves, perm=[0, 2, 1, 3]), net.op("Transpose", shared, perm=[0, 2, 3, 1])
    return net.ends(net.joined(net.attend(q, k, net.parted(v))))


def result_is_read_twice() -> AttentionNet:
    net = AttentionNet()
    q, k, v = net.projections()
    weighed = net.attend(net.parted(q), net.parted(k, turned=True), net.parted(v))
    net.output(net.op("Neg", weighed))
    return net.ends(net.joined(weighed))


def heads_and_sequences_in_one_axis() -> AttentionNet:
    """As torch's MultiheadAttention has them; the tokens come first."""
    net = AttentionNet()
    x = net.op("Transpose", net.x, perm=[1, 0, 2])
    apart, back = net.constant([TOKENS, -1, DEPTH], dtype=np.int64), net.constant([TOKENS, -1, WIDTH], dtype=np.int64)
    q, k, v = (net.op("Reshape", net.dense(x, WIDTH, WIDTH), apart) for _ in range(3))
    q, k, v = (net.op("Transpose", y, perm=perm) for y, perm in ((q, [1, 0, 2]), (k, [1, 2, 0]), (v, [1, 0, 2])))
    joined = net.op("Reshape", net.op("Transpose", net.attend(q, k, v), perm=[1, 0, 2]), back, name="joined")
    return net.ends(net.op("Transpose", net.dense(joined, WIDTH, WIDTH), perm=[1, 0, 2]))


def grouped_queries() -> AttentionNet:
    """As Llama: heads share keys and values, and half of a head's channels change places for rotary positions."""
    net = AttentionNet()
    rng = np.random.default_rng(7)
    q, k, v = net.dense(net.x, WIDTH, WIDTH), net.dense(net.x, WIDTH, DEPTH), net.dense(net.x, WIDTH, DEPTH)
    shared = net.constant([0, TOKENS, 1, DEPTH], dtype=np.int64)
    q = net.parted(q)
    k, v = (net.op("Transpose", net.op("Reshape", y, shared), perm=[0, 2, 1, 3]) for y in (k, v))
    cosines, sines = (net.constant(rng.standard_normal((1, 1, TOKENS, DEPTH))) for _ in range(2))
    middle, end, last = net.constant([DEPTH // 2]), net.constant([2**62]), net.constant([3])

    def rotated(y: str) -> str:
        first = net.op("Slice", y, net.constant([0]), middle, last)
        turned = net.op("Concat", net.op("Neg", net.op("Slice", y, middle, end, last)), first, axis=-1)
        return str(net.op("Add", net.op("Mul", y, cosines), net.op("Mul", turned, sines)))

    q, k = rotated(q), rotated(k)
    groups = net.constant([1, 1, HEADS, 1, 1], dtype=np.int64)
    heads = net.constant([0, HEADS, TOKENS, DEPTH], dtype=np.int64)
    k, v = (net.op("Expand", net.op("Unsqueeze", y, net.constant([2])), groups) for y in (k, v))
    k, v = (net.op("Reshape", y, heads) for y in (k, v))
    return net.ends(net.joined(net.attend(q, net.op("Transpose", k, perm=[0, 1, 3, 2]), v)))


def windows(shifted: bool) -> AttentionNet:
    """As Swin transformers: sequences are windows of an image, which share a table; shifted ones have a mask each."""
    net = AttentionNet()
    count, size = 3, TOKENS // 3
    rng = np.random.default_rng(5)
    x = net.op("Reshape", net.x, net.constant([-1, size, WIDTH], dtype=np.int64))
    shape = net.constant([0, size, HEADS, DEPTH], dtype=np.int64)
    q, k, v = (net.op("Reshape", net.dense(x, WIDTH, WIDTH), shape) for _ in range(3))
    q, k, v = (
        net.op("Transpose", y, perm=perm) for y, perm in ((q, [0, 2, 1, 3]), (k, [0, 2, 3, 1]), (v, [0, 2, 1, 3]))
    )
    table = net.op("Transpose", net.constant(rng.standard_normal((size * size, HEADS))), perm=[1, 0])
    table = net.op("Reshape", table, net.constant([1, HEADS, size, size], dtype=np.int64))
    scores = net.op("Add", net.op("MatMul", q, k), table)
    if shifted:
        mask = net.constant(np.where(rng.random((count, 1, size, size)) < 0.3, -100.0, 0.0))
        scores = net.op("Reshape", scores, net.constant([-1, count, HEADS, size, size], dtype=np.int64))
        scores = net.op("Reshape", net.op("Add", scores, mask), net.constant([-1, HEADS, size, size], dtype=np.int64))
    weighed = net.op("MatMul", net.op("Softmax", scores, name="softmax", axis=-1), v)
    joined = net.op("Transpose", weighed, perm=[0, 2, 1, 3])
    return net.ends(net.op("Reshape", joined, net.constant([-1, TOKENS, WIDTH], dtype=np.int64), name="joined"))


class DynamicNet(AttentionNet):
    """Batch and length are known to a run only, and read off the tensors."""

    def __init__(self) -> None:
        super(AttentionNet, self).__init__(17)
        self.tokens = TOKENS
        stem = self.dense(self.input("x", BATCH, TOKENS, 5, declared=["n", "t", 5]), 5, WIDTH, name="stem")
        self.x = str(self.op("Relu", stem))

    def target(self, value: str, *rest: int) -> str:
        shape = self.op("Shape", value)
        sizes = [self.op("Gather", shape, self.constant(axis), axis=0) for axis in range(2)]
        vectors = [self.op("Unsqueeze", size, self.constant([0])) for size in sizes]
        return str(self.op("Concat", *vectors, self.constant(rest, dtype=np.int64), axis=0))

    def parted(self, value: str, turned: bool = False) -> str:
        parted = self.op("Reshape", value, self.target(value, -1, DEPTH))
        return str(self.op("Transpose", parted, perm=[0, 2, 3, 1] if turned else [0, 2, 1, 3]))

    def joined(self, value: str, *shape: int) -> str:
        turned = self.op("Transpose", value, perm=[0, 2, 1, 3])
        return str(self.op("Reshape", turned, self.target(turned, WIDTH), name="joined"))


def dynamic_net() -> DynamicNet:
    """As torch.onnx exports scaled_dot_product_attention: the fourth root of a scale that is computed from sizes."""
    net = DynamicNet()
    q, k, v = net.projections()
    q, k, v = net.parted(q), net.parted(k, turned=True), net.parted(v)
    last = net.op("Slice", net.op("Shape", q), net.constant([-1]), net.constant([2**63 - 1]))
    root = net.op("Sqrt", net.op("Cast", last, to=onnx.TensorProto.FLOAT))
    scale = net.op("Div", net.constant([1.0]), root)
    q, k = (net.op("Mul", y, net.op("Sqrt", scale)) for y in (q, k))
    mask = net.input("mask", BATCH, 1, 1, TOKENS, declared=["masks", "heads", "queries", "keys"])
    net.ends(net.joined(net.attend(q, k, v, mask, nan_to_zero=True)))
    return net


SPELLINGS: dict[str, Callable[[], AttentionNet]] = {
    "plain": plain,
    "queries are scaled": lambda: scaled("queries"),
    "queries and keys are scaled": lambda: scaled("both"),
    "scores are scaled": lambda: scaled("scores"),
    "keys are turned twice": keys_turned_twice,
    "angles count": lambda: of_angles("tokens"),
    "angles and a mask count": lambda: of_angles("masked"),
    "channels attend to channels": lambda: of_angles("channels"),
    "keys are turned as three axes": keys_turned_as_three_axes,
    "split of one layer": split_of_one_layer,
    "stacked, then split": lambda: stacked("Split"),
    "stacked, then sliced": lambda: stacked("Slice"),
    "stacked, then gathered": lambda: stacked("Gather"),
    "result is a matrix": result_is_a_matrix,
    "mask by key": lambda: masked("by key"),
    "mask by query and head": lambda: masked("by query and head"),
    "causal": lambda: masked("causal"),
    "mask the same for all keys": lambda: masked("the same for all keys"),
    "causal table": lambda: masked("causal table"),
    "constant by key": lambda: masked("constant by key"),
    "nan to zero": nan_to_zero,
    "mask of the region": mask_of_the_region,
    "heads stay apart": heads_stay_apart,
    "heads between channels": heads_between_channels,
    "queries end within the keys": queries_end_within_the_keys,
    "result is read twice": result_is_read_twice,
    "heads and sequences in one axis": heads_and_sequences_in_one_axis,
    "grouped queries": grouped_queries,
    "windows": lambda: windows(shifted=False),
    "shifted windows": lambda: windows(shifted=True),
}
