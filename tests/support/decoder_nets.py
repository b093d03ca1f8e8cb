"""Small decoders whose cache is among inputs and outputs, as exporters spell them."""

from __future__ import annotations

import numpy as np
import onnx
from sparse_nets import SparseNet

__all__ = ["DEPTH", "HEADS", "KV_HEADS", "LAYERS", "POSITIONS", "SPELLINGS", "VOCABULARY", "DecoderNet", "decoder"]

VOCABULARY, WIDTH, LAYERS, HEADS, KV_HEADS, DEPTH, HIDDEN, POSITIONS = 48, 64, 2, 4, 2, 16, 80, 64
LEAST = float(np.finfo(np.float32).min)
BATCH, NEW, PAST = 2, 3, 4


class DecoderNet(SparseNet):
    """A decoder under construction."""

    def __init__(self, opset: int, kv_heads: int = KV_HEADS) -> None:
        super().__init__(opset)
        self.kv_heads = kv_heads
        ones = np.ones((BATCH, NEW), np.int64)
        self.ids = self.input("input_ids", values=ones, declared=["batch", "sequence"])
        mask = np.ones((BATCH, PAST + NEW), np.int64)
        self.attention_mask = self.input("attention_mask", values=mask, declared=["batch", "total"])
        self.pasts = []
        for layer in range(LAYERS):
            shape = (BATCH, kv_heads, PAST, DEPTH)
            declared = ["batch", kv_heads, "past", DEPTH]
            self.pasts.append([
                self.input(f"past_key_values.{layer}.{kind}", *shape, declared=declared) for kind in ("key", "value")
            ])  # fmt: skip

    def positions(self) -> str:
        values = np.tile(np.arange(PAST, PAST + NEW), (BATCH, 1))
        return self.input("position_ids", values=values, declared=["batch", "sequence"])

    def ints(self, *values: int) -> str:
        return self.constant(values, dtype=np.int64)

    def size(self, value: str, axis: int) -> str:
        return str(self.op("Gather", self.op("Shape", value), self.ints(axis)))

    def linear(self, x: str, outputs: int, inputs: int = WIDTH) -> str:
        return self.dense(x, inputs, outputs)

    def scale_of(self, width: int = WIDTH) -> str:
        return self.constant(1 + 0.1 * self._rng.standard_normal(width).astype(np.float32))

    def embedded(self) -> str:
        table = self.constant(self._rng.standard_normal((VOCABULARY, WIDTH)).astype(np.float32), "embedding")
        return str(self.op("Gather", table, self.ids))

    def rms_norm(self, x: str) -> str:
        square = self.op("Pow", x, self.constant(2.0))
        mean = self.op("ReduceMean", square, self.ints(-1), keepdims=1)
        root = self.op("Sqrt", self.op("Add", mean, self.constant(1e-6)))
        return str(self.op("Mul", self.scale_of(), self.op("Mul", x, self.op("Reciprocal", root))))

    def cos_and_sin(self, positions: str) -> list[str]:
        inverse = self.constant(1 / 100 ** (np.arange(DEPTH // 2, dtype=np.float32) / (DEPTH // 2)))
        places = self.op("Cast", self.op("Unsqueeze", positions, self.ints(2)), to=onnx.TensorProto.FLOAT)
        angles = self.op("Mul", places, inverse)
        both = self.op("Concat", angles, angles, axis=-1)
        return [str(self.op("Unsqueeze", self.op(kind, both), self.ints(1))) for kind in ("Cos", "Sin")]

    def tables(self) -> list[str]:
        inverse = 1 / 100 ** (np.arange(DEPTH // 2) / (DEPTH // 2))
        angles = np.outer(np.arange(POSITIONS), inverse)
        return [
            self.constant(values.astype(np.float32), name)
            for name, values in (("cos_cache", np.cos(angles)), ("sin_cache", np.sin(angles)))
        ]

    def rotated(self, x: str, cos: str, sin: str) -> str:
        half, axes = self.ints(DEPTH // 2), self.ints(3)
        first = self.op("Slice", x, self.ints(0), half, axes)
        second = self.op("Slice", x, half, self.ints(2**63 - 1), axes)
        turned = self.op("Concat", self.op("Neg", second), first, axis=-1)
        return str(self.op("Add", self.op("Mul", x, cos), self.op("Mul", turned, sin)))

    def parted(self, x: str, heads: int) -> str:
        shape = self.op("Concat", self.size(x, 0), self.size(x, 1), self.ints(heads, DEPTH), axis=0)
        return str(self.op("Transpose", self.op("Reshape", x, shape), perm=[0, 2, 1, 3]))

    def joined(self, x: str) -> str:
        turned = self.op("Transpose", x, perm=[0, 2, 1, 3])
        return str(self.op("Reshape", turned, self.ints(0, 0, HEADS * DEPTH)))

    def repeated(self, x: str) -> str:
        """Heads of keys for all heads of queries, as transformers repeats them."""
        if self.kv_heads == HEADS:
            return x
        batch, length = self.size(x, 0), self.size(x, 2)
        groups = HEADS // self.kv_heads
        target = self.op("Concat", batch, self.ints(self.kv_heads, groups), length, self.ints(DEPTH), axis=0)
        more = self.op("Expand", self.op("Unsqueeze", x, self.ints(2)), target)
        joined = self.op("Concat", batch, self.ints(HEADS), length, self.ints(DEPTH), axis=0)
        return str(self.op("Reshape", more, joined))

    def visible(self) -> str:
        """[batch, 1, new, total]: which keys a query sees."""
        new, total = self.size(self.ids, 1), self.size(self.attention_mask, 1)
        zero, one = self.constant(0, dtype=np.int64), self.constant(1, dtype=np.int64)
        keys = self.op("Range", zero, self.op("Squeeze", total), one)
        first = self.op("Squeeze", self.op("Sub", total, new))
        queries = self.op("Range", first, self.op("Squeeze", total), one)
        causal = self.op("LessOrEqual", keys, self.op("Unsqueeze", queries, self.ints(1)))
        tokens = self.op("Cast", self.attention_mask, to=onnx.TensorProto.BOOL)
        return str(self.op("And", causal, self.op("Unsqueeze", tokens, self.ints(1, 2))))

    def added_mask(self) -> str:
        return str(self.op("Where", self.visible(), self.constant(0.0), self.constant(LEAST)))

    def attended(self, layer: int, q: str, k: str, v: str, mask: str) -> str:
        """[batch, heads, new, depth], with the cache of the layer."""
        keys, values = self.appended(layer, k, v)
        turned = self.op("Transpose", self.repeated(keys), perm=[0, 1, 3, 2])
        scores = self.op("Mul", self.op("MatMul", q, turned), self.constant(DEPTH**-0.5))
        weights = self.op("Softmax", self.op("Add", scores, mask), axis=-1)
        return str(self.op("MatMul", weights, self.repeated(values)))

    def attended_below_a_cap(self, layer: int, q: str, k: str, v: str, mask: str) -> str:
        """Scores that are capped before they are masked, as Gemma has them."""
        keys, values = self.appended(layer, k, v)
        scores = self.op("MatMul", q, self.op("Transpose", self.repeated(keys), perm=[0, 1, 3, 2]))
        capped = self.op("Tanh", self.op("Div", self.op("Mul", scores, self.constant(0.25)), self.constant(2.0)))
        masked = self.op("Add", self.op("Mul", capped, self.constant(2.0)), mask)
        return str(self.op("MatMul", self.op("Softmax", masked, axis=-1), self.repeated(values)))

    def attended_by_torch(self, layer: int, q: str, k: str, v: str, mask: str) -> str:
        """The same as torch writes it: a root of the scale on either side, keys turned as one batch of matrices."""
        keys, values = (self.repeated(part) for part in self.appended(layer, k, v))
        sizes = self.op("Shape", keys)
        batch, length, depth = (
            self.op("Slice", sizes, self.ints(a), self.ints(b)) for a, b in ((0, 2), (2, 3), (3, 4))
        )
        flat = self.op("Reshape", keys, self.op("Concat", self.ints(-1), length, depth, axis=0))
        turned = self.op("Transpose", flat, perm=[0, 2, 1])
        keys = self.op("Reshape", turned, self.op("Concat", batch, depth, length, axis=0))
        q, keys = (self.op("Mul", part, self.constant(DEPTH**-0.25)) for part in (q, keys))
        weights = self.op("Softmax", self.op("Add", self.op("MatMul", q, keys), mask), axis=-1)
        some = self.op("Where", self.op("IsNaN", weights), self.constant(0.0), weights)
        return str(self.op("MatMul", some, values))

    def attended_by_operator(self, layer: int, q: str, k: str, v: str, mask: str) -> str:
        """Attention of opset 23 to keys and values that are concatenated before it."""
        keys, values = (self.repeated(part) for part in self.appended(layer, k, v))
        return str(self.op("Attention", q, keys, values, mask, scale=DEPTH**-0.5))

    def appended(self, layer: int, k: str, v: str) -> list[str]:
        made = []
        for kind, past, new in zip(("key", "value"), self.pasts[layer], (k, v), strict=True):
            name = self.present(layer, kind)
            made.append(str(self.op("Concat", past, new, axis=2, name=name)))
        return made

    def present(self, layer: int, kind: str) -> str:
        name = f"present.{layer}.{kind}"
        self.output(name, "batch", self.kv_heads, "total", DEPTH)  # type: ignore[arg-type]
        return name

    def gated(self, x: str) -> str:
        gate = self.linear(x, HIDDEN)
        gated = self.op("Mul", gate, self.op("Sigmoid", gate))
        return self.linear(str(self.op("Mul", gated, self.linear(x, HIDDEN))), WIDTH, HIDDEN)

    def ends(self, x: str) -> DecoderNet:
        head = self.weight(WIDTH, VOCABULARY, name="head.weight")
        self.output("logits", "batch", "sequence", VOCABULARY)  # type: ignore[arg-type]
        self.op("MatMul", x, head, name="logits")
        return self


def llama(opset: int = 18) -> DecoderNet:
    """RMS normalization, rotation and repeated heads in nodes."""
    net = DecoderNet(opset)
    cos, sin = net.cos_and_sin(net.positions())
    x, mask = net.embedded(), net.added_mask()
    for layer in range(LAYERS):
        h = net.rms_norm(x)
        q = net.rotated(net.parted(net.linear(h, HEADS * DEPTH), HEADS), cos, sin)
        k = net.rotated(net.parted(net.linear(h, KV_HEADS * DEPTH), KV_HEADS), cos, sin)
        v = net.parted(net.linear(h, KV_HEADS * DEPTH), KV_HEADS)
        x = net.op("Add", x, net.linear(net.joined(net.attended(layer, q, k, v, mask)), WIDTH))
        x = net.op("Add", x, net.gated(net.rms_norm(x)))
    return net.ends(net.rms_norm(x))


def torch_17() -> DecoderNet:
    """As :func:`llama`, with attention as torch's exporters write it."""
    net = DecoderNet(17)
    net.attended = net.attended_by_torch  # type: ignore[method-assign]
    return _one_layer(net, net.added_mask())


def capped() -> DecoderNet:
    """As :func:`torch_17`, with scores that are capped."""
    net = DecoderNet(17)
    net.attended = net.attended_below_a_cap  # type: ignore[method-assign]
    return _one_layer(net, net.added_mask())


def torch_23() -> DecoderNet:
    """As torch's exporter writes it at opset 23: angles are computed, and keys concatenated, before the operators."""
    net = DecoderNet(23)
    net.attended = net.attended_by_operator  # type: ignore[method-assign]
    return _one_layer(net, net.visible())


def _one_layer(net: DecoderNet, mask: str) -> DecoderNet:
    inverse = net.constant(1 / 100 ** (np.arange(DEPTH // 2, dtype=np.float32) / (DEPTH // 2)))
    places = net.op("Cast", net.op("Unsqueeze", net.positions(), net.ints(2)), to=onnx.TensorProto.FLOAT)
    angles = net.op("Mul", places, inverse)
    cos, sin = net.op("Cos", angles), net.op("Sin", angles)
    if net.opset < 23:
        cos, sin = (net.op("Unsqueeze", net.op("Concat", x, x, axis=-1), net.ints(1)) for x in (cos, sin))
    x = net.embedded()
    for layer in range(LAYERS):
        q = net.parted(net.linear(x, HEADS * DEPTH), HEADS)
        k, v = (net.parted(net.linear(x, KV_HEADS * DEPTH), KV_HEADS) for _ in range(2))
        if net.opset < 23:
            q, k = (net.rotated(part, cos, sin) for part in (q, k))
        else:
            q, k = (net.op("RotaryEmbedding", part, cos, sin) for part in (q, k))
        x = net.op("Add", x, net.linear(net.joined(net.attended(layer, q, k, v, mask)), WIDTH))
    return net.ends(x)


def gpt2(opset: int = 17) -> DecoderNet:
    """One product for queries, keys and values, a table of positions, GELU by tanh."""
    net = DecoderNet(opset, HEADS)
    table = net.constant(net._rng.standard_normal((POSITIONS, WIDTH)).astype(np.float32) / 4, "positions")
    x = net.op("Add", net.embedded(), net.op("Gather", table, net.positions()))
    mask = net.added_mask()
    for layer in range(LAYERS):
        h = net.op("LayerNormalization", x, net.scale_of(), net.weight(WIDTH, fan_in=9), axis=-1, epsilon=1e-5)
        qkv = net.op("Add", net.linear(h, 3 * WIDTH), net.weight(3 * WIDTH, fan_in=9))
        parts = net.op("Split", qkv, net.ints(WIDTH, WIDTH, WIDTH), axis=2, outputs=3)
        q, k, v = (net.parted(part, HEADS) for part in parts)
        x = net.op("Add", net.linear(net.joined(net.attended(layer, q, k, v, mask)), WIDTH), x)
        h = net.op("LayerNormalization", x, net.scale_of(), net.weight(WIDTH, fan_in=9), axis=-1, epsilon=1e-5)
        h = net.linear(h, HIDDEN)
        cube = net.op("Mul", net.op("Pow", h, net.constant(3.0)), net.constant(0.044715))
        inner = net.op("Tanh", net.op("Mul", net.op("Add", h, cube), net.constant(0.7978845608028654)))
        h = net.op("Mul", net.op("Mul", h, net.constant(0.5)), net.op("Add", inner, net.constant(1.0)))
        x = net.op("Add", net.linear(h, WIDTH, HIDDEN), x)
    return net.ends(net.op("LayerNormalization", x, net.scale_of(), net.weight(WIDTH, fan_in=9), axis=-1))


def genai(opset: int = 17, **attributes: float) -> DecoderNet:
    """com.microsoft's operators, as onnxruntime-genai's builder writes them; more attributes of its attention."""
    net = DecoderNet(opset)
    cos, sin = net.tables()
    total = net.op("Cast", net.op("Squeeze", net.size(net.attention_mask, 1)), to=onnx.TensorProto.INT32)
    counted = net.op("ReduceSum", net.attention_mask, net.ints(1), keepdims=0)
    last = net.op("Cast", net.op("Sub", counted, net.constant(1, dtype=np.int64)), to=onnx.TensorProto.INT32)
    x = net.embedded()
    h = net.op("SimplifiedLayerNormalization", x, net.scale_of(), axis=-1, epsilon=1e-6, stash_type=1)
    for layer in range(LAYERS):
        q = net.linear(h, HEADS * DEPTH)
        k, v = (net.linear(h, KV_HEADS * DEPTH) for _ in range(2))
        made = net._fresh("attention")
        net._nodes.append(
            onnx.helper.make_node(
                "GroupQueryAttention", [q, k, v, *net.pasts[layer], last, total, cos, sin],
                [made, *(net.present(layer, kind) for kind in ("key", "value"))], name=made, domain="com.microsoft",
                num_heads=HEADS, kv_num_heads=KV_HEADS, do_rotary=1, rotary_interleaved=0, **attributes,
            )
        )  # fmt: skip
        h, x = skip_norm(net, x, net.linear(made, WIDTH))
        h, x = skip_norm(net, x, net.gated(h), is_last=layer == LAYERS - 1)
    return net.ends(h)


def skip_norm(net: DecoderNet, x: str, more: str, is_last: bool = False) -> tuple[str, str]:
    name = net._fresh("norm")
    outputs = [name] if is_last else [name, "", "", f"{name}.sum"]
    net._nodes.append(
        onnx.helper.make_node(
            "SkipSimplifiedLayerNormalization", [x, more, net.scale_of()], outputs, name=name, domain="com.microsoft",
            epsilon=1e-6,
        )
    )  # fmt: skip
    return name, outputs[-1]


def opset23(**attributes: float) -> DecoderNet:
    """Operators of opset 23: RMSNormalization, RotaryEmbedding, Attention with a cache; more attributes of the last."""
    net = DecoderNet(23)
    cos, sin = net.tables()
    positions, x, mask = net.positions(), net.embedded(), net.visible()
    for layer in range(LAYERS):
        h = net.op("RMSNormalization", x, net.scale_of(), axis=-1, epsilon=1e-6)
        q = net.parted(net.linear(h, HEADS * DEPTH), HEADS)
        k, v = (net.parted(net.linear(h, KV_HEADS * DEPTH), KV_HEADS) for _ in range(2))
        q, k = (net.op("RotaryEmbedding", part, cos, sin, positions) for part in (q, k))
        made = net._fresh("attention")
        net._nodes.append(
            onnx.helper.make_node(
                "Attention", [q, k, v, mask, *net.pasts[layer]],
                [made, *(net.present(layer, kind) for kind in ("key", "value"))], name=made, **attributes,
            )
        )  # fmt: skip
        x = net.op("Add", x, net.linear(net.joined(made), WIDTH))
        x = net.op("Add", x, net.gated(net.op("RMSNormalization", x, net.scale_of(), axis=-1, epsilon=1e-6)))
    return net.ends(net.op("RMSNormalization", x, net.scale_of(), axis=-1, epsilon=1e-6))


SPELLINGS = {"llama": llama, "gpt2": gpt2, "genai": genai, "opset23": opset23}


def decoder(spelling: str) -> onnx.ModelProto:
    """A decoder in one of the spellings."""
    return SPELLINGS[spelling]().model()
