"""Blocks of random graphs that suit images and sequences alike, and the parts that all blocks are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from nets import Net

__all__ = ["TO_THE_END", "Blocks", "Value"]

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


class Blocks(Net):
    """A graph whose tensors are in a pool, for blocks to take from.

    Attributes:
        draw: hypothesis's; every choice is made by it.
        trace: what was built, for reports of failures.
        dynamic: whether the batch is a symbol in the file.
        tensors: the pool, in the order in which they were made.
    """

    def __init__(self, draw: st.DrawFn) -> None:
        super().__init__(opset=draw(st.sampled_from([20, 21, 23])))
        self.draw = draw
        self.trace: list[str] = []
        self.dynamic = draw(st.booleans())
        self.tensors: list[Value] = []

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

    # Blocks.

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

    ANY = (
        layer, layer, layer, activation, residual, residual, concat, split, slice, scale, shared, measured, where, gate,
        reversed,
    )  # fmt: skip
