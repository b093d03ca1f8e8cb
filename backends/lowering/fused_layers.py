"""Convolutions and products of com.microsoft, with what onnxruntime's optimizer of graphs fuses to them, as ONNX's own.

FusedConv adds a tensor and has an activation, FusedGemm an activation; FusedMatMul turns the last two axes of its
operands, and is times a number.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sift_onnx.backends.lowering.node_rewriter import NodeRewriter

__all__ = ["FusedLayers"]

_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_GEMM = ("alpha", "beta", "transA", "transB")
# Attributes of the activations that onnxruntime fuses; the limits of Clip are inputs.
_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Relu": (), "Sigmoid": (), "Tanh": (), "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Clip": (),
}  # fmt: skip

# An operator, its operands besides the first, and its attributes.
_Step = tuple[str, tuple[str, ...], dict[str, Any]]


class FusedLayers(NodeRewriter):
    """Writes one layer and what is fused to it."""

    # FusedConv

    def takes_conv(self) -> bool:
        """Whether the activation is one of ONNX's."""
        numbers = {"Clip": 2, "HardSigmoid": 2, "LeakyRelu": 1}.get(self._activation, 0)
        return self._activation in ("", *_ACTIVATIONS) and len(self._attribute("activation_params", ())) >= numbers

    def write_conv(self) -> None:
        """``activation(conv + z)``."""
        self._place_next()
        kept = {name: value for name in _CONV if (value := self._attribute(name, None)) is not None}
        steps: list[_Step] = []
        if self._input(3):
            steps.append(("Add", (self._input(3),), {}))
        if self._activation:
            steps.append(self._step(list(self._attribute("activation_params", ()))))
        self._chain("Conv", [name for name in (*self._node.input[:2], self._input(2)) if name], kept, steps)

    # FusedGemm

    def takes_gemm(self) -> bool:
        """Whether the activation is one of ONNX's without limits."""
        return self._activation in _ACTIVATIONS and self._activation != "Clip"

    def write_gemm(self) -> None:
        """``activation(gemm)``."""
        self._place_next()
        kept = {name: value for name in _GEMM if (value := self._attribute(name, None)) is not None}
        defaults = {"LeakyRelu": (0.01,), "HardSigmoid": (0.2, 0.5)}.get(self._activation, ())
        names = _ACTIVATIONS[self._activation]
        numbers = [self._attribute(f"activation_{name}", own) for name, own in zip(names, defaults, strict=True)]
        operands = [name for name in (*self._node.input[:2], self._input(2)) if name]
        self._chain("Gemm", operands, kept, [self._step(numbers)])

    # FusedMatMul

    def takes_matmul(self) -> bool:
        """Whether the first axes stay, and the axes of what is turned are counted."""
        if self._attribute("transBatchA", 0) or self._attribute("transBatchB", 0):
            return False
        turned = [i for i, name in enumerate(("transA", "transB")) if self._attribute(name, 0)]
        dims = [self.graph.dims(self._input(position)) for position in turned]
        return all(own is not None and len(own) > 1 for own in dims)

    def write_matmul(self) -> None:
        """``alpha * (a @ b)``."""
        self._place_next()
        operands = []
        for position, name in enumerate(("transA", "transB")):
            operand = self._input(position)
            if self._attribute(name, 0):
                *order, rows, columns = range(len(self.graph.dims(operand) or ()))
                operand = self._made("Transpose", [operand], f"operand {position}", perm=[*order, columns, rows])
            operands.append(operand)
        alpha = float(self._attribute("alpha", 1.0))
        steps: list[_Step] = []
        if alpha != 1:
            steps.append(("Mul", (self._constant(alpha, "alpha", np.float32),), {}))
        self._chain("MatMul", operands, {}, steps)

    @property
    def _activation(self) -> str:
        found = self._attribute("activation", b"")
        return found.decode() if isinstance(found, bytes) else str(found)

    def _step(self, numbers: list[float]) -> _Step:
        """The activation."""
        if self._activation == "Clip":
            limits = zip(numbers, ("least", "most"), strict=False)
            return "Clip", tuple(self._constant(number, what, np.float32) for number, what in limits), {}
        named = zip(_ACTIVATIONS[self._activation], numbers, strict=False)
        return self._activation, (), {name: float(number) for name, number in named}

    def _chain(
        self,
        op: str,
        operands: list[str],
        attributes: dict[str, Any],
        steps: list[_Step],
    ) -> None:
        """An operator, and others behind it that read its result first; the last one makes the node's result."""
        for own, others, named in steps:
            made = self._made(op, operands, f"before {own}", **attributes)
            op, operands, attributes = own, [made, *others], named
        self._add(op, operands, self._output(0), **attributes)
