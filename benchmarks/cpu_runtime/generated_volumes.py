"""Generated models of videos and of volumes, with 3-D convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from generated import Graph, Shape

__all__ = ["factorized_video", "segmented_volume", "video"]


def _conv(g: Graph, x: str, inputs: int, outputs: int, kernel: Sequence[int] = (3, 3, 3), stride: int = 1) -> str:
    """Padded like ``same``, with a stride along the axes that its kernel has."""
    weight = g.weights(outputs, inputs, *kernel, fan_in=inputs * math.prod(kernel))
    strides = [stride if size > 1 else 1 for size in kernel]
    pads = [size // 2 for size in kernel] * 2
    return g.op("Conv", x, weight, g.constant(np.zeros(outputs)), pads=pads, strides=strides)


def video(g: Graph, width: int, frames: int, side: int) -> tuple[str, Shape]:
    """Residual blocks of kernels over frames and pixels."""
    x = g.op("Relu", _conv(g, "x", 3, width, (3, 5, 5)))
    for stage in range(3):
        outputs = width << stage
        if stage:
            x = g.op("Relu", _conv(g, x, outputs // 2, outputs, stride=2))
        y = _conv(g, g.op("Relu", _conv(g, x, outputs, outputs)), outputs, outputs)
        x = g.op("Relu", g.op("Add", x, y))
    return g.classified(x, width << 2), (3, frames, side, side)


def factorized_video(g: Graph, width: int, frames: int, side: int) -> tuple[str, Shape]:
    """The same, of kernels over pixels and over frames, one after the other."""
    x, inputs = "x", 3
    for stage in range(3):
        outputs = width << stage
        for block in range(2):
            stride = 2 if stage and not block else 1
            between = 27 * inputs * outputs // (9 * inputs + 3 * outputs)
            y = g.op("Relu", _conv(g, x, inputs, between, (1, 3, 3), stride))
            y = _conv(g, y, between, outputs, (3, 1, 1), stride)
            x, inputs = g.op("Relu", g.op("Add", x, y) if block else y), outputs
    return g.classified(x, inputs), (3, frames, side, side)


def segmented_volume(g: Graph, width: int, frames: int, side: int) -> tuple[str, Shape]:
    """A U-Net of three levels with instance normalization."""

    def block(x: str, inputs: int, outputs: int, stride: int = 1) -> str:
        for number in range(2):
            x = _conv(g, x, outputs if number else inputs, outputs, stride=1 if number else stride)
            x = g.op("InstanceNormalization", x, *(g.constant(np.full(outputs, value)) for value in (1, 0)))
            x = g.op("LeakyRelu", x, alpha=0.01)
        return x

    levels = [block("x", 1, width)]
    for level in (1, 2):
        levels.append(block(levels[-1], width << level - 1, width << level, 2))
    x = levels.pop()
    for level in (1, 0):
        outputs = width << level
        weight = g.weights(2 * outputs, outputs, 2, 2, 2, fan_in=2 * outputs)
        x = g.op("ConvTranspose", x, weight, strides=[2, 2, 2])
        x = block(g.op("Concat", x, levels.pop(), axis=1), 2 * outputs, outputs)
    return g.op("Softmax", _conv(g, x, width, 4, (1, 1, 1)), axis=1), (1, frames, side, side)
