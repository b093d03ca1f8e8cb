"""Random networks of volumes."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from volume_nets import VolumeNet

__all__ = ["networks"]

CHANNELS = 4
Value = tuple[str, tuple[int, ...]]


class _Builder:
    """Operators on volumes, drawn one by one, that keep sizes or halve them."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.net = VolumeNet(opset=18, seed=draw(st.integers(0, 99)))
        self.values = [(self.net.volume(CHANNELS, 4, 4, 6, batch=2), (4, 4, 6))]

    def pick(self, options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def layer(self, x: str, sizes: tuple[int, ...]) -> Value:
        kernel = self.pick([(1, 1, 1), (1, 3, 3), (3, 1, 1), (3, 3, 3)])
        group = self.pick([1, 1, 2, CHANNELS])
        return self.net.layer(x, CHANNELS, CHANNELS, kernel, group), sizes

    def unary(self, x: str, sizes: tuple[int, ...]) -> Value:
        return self.net.op(self.pick(["Relu", "Neg", "Sigmoid"]), x), sizes

    def norm(self, x: str, sizes: tuple[int, ...]) -> Value:
        return self.pick([VolumeNet.norm, VolumeNet.instance_norm])(self.net, x, CHANNELS), sizes

    def sum(self, x: str, sizes: tuple[int, ...]) -> Value:
        return self.net.op(self.pick(["Add", "Sub", "Max"]), x, self.other(sizes)), sizes

    def join(self, x: str, sizes: tuple[int, ...]) -> Value:
        both = self.net.op("Concat", x, self.other(sizes), axis=1)
        return self.net.layer(both, 2 * CHANNELS, CHANNELS, (1, 1, 1)), sizes

    def gate(self, x: str, sizes: tuple[int, ...]) -> Value:
        return self.net.op("Mul", x, self.net.op("GlobalAveragePool", x)), sizes

    def pool(self, x: str, sizes: tuple[int, ...]) -> Value:
        kernel = [self.pick([1, 2]) if size > 1 else 1 for size in sizes]
        made = self.net.op(self.pick(["MaxPool", "AveragePool"]), x, kernel_shape=kernel, strides=kernel)
        return made, tuple(size // own for size, own in zip(sizes, kernel, strict=True))

    def turn(self, x: str, sizes: tuple[int, ...]) -> Value:
        return self.net.op("Transpose", x, perm=[0, 1, 3, 2, 4]), (sizes[1], sizes[0], sizes[2])

    def other(self, sizes: tuple[int, ...]) -> str:
        return str(self.pick([name for name, own in self.values if own == sizes]))

    OPERATORS = (layer, layer, layer, unary, norm, sum, join, gate, pool, turn)


@st.composite
def networks(draw: st.DrawFn) -> VolumeNet:
    builder = _Builder(draw)
    for _ in range(draw(st.integers(3, 9))):
        builder.values.append(builder.pick(_Builder.OPERATORS)(builder, *builder.pick(builder.values)))
    names = [name for name, _ in builder.values[1:]]
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)):
        builder.net.output(name)
    return builder.net
