"""Weights that a run keeps beside those that it trains: their average, and the best of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from sift_onnx.training import sparse
from sift_onnx.training.trainer.state.best_state import BestState
from sift_onnx.training.trainer.state.full_state import full_state, load_full_model
from sift_onnx.training.trainer.state.weight_average import WeightAverage

__all__ = ["KeptWeights"]


class KeptWeights:
    """An average and the best state of a model.

    Attributes:
        best: of the validations so far.
    """

    def __init__(
        self,
        module: nn.Module,
        sparsity: sparse.SparsityAlgorithm | None,
        *,
        decay: float | None,
        keeps_best: bool,
    ) -> None:
        """Start from the model as it is.

        Args:
            module: the model.
            sparsity: the algorithm at work on it; None if nothing is sparse.
            decay: of the average in a step; None for no average.
            keeps_best: whether the state that did best is kept, and not only how well it did.
        """
        self.best = BestState()
        self._module, self._sparsity, self._keeps_best = module, sparsity, keeps_best
        self._average = None if decay is None else WeightAverage(decay, self._state())

    def follow_step(self) -> None:
        """Take in the weights after a step."""
        if self._average is not None:
            self._average.update(self._state())

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """The module with the average of its weights, if there is one."""
        if self._average is None:
            yield
            return
        own = _copy(self._state())
        load_full_model(self._module, self._averaged_state())
        try:
            yield
        finally:
            load_full_model(self._module, own)

    def note(self, step: int, figures: Mapping[str, Any], nnz: int) -> None:
        """Take in a validation of the module as it is.

        Args:
            step: after which it was.
            figures: ``loss``, and ``accuracy`` where there is one.
            nnz: active weights.
        """
        self.best.note(step, figures, nnz, lambda: _copy(self._state()) if self._keeps_best else {})

    def has_best(self) -> bool:
        """Whether the best state is what the run has come to."""
        return self._keeps_best and self.best.step is not None

    def final(self) -> dict[str, torch.Tensor]:
        """What the run has come to: the best state, or the average, or the weights; with FSDP2 a collective call."""
        if self.has_best():
            return self.best.state
        return self._state() if self._average is None else self._averaged_state()

    def saved(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"best": self.best.saved(), "average": None if self._average is None else self._average.saved()}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.best.load(saved["best"])
        if self._average is not None:
            self._average.load(saved["average"])

    def _averaged_state(self) -> dict[str, torch.Tensor]:
        assert self._average is not None
        return self._average.masked({} if self._sparsity is None else self._sparsity.masks())

    def _state(self) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = full_state(self._module.state_dict())
        return state


def _copy(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A state that does not change with the module: on a CPU, full tensors may be those of the module."""
    return {name: tensor.clone() for name, tensor in state.items()}
