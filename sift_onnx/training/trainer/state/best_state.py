"""The best state of a run so far, and whether it still gets better."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch

__all__ = ["BestState"]


@dataclass
class BestState:
    """What validation liked best.

    Of states with as many active weights the one of the highest accuracy is better, or of the lowest loss where there
    is no accuracy. A state with fewer active weights is always better: a model that is pruned by and by is best while
    it is dense, and that is not what was asked for.

    Attributes:
        step: after which it was; None before the first validation.
        score: its accuracy, or its loss with the sign changed.
        nnz: active weights of all masks.
        figures: of that validation.
        state: full tensors by name; empty where only its score matters.
        without_gain: validations since.
    """

    step: int | None = None
    score: float = 0.0
    nnz: int = 0
    figures: dict[str, Any] = field(default_factory=dict)
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    without_gain: int = 0

    def note(
        self, step: int, figures: Mapping[str, Any], nnz: int, state: Callable[[], dict[str, torch.Tensor]]
    ) -> None:
        """Take in a validation.

        Args:
            step: after which it was.
            figures: ``loss``, and ``accuracy`` where there is one.
            nnz: active weights.
            state: gives the state, if it is kept.
        """
        score = figures.get("accuracy", -figures["loss"])
        if self.step is not None and (nnz, -score) >= (self.nnz, -self.score):
            self.without_gain += 1
            return
        self.step, self.score, self.nnz, self.figures = step, score, nnz, dict(figures)
        self.state, self.without_gain = state(), 0

    def saved(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        for name, value in saved.items():
            setattr(self, name, value)
