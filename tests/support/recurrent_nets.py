"""LSTM, GRU and RNN nodes with sparse weights, and what exporters put around them."""

from __future__ import annotations

from typing import Any

import numpy as np
from nets import Array, Net

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


class RecurrentNet(Net):
    """A net whose recurrent layers have weights of ``density``."""

    def __init__(self, density: float = 0.3, seed: int = 0) -> None:
        super().__init__(opset=17, seed=seed)
        self.density = density

    def sparse(self, *shape: int, name: str = "") -> str:
        """Weights that are mostly zeros; of a density of zero all but one are."""
        kept = self._rng.random(shape) < self.density
        kept.flat[0] = True
        return self.constant((self._rng.standard_normal(shape) * kept / shape[-1] ** 0.5).astype(np.float32), name)

    def layer(
        self,
        kind: str,
        x: str,
        features: int,
        hidden: int,
        *,
        directions: int = 1,
        has_bias: bool = True,
        lengths: str = "",
        first: tuple[str, ...] = (),
        outputs: str = "y",
        **attrs: Any,
    ) -> list[str]:
        """A layer; the names of its outputs, empty for those that ``outputs`` (some of "y", "h" and "c") leaves out."""
        name = self._fresh(kind.lower())
        gates = GATES[kind]
        weights = self.sparse(directions, gates * hidden, features, name=f"{name}.w")
        recurrent = self.sparse(directions, gates * hidden, hidden, name=f"{name}.r")
        bias = ""
        if has_bias:
            values = self._rng.standard_normal((directions, 2 * gates * hidden)) / 4
            bias = self.constant(values.astype(np.float32), f"{name}.b")
        if directions == 2:
            attrs["direction"] = "bidirectional"
        inputs = (x, weights, recurrent, bias, lengths, *first)
        made = self.op(kind, *inputs, name=name, outputs=3 if kind == "LSTM" else 2, hidden_size=hidden, **attrs)
        kept = [made_name if letter in outputs else "" for made_name, letter in zip(made, "yhc", strict=False)]
        self._nodes[-1].output[:] = kept
        return kept

    def stacked(self, kind: str, features: int, hidden: int, *, steps: Any, batch: Any, layers: int = 2, both: bool =
                False, feeds: tuple[int, int] = (5, 2)) -> None:  # fmt: skip
        """Layers one above the other as torch exports them, with ``x`` and ``out``; sizes may be names."""
        x = self.input("x", *feeds, features, declared=[steps, batch, features])
        directions = 2 if both else 1
        extra = {"linear_before_reset": 1} if kind == "GRU" else {}
        for number in range(layers):
            (y, *_) = self.layer(kind, x, features, hidden, directions=directions, **extra)
            if both:
                moved = self.op("Transpose", y, perm=[0, 2, 1, 3])
                x = self.op("Reshape", moved, self.constant(np.array([0, 0, -1])))
            else:
                x = self.op("Squeeze", y, self.constant(np.array([1])))
            features = directions * hidden
            if number == layers - 1:
                self.output(x)


def random(shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
