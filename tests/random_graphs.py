"""Random graphs that are valid by construction, out of the habits of convolutional networks and transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from nets import Net

__all__ = ["RandomGraph", "graphs"]

TO_THE_END = 2**63 - 1


@dataclass(frozen=True)
class Value:
    """A tensor ``[N, C, H, W]`` or ``[N, T, C]``."""

    name: str
    shape: tuple[int, ...]

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 4

    @property
    def width(self) -> int:
        return self.shape[1] if self.is_image else self.shape[-1]


class RandomGraph(Net):
    """A graph that grows by one random block at a time.

    Attributes:
        trace: what was built, for reports of failures.
        dynamic: whether the batch is a symbol in the file.
    """

    def __init__(self, draw: st.DrawFn) -> None:
        super().__init__(opset=draw(st.sampled_from([20, 21, 23])))
        self.draw = draw
        self.trace: list[str] = []
        self.dynamic = draw(st.booleans())
        self.tensors: list[Value] = []
        self.ids = 0

    # Choices.

    def pick(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def chance(self) -> bool:
        return bool(self.draw(st.booleans()))

    def width_for(self, *divisors: int) -> int:
        """A width that all of ``divisors`` divide."""
        step = int(np.lcm.reduce([1, *divisors]))
        return step * self.draw(st.integers(1, max(1, 24 // step)))

    def divisor(self, n: int) -> int:
        return int(self.pick(*[d for d in range(1, n + 1) if n % d == 0]))

    # Parts.

    def shape_constant(self, x: Value, *sizes: int) -> str:
        """The target of a reshape: numbers, ``0`` or ``-1`` for one of them, or the batch computed by Shape."""
        target = list(sizes)
        forms = ["numbers", "-1"] if not self.dynamic else ["-1 first", "computed"]
        form = self.pick(*forms)
        if form == "-1":
            target[self.draw(st.integers(0, len(target) - 1))] = -1
        elif form == "-1 first":
            target[0] = -1
        elif form == "computed":
            batch = self.op("Gather", self.op("Shape", x.name), self.constant([0]))
            return str(self.op("Concat", batch, self.constant(sizes[1:]), axis=0))
        return self.constant(target)

    def reshape(self, x: Value, *sizes: int) -> Value:
        return Value(self.op("Reshape", x.name, self.shape_constant(x, *sizes)), sizes)

    def transpose(self, x: Value, *perm: int) -> Value:
        return Value(self.op("Transpose", x.name, perm=perm), tuple(x.shape[p] for p in perm))

    def to_width(self, x: Value, width: int) -> Value:
        """A plain layer to another width."""
        if x.is_image:
            return Value(self.conv(x.name, x.width, width), (x.shape[0], width, *x.shape[2:]))
        return Value(self.dense(x.name, x.width, width), (*x.shape[:2], width))

    def partner(self, x: Value) -> Value | None:
        """Another tensor of the pool that differs in its width only."""
        others = [o for o in self.tensors if self.with_width(o, "", 1).shape == self.with_width(x, "", 1).shape]
        return self.pick(*others) if others else None

    def along(self, x: Value) -> int:
        """The axis of features."""
        return 1 if x.is_image else 2

    def with_width(self, x: Value, name: str, width: int) -> Value:
        shape = list(x.shape)
        shape[self.along(x)] = width
        return Value(name, tuple(shape))

    # Blocks for any tensor.

    def layer(self, x: Value) -> Value:
        return self.to_width(x, self.width_for())

    def activation(self, x: Value) -> Value:
        kind = self.pick("Relu", "Sigmoid", "HardSwish", "Clip", "Gelu", "PRelu", "Swish", "Identity", "Dropout", "Elu")
        if kind == "PRelu":
            slope = self.weight(x.width, *([1, 1] if x.is_image else []), fan_in=16)
            return Value(self.op("PRelu", x.name, slope), x.shape)
        if kind == "Swish":
            return Value(self.op("Mul", x.name, self.op("Sigmoid", x.name)), x.shape)
        if kind == "Gelu":
            half = self.op("Mul", x.name, self.constant(0.5))
            inner = self.op("Add", self.op("Erf", self.op("Div", x.name, self.constant(2**0.5))), self.constant(1.0))
            return Value(self.op("Mul", half, inner), x.shape)
        return Value(self.op(kind, x.name), x.shape)

    def residual(self, x: Value) -> Value:
        other = self.partner(x)
        if other is None:
            return self.activation(x)
        if other.width != x.width:
            other = self.to_width(other, x.width)
        kind = self.pick("Add", "Add", "Sub", "Mul", "Sum", "Max")
        return Value(self.op(kind, *[v.name for v in self.shuffled(x, other)]), x.shape)

    def shuffled(self, *values: Value) -> list[Value]:
        return list(self.draw(st.permutations(values)))

    def concat(self, x: Value) -> Value:
        others = [o for o in (self.partner(x) for _ in range(self.draw(st.integers(1, 2)))) if o is not None]
        parts = self.shuffled(x, *others)
        axis = self.along(x) - (len(x.shape) if self.chance() else 0)
        name = self.op("Concat", *[p.name for p in parts], axis=axis)
        return self.with_width(x, name, sum(p.width for p in parts))

    def split(self, x: Value) -> Value:
        """Split, treat the parts apart, join or add them again."""
        count = self.divisor(x.width)
        count = count if 1 < count <= 4 else 1
        axis = self.along(x)
        if count == 1:
            first = self.draw(st.integers(1, x.width))
            sizes = [first, x.width - first] if first < x.width else [x.width]
        else:
            sizes = [x.width // count] * count
        if len(sizes) == 1:
            return self.activation(x)
        if count > 1 and self.chance():
            names = self.op("Split", x.name, outputs=len(sizes), axis=axis, num_outputs=len(sizes))
        else:
            names = self.op("Split", x.name, self.constant(sizes), outputs=len(sizes), axis=axis)
        parts = [self.with_width(x, name, size) for name, size in zip(names, sizes, strict=True)]
        treated = [self.layer(p) if self.chance() else p for p in parts]
        if len({p.width for p in treated}) == 1 and self.chance():
            return Value(
                self.op(self.pick("Sum", "Mul") if len(treated) == 2 else "Sum", *[p.name for p in treated]),
                treated[0].shape,
            )
        name = self.op("Concat", *[p.name for p in self.shuffled(*treated)], axis=axis)
        return self.with_width(x, name, sum(p.width for p in treated))

    def slice(self, x: Value) -> Value:
        axis = self.draw(st.integers(1, len(x.shape) - 1))
        size = x.shape[axis]
        start = self.draw(st.integers(0, size - 1))
        stop = self.draw(st.integers(start + 1, size))
        step = self.pick(1, 1, 1, 2)
        taken = len(range(start, stop, step))
        first = start - size if start and self.chance() else start
        last = stop
        if stop == size:
            last = self.pick(size, TO_THE_END, 2**31 - 1)
        elif self.chance():
            last = stop - size
        stated = axis - len(x.shape) if self.chance() else axis
        arguments = [self.constant([v]) for v in (first, last, stated, step)]
        name = self.op("Slice", x.name, *arguments[: 4 if step != 1 or self.chance() else 3])
        shape = list(x.shape)
        shape[axis] = taken
        return Value(name, tuple(shape))

    def scale(self, x: Value) -> Value:
        """LayerScale, or a learned bias."""
        form = [x.width, 1, 1] if x.is_image else [x.width]
        values = self.constant(self._rng.uniform(0.5, 1.5, form))
        return Value(self.op(self.pick("Mul", "Add", "Sub", "Div"), x.name, values), x.shape)

    def shared(self, x: Value) -> Value:
        """One weight, applied twice."""
        h = self.to_width(x, x.width)
        weight = self._nodes[-1].input[1]
        h = Value(self.op("Relu", h.name), h.shape)
        if x.is_image:
            return Value(self.op("Conv", h.name, weight, pads=[0] * 4), h.shape)
        return Value(self.op("MatMul", h.name, weight), h.shape)

    def measured(self, x: Value) -> Value:
        """A reshape to the shape of the tensor itself, or an expansion to it."""
        shape = self.op("Shape", x.name)
        if self.chance():
            return Value(self.op("Reshape", x.name, shape), x.shape)
        ones = self.op("ConstantOfShape", shape)
        return Value(self.op("Add", x.name, ones), x.shape)

    def where(self, x: Value) -> Value:
        condition = self.op("Greater", x.name, self.constant(0.0))
        other = x.name if self.chance() else self.constant(0.25)
        return Value(self.op("Where", condition, self.op("Neg", x.name), other), x.shape)

    def gate(self, x: Value) -> Value:
        """Squeeze and excitation, over pixels or over positions."""
        inner = self.width_for()
        if x.is_image:
            mean = (
                self.op("GlobalAveragePool", x.name)
                if self.chance()
                else self.op("ReduceMean", x.name, self.constant([2, 3]))
            )
            h = self.op("Relu", self.conv(mean, x.width, inner))
            h = self.conv(h, inner, x.width)
        else:
            mean = self.op("ReduceMean", x.name, self.constant([1]), keepdims=1)
            h = self.dense(self.op("Relu", self.dense(mean, x.width, inner)), inner, x.width)
        return Value(self.op("Mul", x.name, self.op("Sigmoid", h)), x.shape)

    def reversed(self, x: Value) -> Value:
        axis = self.along(x)
        arguments = [self.constant([v]) for v in (-1, -(2**63), axis, -1)]
        return Value(self.op("Slice", x.name, *arguments), x.shape)

    # Blocks for images.

    def conv_block(self, x: Value) -> Value:
        kernel, stride = self.pick(1, 3), self.pick(1, 1, 2)
        group = self.divisor(x.width)
        width = self.width_for(group)
        bias = self.constant(self._rng.normal(size=width)) if self.chance() else ""
        weight = self.weight(width, x.width // group, kernel, kernel, fan_in=x.width // group * kernel**2)
        inputs = [x.name, weight, *([bias] if bias else [])]
        name = self.op("Conv", *inputs, group=group, strides=[stride] * 2, pads=[kernel // 2] * 4)
        spatial = [-(-n // stride) for n in x.shape[2:]]
        return Value(name, (x.shape[0], width, *spatial))

    def depthwise(self, x: Value) -> Value:
        name = self.conv(x.name, x.width, x.width * self.pick(1, 1, 2), 3, group=x.width)
        width = self._initializers[f"{name}.weight"].dims[0]
        return self.with_width(x, name, width)

    def conv_transpose(self, x: Value) -> Value:
        if x.shape[2] * x.shape[3] > 64:
            return self.conv_block(x)
        group = self.divisor(x.width)
        each = self.draw(st.integers(1, 6))
        weight = self.weight(x.width, each, 2, 2, fan_in=x.width // group)
        name = self.op("ConvTranspose", x.name, weight, group=group, strides=[2, 2])
        return Value(name, (x.shape[0], group * each, 2 * x.shape[2], 2 * x.shape[3]))

    def batch_norm(self, x: Value) -> Value:
        values = [self._rng.uniform(0.5, 1.5, x.width) for _ in range(4)]
        if self.chance():
            values = [np.ones(x.width), np.zeros(x.width)] * 2
            values[2], values[3] = values[1], values[0]
        return Value(self.op("BatchNormalization", x.name, *[self.constant(v) for v in values]), x.shape)

    def group_norm(self, x: Value) -> Value:
        groups = self.divisor(x.width)
        parameters = self.constant(self._rng.uniform(0.5, 1.5, x.width)), self.constant(np.zeros(x.width))
        if groups == x.width and self.chance():
            return Value(self.op("InstanceNormalization", x.name, *parameters), x.shape)
        if self.opset >= 21 and self.chance():
            return Value(self.op("GroupNormalization", x.name, *parameters, num_groups=groups), x.shape)
        flat = self.reshape(x, x.shape[0], groups, x.width // groups * x.shape[2] * x.shape[3])
        inner = self.op(
            "InstanceNormalization", flat.name, self.constant(np.ones(groups)), self.constant(np.zeros(groups))
        )
        h = self.reshape(Value(inner, flat.shape), *x.shape)
        return Value(self.op("Mul", h.name, self.constant(self._rng.uniform(0.5, 1.5, (x.width, 1, 1)))), x.shape)

    def pool(self, x: Value) -> Value:
        if min(x.shape[2:]) < 2:
            return Value(self.op("GlobalMaxPool", x.name), (*x.shape[:2], 1, 1))
        name = self.op(self.pick("MaxPool", "AveragePool"), x.name, kernel_shape=[2, 2], strides=[2, 2])
        return Value(name, (*x.shape[:2], x.shape[2] // 2, x.shape[3] // 2))

    def resize(self, x: Value) -> Value:
        if x.shape[2] * x.shape[3] > 64:
            return self.pool(x)
        shape = (*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3])
        if self.chance() or self.dynamic:
            arguments = ["", self.constant([1.0, 1.0, 2.0, 2.0])]
        else:
            arguments = ["", "", self.constant(list(shape))]
        return Value(self.op("Resize", x.name, *arguments, mode="nearest"), shape)

    def shuffle(self, x: Value) -> Value:
        groups = self.divisor(x.width)
        n, c, height, width = x.shape
        h = self.transpose(self.reshape(x, n, groups, c // groups, height, width), 0, 2, 1, 3, 4)
        return self.reshape(h, *x.shape)

    def depth_to_space(self, x: Value) -> Value:
        n, c, height, width = x.shape
        if c % 4 == 0 and height * width <= 64:
            name = self.op("DepthToSpace", x.name, blocksize=2, mode=self.pick("DCR", "CRD"))
            return Value(name, (n, c // 4, 2 * height, 2 * width))
        if height % 2 == 0 and width % 2 == 0:
            return Value(self.op("SpaceToDepth", x.name, blocksize=2), (n, 4 * c, height // 2, width // 2))
        return self.activation(x)

    def pad(self, x: Value) -> Value:
        before, after = (self.draw(st.integers(0, 4)) for _ in range(2))
        pads = [0, before, 0, 0, 0, after, 0, 0]
        return self.with_width(x, self.op("Pad", x.name, self.constant(pads)), x.width + before + after)

    def tokens_of(self, x: Value) -> Value:
        n, c, height, width = x.shape
        return self.transpose(self.reshape(x, n, c, height * width), 0, 2, 1)

    def window(self, x: Value) -> Value:
        """MobileViT's unfolding: patches become positions, and back."""
        n, c, height, width = x.shape
        if height % 2 or width % 2 or self.dynamic:
            return self.activation(x)
        h = self.reshape(x, n * c * height // 2, 2, width // 2, 2)
        h = self.transpose(h, 0, 2, 1, 3)
        h = self.reshape(h, n, c, height * width // 4, 4)
        h = self.transpose(h, 0, 3, 2, 1)
        h = self.reshape(h, 4 * n, height * width // 4, c)
        h = self.to_width(h, c)
        h = self.reshape(h, n, 4, height * width // 4, c)
        h = self.transpose(h, 0, 3, 2, 1)
        h = self.reshape(h, n * c * height // 2, width // 2, 2, 2)
        h = self.transpose(h, 0, 2, 1, 3)
        return self.reshape(h, *x.shape)

    # Blocks for sequences.

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

    ANY = (
        layer, layer, layer, activation, residual, residual, concat, split, slice, scale, shared, measured, where, gate,
        reversed,
    )  # fmt: skip
    IMAGES = (
        conv_block, conv_block, depthwise, conv_transpose, batch_norm, group_norm, pool, resize, shuffle,
        depth_to_space, pad, tokens_of, window,
    )  # fmt: skip
    SEQUENCES = (
        layer_norm, mlp, split_gate, attention, attention, attention, class_token, positions, token_mixing, conv1d,
        recurrent, einsum, per_head, gemm, linear_attention, image_of, gathered,
    )  # fmt: skip

    # The whole.

    def begin(self) -> None:
        batch = 1
        if self.chance():
            shape: tuple[int, ...] = (batch, 3, *self.pick((4, 4), (6, 8), (5, 3)))
        else:
            shape = (batch, self.draw(st.integers(1, 8)), 4)
        declared = ["batch", *shape[1:]] if self.dynamic else None
        if len(shape) == 3 and self.chance():
            ids = self._rng.integers(0, 9, shape[:2])
            self.input("x", values=ids, declared=declared[:2] if declared else None)
            width = self.width_for()
            x = Value(self.op("Gather", self.weight(9, width, fan_in=1), "x"), (*shape[:2], width))
        else:
            x = Value(self.input("x", *shape, declared=declared), shape)
        for _ in range(2):
            x = self.to_width(x, self.width_for(2))
            x = Value(self.op("Relu", x.name), x.shape)
        self.tensors.append(x)

    def grow(self) -> None:
        recent = self.tensors[-3:]
        x: Value = self.pick(*recent)
        if int(np.prod(x.shape)) > 1500:
            x = self.tensors[0]
        blocks: tuple[Callable[[RandomGraph, Value], Value], ...]
        blocks = self.ANY + (self.IMAGES if x.is_image else self.SEQUENCES)
        block = self.pick(*blocks)
        result = block(self, x)
        self.trace.append(f"{block.__name__} {list(x.shape)} -> {list(result.shape)}")
        self.tensors.append(result)

    def end(self) -> None:
        """Heads on the last tensor and on some others; a hidden tensor may be an output as it is."""
        chosen = [self.tensors[-1], *[self.pick(*self.tensors) for _ in range(self.draw(st.integers(0, 2)))]]
        for i, x in enumerate(dict.fromkeys(chosen)):
            form = self.pick("head", "head", "pooled", "hidden") if i else self.pick("head", "head", "pooled")
            if form == "hidden":
                self.output(self.op("Identity", x.name))
                continue
            h = self.to_width(Value(self.op("Relu", x.name), x.shape), self.width_for())
            h = Value(self.op("Relu", h.name), h.shape)
            if form == "head":
                self.output(self.to_width(h, 2).name)
                continue
            axes = [2, 3] if h.is_image else [1]
            mean = self.op("ReduceMean", h.name, self.constant(axes), keepdims=0)
            flat = self.op("Flatten", mean, axis=self.pick(1, -1))
            weight = self.weight(2, h.width, fan_in=h.width)
            self.output(self.op("Gemm", flat, weight, self.constant(np.zeros(2)), transB=1))


@st.composite
def graphs(draw: st.DrawFn, blocks: int = 8) -> RandomGraph:
    """A random graph of up to so many blocks between its first layers and its heads."""
    graph = RandomGraph(draw)
    graph.begin()
    for _ in range(draw(st.integers(1, blocks))):
        graph.grow()
    graph.end()
    return graph
