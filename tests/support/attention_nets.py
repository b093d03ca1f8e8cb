"""A layer of attention between sparse layers, as exporters spell it."""

from __future__ import annotations

import numpy as np
from sparse_nets import SparseNet

from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.backends.lowering.specs import Attention

__all__ = ["BATCH", "DEPTH", "HEADS", "TOKENS", "WIDTH", "AttentionNet", "attentions_of"]

BATCH, TOKENS, HEADS, DEPTH = 2, 21, 3, 4
WIDTH = HEADS * DEPTH


class AttentionNet(SparseNet):
    """A layer of attention between sparse layers, spelled in one of many ways."""

    def __init__(self, opset: int = 17, tokens: int = TOKENS) -> None:
        super().__init__(opset)
        self.tokens = tokens
        stem = self.dense(self.input("x", BATCH, tokens, 5, declared=["n", tokens, 5]), 5, WIDTH, name="stem")
        self.x = str(self.op("Relu", stem))

    def parted(self, value: str, turned: bool = False) -> str:
        """[n, heads, tokens, depth], or the last two axes exchanged."""
        shape = self.constant([0, self.tokens, HEADS, DEPTH], dtype=np.int64)
        perm = [0, 2, 3, 1] if turned else [0, 2, 1, 3]
        return str(self.op("Transpose", self.op("Reshape", value, shape), perm=perm))

    def projections(self) -> tuple[str, str, str]:
        q, k, v = (self.op("Add", self.dense(self.x, WIDTH, WIDTH), self.weight(WIDTH, fan_in=1)) for _ in range(3))
        return q, k, v

    def attend(self, q: str, k: str, v: str, mask: str = "", nan_to_zero: bool = False) -> str:
        scores = self.op("MatMul", q, k, name="scores")
        if mask:
            scores = self.op("Add", scores, mask)
        weights = self.op("Softmax", scores, name="softmax", axis=-1)
        if nan_to_zero:
            weights = self.op("Where", self.op("IsNaN", weights), self.constant(0.0), weights)
        return str(self.op("MatMul", weights, v, name="weighed"))

    def joined(self, value: str, *shape: int) -> str:
        turned = self.op("Transpose", value, perm=[0, 2, 1, 3])
        return str(self.op("Reshape", turned, self.constant(shape or [0, 0, WIDTH], dtype=np.int64), name="joined"))

    def ends(self, value: str) -> AttentionNet:
        self.output(self.dense(value, WIDTH, 7, name="head"))
        return self


def attentions_of(program: CpuProgram) -> list[Attention]:
    steps = [step for part in program.parts if isinstance(part, RegionProgram) for step in part.region.steps]
    return [step.spec for step in steps if isinstance(step.spec, Attention)]
