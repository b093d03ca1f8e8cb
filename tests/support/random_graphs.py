"""Random graphs that are valid by construction, out of the habits of convolutional networks and transformers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import strategies as st
from random_blocks import Value
from random_image_blocks import ImageBlocks
from random_sequence_blocks import SequenceBlocks

__all__ = ["HALVES", "RandomGraph", "graphs"]

# A test of many random graphs in two halves, the second of which is left to the slow tests.
HALVES = pytest.mark.parametrize("half", ["first", pytest.param("second", marks=pytest.mark.slow)])


class RandomGraph(ImageBlocks, SequenceBlocks):
    """A graph that grows by one random block at a time."""

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
