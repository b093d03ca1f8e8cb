"""Operators on values or channels by themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sift_onnx.backends.lowering.specs.activations import NO_ACTIVATION, Activation
from sift_onnx.backends.lowering.weights import Floats

__all__ = ["BinaryFunction", "ChannelCombine", "ChannelScale", "Elementwise", "UnaryFunction"]

# Of one operand, and no activations.
UnaryFunction = Literal["square_root", "reciprocal", "exponential", "softplus", "logarithm", "sine", "cosine"]

# Of two operands. Comparisons are 1 where they hold, and 0. The last two have the first operand where the second one is
# not zero, or is, and a number elsewhere.
BinaryFunction = Literal[
    "divide", "maximum", "minimum", "power", "less", "less_or_equal", "greater", "greater_or_equal", "equal",
    "where_true", "where_false",
]  # fmt: skip


@dataclass(frozen=True)
class Elementwise:
    """activation(x kind second), or activation(function(x)); ``first`` is the activation of x alone.

    Attributes:
        kind: what is done.
        activation: of the result.
        broadcasts: whether an operand may be one pixel high or wide where the other one is not.
        repeats: whether the second operand has one position where the first one, and the result, have more; axes that
            it lacks are in front.
        fill: the number of ``where_true`` and ``where_false``.
    """

    kind: Literal["first", "add", "subtract", "multiply", BinaryFunction, UnaryFunction]
    activation: Activation = NO_ACTIVATION
    broadcasts: bool = False
    repeats: bool = False
    fill: float = 0.0


@dataclass(frozen=True)
class ChannelCombine:
    """activation(x kind second), with a value of the second operand, [n, c, 1, 1], for each channel of each image."""

    kind: Literal["add", "subtract", "multiply"]
    activation: Activation = NO_ACTIVATION


@dataclass(frozen=True)
class ChannelScale:
    """activation(x * scale + shift), both [c]; the slopes, [c], are those of a leaky activation by channel."""

    scale: Floats = field(repr=False)
    shift: Floats = field(repr=False)
    activation: Activation = NO_ACTIVATION
    slopes: Floats | None = field(default=None, repr=False)
