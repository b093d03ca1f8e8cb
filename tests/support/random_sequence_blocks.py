"""Blocks of random graphs for sequences: the habits of transformers and recurrent networks."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from random_blocks import TO_THE_END, Blocks, Value

__all__ = ["SequenceBlocks"]


class SequenceBlocks(Blocks):
    """Blocks that take a tensor ``[N, T, C]``; some give an image."""

    def layer_norm(self, x: Value) -> Value:
        form = self.pick("LayerNormalization", "primitives", "rms", *(["RMSNormalization"] if self.opset >= 23 else []))
        gamma = self.constant(self._rng.uniform(0.5, 1.5, x.width))
        if form == "LayerNormalization":
            return Value(self.op(form, x.name, gamma, self.constant(np.zeros(x.width)), axis=-1), x.shape)
        if form == "RMSNormalization":
            return Value(self.op(form, x.name, gamma, axis=-1), x.shape)
        last = self.constant([-1])
        centred = x.name if form == "rms" else self.op("Sub", x.name, self.op("ReduceMean", x.name, last))
        variance = self.op("ReduceMean", self.op("Mul", centred, centred), last)
        root = self.op("Sqrt", self.op("Add", variance, self.constant(1e-5)))
        return Value(self.op("Mul", self.op("Div", centred, root), gamma), x.shape)

    def mlp(self, x: Value) -> Value:
        inner = self.width_for()
        if self.chance():
            gate = self.op("Sigmoid", self.dense(x.name, x.width, inner))
            h = self.op("Mul", gate, self.dense(x.name, x.width, inner))
        else:
            h = self.op("Relu", self.dense(x.name, x.width, inner))
        return Value(self.dense(h, inner, x.width), x.shape)

    def split_gate(self, x: Value) -> Value:
        """GEGLU: one projection, half of which gates the other half."""
        inner = self.width_for()
        h = self.dense(x.name, x.width, 2 * inner)
        a, b = self.op("Split", h, outputs=2, axis=-1, num_outputs=2)
        return Value(self.op("Mul", a, self.op("Sigmoid", b)), (*x.shape[:2], inner))

    def attention(self, x: Value) -> Value:
        n, length, width = x.shape
        heads, size = self.pick(1, 2, 3, 4), self.pick(2, 4, 6)
        kv_heads = self.divisor(heads)
        value_size = self.pick(size, size, 4)
        widths = [heads * size, kv_heads * size, kv_heads * value_size]
        q, k, v = self.projections(x, widths)
        if self.opset >= 23 and self.chance():
            h = self.fused_attention((q, k, v), heads, kv_heads, size)
        else:
            h = self.spelled_attention((q, k, v), heads, kv_heads, size, value_size)
        return self.to_width(Value(h.name, (n, length, heads * value_size)), width)

    def projections(self, x: Value, widths: list[int]) -> tuple[Value, Value, Value]:
        if self.chance():
            h = self.dense(x.name, x.width, sum(widths))
            if self.chance():
                h = self.op("Add", h, self.constant(self._rng.normal(size=sum(widths))))
            if len(set(widths)) == 1 and not self.dynamic and self.chance():
                stacked = self.reshape(Value(h, (*x.shape[:2], sum(widths))), *x.shape[:2], 3, widths[0])
                names = [self.op("Gather", stacked.name, self.constant(i), axis=2) for i in range(3)]
            else:
                names = self.op("Split", h, self.constant(widths), outputs=3, axis=-1)
        else:
            names = [self.dense(x.name, x.width, width) for width in widths]
        q, k, v = (Value(name, (*x.shape[:2], width)) for name, width in zip(names, widths, strict=True))
        return q, k, v

    def fused_attention(self, qkv: tuple[Value, Value, Value], heads: int, kv_heads: int, size: int) -> Value:
        attrs: dict[str, Any] = {"scale": float(size**-0.5)} if self.chance() else {}
        if self.chance():
            counts = {"q_num_heads": heads, "kv_num_heads": kv_heads}
            return Value(self.op("Attention", *[t.name for t in qkv], **counts, **attrs), ())
        q, k, v = (self.split_heads(t, n) for t, n in zip(qkv, (heads, kv_heads, kv_heads), strict=True))
        h = Value(self.op("Attention", q.name, k.name, v.name, **attrs), (*q.shape[:3], v.shape[3]))
        return self.join_heads(h)

    def split_heads(self, x: Value, heads: int) -> Value:
        n, length, width = x.shape
        return self.transpose(self.reshape(x, n, length, heads, width // heads), 0, 2, 1, 3)

    def join_heads(self, x: Value) -> Value:
        n, heads, length, size = x.shape
        return self.reshape(self.transpose(x, 0, 2, 1, 3), n, length, heads * size)

    def spelled_attention(
        self, qkv: tuple[Value, Value, Value], heads: int, kv_heads: int, size: int, value_size: int
    ) -> Value:
        q, k, v = (self.split_heads(t, n) for t, n in zip(qkv, (heads, kv_heads, kv_heads), strict=True))
        if size % 2 == 0 and self.chance():
            q, k = self.rotated(q, k)
        if kv_heads < heads:
            k, v = (self.repeated(t, heads // kv_heads) for t in (k, v))
        where = self.pick("scores", "queries", "both", "none")
        if where == "queries":
            q = Value(self.op("Mul", q.name, self.constant(size**-0.5)), q.shape)
        kt = self.transpose(k, 0, 1, 3, 2)
        if where == "both":
            root = self.constant(size**-0.25)
            q, kt = (Value(self.op("Mul", t.name, root), t.shape) for t in (q, kt))
        if self.chance():
            scores = self.op("MatMul", q.name, kt.name)
        else:
            scores = self.op("Einsum", q.name, kt.name, equation="bhqd,bhdk->bhqk")
        if where == "scores":
            scores = self.op("Div", scores, self.constant(size**0.5))
        if self.chance():
            mask = np.triu(np.full((q.shape[2], q.shape[2]), -10.0), 1)
            scores = self.op("Add", scores, self.constant(mask[None, None]))
        h = Value(self.op("MatMul", self.op("Softmax", scores), v.name), (*q.shape[:3], value_size))
        return self.join_heads(h)

    def rotated(self, *values: Value) -> list[Value]:
        """By tables that all heads share."""
        _, _, length, size = values[0].shape
        angles = np.arange(length)[:, None] * 10000.0 ** (-np.arange(size // 2) / (size // 2))
        angles = np.concatenate([angles, angles], -1)
        cos, sin = self.constant(np.cos(angles)), self.constant(np.sin(angles))
        out: list[Value] = []
        for x in values:
            low = self.op("Slice", x.name, *[self.constant([v]) for v in (0, size // 2, 3)])
            high = self.op("Slice", x.name, *[self.constant([v]) for v in (size // 2, TO_THE_END, 3)])
            half = self.op("Concat", self.op("Neg", high), low, axis=-1)
            out.append(Value(self.op("Add", self.op("Mul", x.name, cos), self.op("Mul", half, sin)), x.shape))
        return out

    def repeated(self, x: Value, times: int) -> Value:
        n, heads, length, size = x.shape
        h = self.op("Unsqueeze", x.name, self.constant([2]))
        if self.chance():
            h = self.op("Tile", h, self.constant([1, 1, times, 1, 1]))
        else:
            # A batch of one in the target leaves any batch alone.
            h = self.op("Expand", h, self.constant([1, heads, times, length, size]))
        return self.reshape(Value(h, (n, heads, times, length, size)), n, heads * times, length, size)

    def class_token(self, x: Value) -> Value:
        token = self.weight(1, 1, x.width, fan_in=1)
        if self.dynamic:
            batch = self.op("Gather", self.op("Shape", x.name), self.constant([0]))
            token = self.op("Expand", token, self.op("Concat", batch, self.constant([1, 1]), axis=0))
        elif x.shape[0] > 1:
            token = self.op("Expand", token, self.constant([x.shape[0], 1, 1]))
        name = self.op("Concat", token, x.name, axis=1)
        return Value(name, (x.shape[0], x.shape[1] + 1, x.width))

    def positions(self, x: Value) -> Value:
        table = self.weight(1, x.shape[1] + 2, x.width, fan_in=1)
        rows = self.op("Slice", table, *[self.constant([v]) for v in (0, x.shape[1], 1)])
        return Value(self.op("Add", x.name, rows), x.shape)

    def token_mixing(self, x: Value) -> Value:
        _, length, _ = x.shape
        inner = self.draw(st.integers(1, 8))
        if self.chance():
            up, down = self.weight(inner, length, 1, fan_in=length), self.weight(length, inner, 1, fan_in=inner)
            h = self.op("Conv", self.op("Relu", self.op("Conv", x.name, up)), down)
        else:
            h = self.op("Transpose", x.name, perm=[0, 2, 1])
            h = self.dense(self.op("Relu", self.dense(h, length, inner)), inner, length)
            h = self.op("Transpose", h, perm=[0, 2, 1])
        return Value(self.op("Add", x.name, h), x.shape)

    def conv1d(self, x: Value) -> Value:
        """A convolution over positions, grouped or not."""
        h = self.transpose(x, 0, 2, 1)
        group = self.divisor(x.width)
        width = self.width_for(group)
        weight = self.weight(width, x.width // group, 3, fan_in=3 * x.width // group)
        name = self.op("Conv", h.name, weight, group=group, pads=[1, 1])
        return self.transpose(Value(name, (x.shape[0], width, x.shape[1])), 0, 2, 1)

    def recurrent(self, x: Value) -> Value:
        kind = self.pick("LSTM", "GRU", "RNN")
        gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
        directions, hidden = self.pick(1, 2), self.draw(st.integers(1, 6))
        n, length, width = x.shape
        weights = (
            self.weight(directions, gates * hidden, width, fan_in=width),
            self.weight(directions, gates * hidden, hidden, fan_in=hidden),
        )
        bias = [self.weight(directions, 2 * gates * hidden, fan_in=9)] if self.chance() else []
        h = self.op("Transpose", x.name, perm=[1, 0, 2])
        direction = "bidirectional" if directions == 2 else "forward"
        y = self.op(kind, h, *weights, *bias, hidden_size=hidden, direction=direction, outputs=2)[0]
        y = Value(self.op("Transpose", y, perm=[2, 0, 1, 3]), (n, length, directions, hidden))
        return self.reshape(y, n, length, directions * hidden)

    def einsum(self, x: Value) -> Value:
        width = self.width_for()
        equation, shape = self.pick(("btc,co->bto", (x.width, width)), ("...c,oc->...o", (width, x.width)))
        weight = self.weight(*shape, fan_in=x.width)
        return Value(self.op("Einsum", x.name, weight, equation=equation), (*x.shape[:2], width))

    def per_head(self, x: Value) -> Value:
        """A weight for each head."""
        heads, out = self.divisor(x.width), self.draw(st.integers(1, 6))
        size = x.width // heads
        h = self.split_heads(x, heads)
        h = Value(self.op("MatMul", h.name, self.weight(heads, size, out, fan_in=size)), (*h.shape[:3], out))
        return self.join_heads(h)

    def gemm(self, x: Value) -> Value:
        n, length, width = x.shape
        out = self.width_for()
        flat = self.op("Reshape", x.name, self.constant([-1, width]))
        transposed = self.chance()
        weight = self.weight(*((out, width) if transposed else (width, out)), fan_in=width)
        bias = [self.constant(self._rng.normal(size=out))] if self.chance() else []
        h = Value(self.op("Gemm", flat, weight, *bias, transB=int(transposed)), (n * length, out))
        if self.dynamic:
            return Value(self.op("Reshape", h.name, self.constant([-1, length, out])), (n, length, out))
        return self.reshape(h, n, length, out)

    def linear_attention(self, x: Value) -> Value:
        inner = self.width_for()
        q, k = (self.op("Sigmoid", self.dense(x.name, x.width, inner)) for _ in range(2))
        context = self.op("MatMul", self.op("Transpose", k, perm=[0, 2, 1]), x.name)
        return Value(self.op("MatMul", q, context), x.shape)

    def image_of(self, x: Value) -> Value:
        n, length, width = x.shape
        height = self.divisor(length)
        return self.reshape(self.transpose(x, 0, 2, 1), n, width, height, length // height)

    def gathered(self, x: Value) -> Value:
        rows = self.draw(st.lists(st.integers(0, x.shape[1] - 1), min_size=1, max_size=6))
        return Value(self.op("Gather", x.name, self.constant(rows), axis=1), (x.shape[0], len(rows), x.width))

    SEQUENCES = (
        layer_norm, mlp, split_gate, attention, attention, attention, class_token, positions, token_mixing, conv1d,
        recurrent, einsum, per_head, gemm, linear_attention, image_of, gathered,
    )  # fmt: skip
