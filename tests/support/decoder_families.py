"""Small decoders with what families other than Llama's have, as torch's exporters spell it."""

from __future__ import annotations

import numpy as np
import onnx
from decoder_nets import BATCH, DEPTH, HEADS, HIDDEN, LAYERS, NEW, PAST, POSITIONS, WIDTH, DecoderNet

__all__ = ["ENCODED", "FAMILIES", "alibi", "cross_attention", "fixed_cache", "multi_query", "partial_rotary"]

ENCODED = 5


def partial_rotary(rotated: int = DEPTH // 2) -> DecoderNet:
    """As GPT-NeoX: a part of each head is rotated, heads lie by threes in one product, blocks are parallel.

    The part may be all of it, as of Phi-3: the rest, which has no elements, is joined all the same.
    """
    net = DecoderNet(17, HEADS)
    inverse = net.constant(1 / 100 ** (np.arange(rotated // 2, dtype=np.float32) / (rotated // 2)))
    places = net.op("Cast", net.op("Unsqueeze", net.positions(), net.ints(2)), to=onnx.TensorProto.FLOAT)
    angles = net.op("Mul", places, inverse)
    both = net.op("Concat", angles, angles, axis=-1)
    cos, sin = (str(net.op("Unsqueeze", net.op(kind, both), net.ints(1))) for kind in ("Cos", "Sin"))
    x, mask = net.embedded(), net.added_mask()
    for layer in range(LAYERS):
        h = layer_norm(net, x)
        qkv = net.op("Add", net.linear(h, 3 * WIDTH), net.weight(3 * WIDTH, fan_in=9))
        shape = net.op("Concat", net.size(qkv, 0), net.size(qkv, 1), net.ints(HEADS, 3 * DEPTH), axis=0)
        turned = net.op("Transpose", net.op("Reshape", qkv, shape), perm=[0, 2, 1, 3])
        q, k, v = net.op("Split", turned, net.ints(DEPTH, DEPTH, DEPTH), axis=3, outputs=3)
        q, k = (partly_rotated(net, part, rotated, cos, sin) for part in (q, k))
        made = net.linear(net.joined(net.attended(layer, q, k, v, mask)), WIDTH)
        x = net.op("Add", x, net.op("Add", made, mlp(net, layer_norm(net, x))))
    return net.ends(layer_norm(net, x))


def partly_rotated(net: DecoderNet, x: str, rotated: int, cos: str, sin: str) -> str:
    axes, half, end = net.ints(3), net.ints(rotated // 2), net.ints(2**63 - 1)
    own = net.op("Slice", x, net.ints(0), net.ints(rotated), axes)
    rest = net.op("Slice", x, net.ints(rotated), end, axes)
    first, second = net.op("Slice", own, net.ints(0), half, axes), net.op("Slice", own, half, end, axes)
    turned = net.op("Concat", net.op("Neg", second), first, axis=-1)
    total = net.op("Add", net.op("Mul", own, cos), net.op("Mul", turned, sin))
    return str(net.op("Concat", total, rest, axis=-1))


def alibi() -> DecoderNet:
    """As BLOOM: a bias by the distance of keys, sequences and heads as one axis, queries, keys and values by threes."""
    net = DecoderNet(17, HEADS)
    slopes = net.constant((2.0 ** -np.arange(1, HEADS + 1)).astype(np.float32).reshape(HEADS, 1))
    tokens = net.op("Cast", net.attention_mask, to=onnx.TensorProto.FLOAT)
    counted = net.op("CumSum", tokens, net.constant(1, dtype=np.int64))
    places = net.op("Mul", net.op("Sub", counted, net.constant(1.0)), tokens)
    bias = net.op("Mul", slopes, net.op("Unsqueeze", places, net.ints(1)))
    batch, total = net.size(net.attention_mask, 0), net.size(net.attention_mask, 1)
    of_heads = net.op("Mul", batch, net.ints(HEADS))
    bias = net.op("Reshape", bias, net.op("Concat", of_heads, net.ints(1), total, axis=0))
    x, mask = net.embedded(), net.added_mask()
    for layer in range(LAYERS):
        h = layer_norm(net, x)
        qkv = net.op("Add", net.linear(h, 3 * WIDTH), net.weight(3 * WIDTH, fan_in=9))
        new = net.size(qkv, 1)
        shape = net.op("Concat", net.size(qkv, 0), new, net.ints(HEADS, 3, DEPTH), axis=0)
        parted = net.op("Reshape", qkv, shape)
        q, k, v = (
            net.op("Transpose", net.op("Gather", parted, net.constant(i, dtype=np.int64), axis=3), perm=[0, 2, 1, 3])
            for i in range(3)
        )
        keys, values = net.appended(layer, k, v)
        rest = net.ints(-1, DEPTH)
        q, keys, values = (
            net.op("Reshape", part, net.op("Concat", of_heads, rest, axis=0)) for part in (q, keys, values)
        )
        product = net.op("MatMul", q, net.op("Transpose", keys, perm=[0, 2, 1]))
        scores = net.op("Add", net.op("Mul", product, net.constant(DEPTH**-0.5)), bias)
        whole = net.op("Concat", batch, net.ints(HEADS), new, net.ints(-1), axis=0)
        weights = net.op("Softmax", net.op("Add", net.op("Reshape", scores, whole), mask), axis=-1)
        flat = net.op("Reshape", weights, net.op("Concat", of_heads, new, net.ints(-1), axis=0))
        made = net.op("MatMul", flat, values)
        made = net.op("Reshape", made, net.op("Concat", batch, net.ints(HEADS), new, net.ints(DEPTH), axis=0))
        x = net.op("Add", x, net.linear(net.joined(str(made)), WIDTH))
        x = net.op("Add", x, mlp(net, layer_norm(net, x)))
    return net.ends(layer_norm(net, x))


def multi_query() -> DecoderNet:
    """As Falcon: one head of keys, which the product repeats, and one norm for attention and MLP."""
    net = DecoderNet(17, 1)
    cos, sin = net.cos_and_sin(net.positions())
    x, mask = net.embedded(), net.added_mask()
    for layer in range(LAYERS):
        h = layer_norm(net, x)
        qkv = net.linear(h, WIDTH + 2 * DEPTH)
        shape = net.op("Concat", net.size(qkv, 0), net.size(qkv, 1), net.ints(HEADS + 2, DEPTH), axis=0)
        parted = net.op("Reshape", qkv, shape)
        q = net.op("Transpose", net.op("Slice", parted, net.ints(0), net.ints(-2), net.ints(2)), perm=[0, 2, 1, 3])
        by_head = net.op("Transpose", parted, perm=[2, 0, 1, 3])
        k, v = (
            net.op("Transpose", net.op("GatherND", by_head, net.constant([[place]], dtype=np.int64)), perm=[1, 0, 2, 3])
            for place in (-2, -1)
        )
        q, k = (net.rotated(part, cos, sin) for part in (q, k))
        keys, values = net.appended(layer, k, v)
        scores = net.op("Div", net.op("MatMul", q, net.op("Transpose", keys, perm=[0, 1, 3, 2])), net.constant(4.0))
        made = net.op("MatMul", net.op("Softmax", net.op("Add", scores, mask), axis=-1), values)
        x = net.op("Add", x, net.op("Add", net.linear(net.joined(str(made)), WIDTH), mlp(net, h)))
    return net.ends(layer_norm(net, x))


def cross_attention() -> DecoderNet:
    """As T5 and Whisper: behind attention to the tokens, one to keys and values of an encoder, which stay."""
    net = DecoderNet(17, HEADS)
    table = net.constant(net._rng.standard_normal((POSITIONS, WIDTH)).astype(np.float32) / 4, "positions")
    x = net.op("Add", net.embedded(), net.op("Gather", table, net.positions()))
    mask = net.added_mask()
    seen = np.ones((BATCH, ENCODED), np.int64)
    seen[1, 3:] = 0
    seen_of = net.input("encoder_attention_mask", values=seen, declared=["batch", "encoded"])
    hidden = net.op("Sub", net.constant(1.0), net.op("Cast", seen_of, to=onnx.TensorProto.FLOAT))
    encoded = net.op("Mul", net.op("Unsqueeze", hidden, net.ints(1, 2)), net.constant(np.finfo(np.float32).min))
    for layer in range(LAYERS):
        h = layer_norm(net, x)
        q, k, v = (net.parted(net.linear(h, WIDTH), HEADS) for _ in range(3))
        x = net.op("Add", x, net.linear(net.joined(net.attended(layer, q, k, v, mask)), WIDTH))
        keys, values = (
            net.input(
                f"past_key_values.{layer}.encoder.{kind}", BATCH, HEADS, ENCODED, DEPTH,
                declared=["batch", HEADS, "encoded", DEPTH],
            )
            for kind in ("key", "value")
        )  # fmt: skip
        q = net.parted(net.linear(layer_norm(net, x), WIDTH), HEADS)
        scores = net.op("MatMul", q, net.op("Transpose", keys, perm=[0, 1, 3, 2]))
        made = net.op("MatMul", net.op("Softmax", net.op("Add", scores, encoded), axis=-1), values)
        x = net.op("Add", x, net.linear(net.joined(str(made)), WIDTH))
        x = net.op("Add", x, mlp(net, layer_norm(net, x)))
    return net.ends(layer_norm(net, x))


def fixed_cache() -> DecoderNet:
    """Operators of opset 24: new tokens are written to a cache with room for all, of which the first ones count."""
    net = DecoderNet(24)
    room = 12
    starts = net.input("write_indices", values=np.array([PAST, PAST - 2]), declared=["batch"])
    ends = net.input("nonpad_kv_seqlen", values=np.array([PAST, PAST - 2]) + NEW, declared=["batch"])
    x = net.embedded()
    for layer in range(LAYERS):
        q = net.parted(net.linear(x, HEADS * DEPTH), HEADS)
        k, v = (net.parted(net.linear(x, net.kv_heads * DEPTH), net.kv_heads) for _ in range(2))
        presents = []
        for kind, new in (("key", k), ("value", v)):
            shape = (BATCH, net.kv_heads, room, DEPTH)
            past = net.input(f"cache.{layer}.{kind}", *shape, declared=["batch", net.kv_heads, room, DEPTH])
            name = f"cache.{layer}.{kind}.after"
            net.output(name, "batch", net.kv_heads, room, DEPTH)  # type: ignore[arg-type]
            presents.append(net.op("TensorScatter", past, new, starts, axis=-2, name=name))
        made = net._fresh("attention")
        inputs = [q, *presents, "", "", "", ends]
        net._nodes.append(onnx.helper.make_node("Attention", inputs, [made], name=made, is_causal=1))
        x = net.op("Add", x, net.linear(net.joined(made), WIDTH))
    return net.ends(x)


def layer_norm(net: DecoderNet, x: str) -> str:
    return str(net.op("LayerNormalization", x, net.scale_of(), net.weight(WIDTH, fan_in=9), axis=-1, epsilon=1e-5))


def mlp(net: DecoderNet, x: str) -> str:
    hidden = net.linear(x, HIDDEN)
    inner = net.op("Erf", net.op("Mul", hidden, net.constant(0.5**0.5)))
    hidden = net.op("Mul", net.op("Mul", hidden, net.op("Add", inner, net.constant(1.0))), net.constant(0.5))
    return net.linear(str(hidden), WIDTH, HIDDEN)


FAMILIES = {
    "partial rotary": partial_rotary, "part is all": lambda: partial_rotary(DEPTH), "alibi": alibi,
    "multi-query": multi_query, "encoder": cross_attention,
}  # fmt: skip
