"""Sparse nets of small integers, of which selections must be the same as onnxruntime's, value by value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime

from sift_onnx.backends.cpu.run.program import CpuProgram

BATCHES = [1, 3, 17]
CHANNELS, SIZE, TOKENS, WIDTH = 7, 5, 6, 9


class ExactNet(SparseNet):
    """Weights are small integers: sums of integers are exact in any order, and many of them are equal."""

    def weight(self, *shape: int, name: str = "", fan_in: int = 0) -> str:
        values = self._rng.integers(-1, 2, shape) * (self._rng.random(shape) < 0.5)
        return str(self.constant(values.astype(np.float32), name))


def exact_feeds(program: CpuProgram, batch: int, **sizes: int) -> dict[str, Any]:
    rng = np.random.default_rng(batch)
    known = {"n": batch, **sizes}
    shapes = {spec.name: [known.get(str(size), size) for size in spec.shape] for spec in program.inputs}
    return {name: rng.integers(-3, 4, shape).astype(np.float32) for name, shape in shapes.items()}


def assert_exact(net: SparseNet, batches: Sequence[int] = BATCHES) -> CpuProgram:
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for batch in batches:
        assert_same_as_onnxruntime(model, exact_feeds(program, batch), program, tolerance=0)
    return program


def integers(net: SparseNet, *values: int) -> str:
    return str(net.constant(values, dtype=np.int64))


def tokens(net: SparseNet, width: int = WIDTH, length: Any = TOKENS) -> str:
    return str(net.dense(net.input("x", 2, TOKENS, 5, declared=["n", length, 5]), 5, width, name="before"))
