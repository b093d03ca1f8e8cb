"""Recurrent layers: the steps of an LSTM, GRU or RNN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sift_onnx.backends.lowering.weights import Floats, WeightMatrix

__all__ = ["Cell", "Recurrent", "gate_count"]

# `gru_linear` is a GRU with linear_before_reset=1; `tanh` and `relu` are RNN's.
Cell = Literal["lstm", "gru", "gru_linear", "tanh", "relu"]


@dataclass(frozen=True)
class Recurrent:
    """States h of all steps, from what the input adds to the gates: [steps, batch, directions * gates * hidden].

    The result is [steps, batch, directions * hidden]. Other operands are the first h, and c of an LSTM, each
    [directions, batch, hidden]; without them, states begin as zeros. The mask is the number of steps of each sequence.

    Attributes:
        weights: that multiply the state before, [directions * gates * hidden, hidden], gates as ONNX orders them.
        bias: of that product, one for each row; None is zero.
        cell: what is computed of the gates.
        reversed: of each direction, whether it begins with the last step.
        has_cell_states: whether the result has the states c of an LSTM too, as channels behind all others.
        has_lengths: whether sequences have lengths of their own. Then h is zero from there on, and the result has as
            many channels behind those of h, of states that stay what they were.
    """

    weights: WeightMatrix
    bias: Floats | None
    cell: Cell
    reversed: tuple[bool, ...]
    has_cell_states: bool = False
    has_lengths: bool = False

    @property
    def states(self) -> int:
        """Channels of the states h, of all directions."""
        return len(self.reversed) * self.weights.columns

    @property
    def channels(self) -> int:
        """Of the result."""
        return self.states * (1 + self.has_lengths + self.has_cell_states)


def gate_count(cell: Cell) -> int:
    """How many gates a unit has."""
    return {"lstm": 4, "gru": 3, "gru_linear": 3, "tanh": 1, "relu": 1}[cell]
