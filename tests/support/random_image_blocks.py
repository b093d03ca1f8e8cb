"""Blocks of random graphs for images: the habits of convolutional networks."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from random_blocks import Blocks, Value

__all__ = ["ImageBlocks"]


class ImageBlocks(Blocks):
    """Blocks that take a tensor ``[N, C, H, W]``; some give a sequence."""

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

    IMAGES = (
        conv_block, conv_block, depthwise, conv_transpose, batch_norm, group_norm, pool, resize, shuffle,
        depth_to_space, pad, tokens_of, window,
    )  # fmt: skip
