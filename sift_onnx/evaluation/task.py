"""What a model's outputs are compared with, found by their shapes."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sift_onnx.datasets.batches import ArrayBatch
from sift_onnx.errors import UsageError

__all__ = ["NoTaskError", "Predictions", "Task", "differences_of", "predictions_of", "task_of"]

Task = Literal["classification", "next-token", "regression"]

# Targets that are left out, as torch's cross entropy does by default.
_IGNORED = -100


class NoTaskError(UsageError):
    """Outputs and targets do not say what they have to do with each other."""


class Predictions:
    """Scores and what they should have been.

    Attributes:
        scores: ``[predictions, classes]``.
        target: ``[predictions]``, the right class of each.
    """

    def __init__(self, scores: npt.NDArray[Any], target: npt.NDArray[np.int64]) -> None:
        counted = target != _IGNORED
        self.scores, self.target = scores[counted].astype(np.float32, copy=False), target[counted]
        classes = scores.shape[1]
        wrong = (self.target < 0) | (self.target >= classes)
        if wrong.any():
            found = int(self.target[wrong][0])
            raise UsageError(f"the data has the target {found}; the model has {classes} classes, 0 to {classes - 1}")


def task_of(output: npt.NDArray[Any], batch: ArrayBatch) -> Task:
    """The task of a model, from its first output and a batch.

    * ``classification``: scores ``[N, classes, ...]`` and integer targets ``[N, ...]``;
    * ``next-token``: scores ``[N, tokens, vocabulary]`` and integer targets ``[N, tokens]``, or none, where the first
      input is such a sequence;
    * ``regression``: targets of the output's shape that are not integers.

    Raises:
        NoTaskError: it is none of these.
    """
    target = batch.target
    sequence = batch.inputs[0] if target is None else target
    if isinstance(target, np.ndarray):
        if target.dtype.kind in "iu" and output.ndim > 1 and (output.shape[0], *output.shape[2:]) == target.shape:
            return "classification"
        if target.dtype.kind == "f" and _like(target, output) is not None:
            return "regression"
    if sequence.dtype.kind in "iu" and output.ndim == 3 and output.shape[:2] == sequence.shape:
        return "next-token"
    has = "no target" if target is None else f"targets {target.dtype} {list(target.shape)}"
    raise NoTaskError(
        f"the model's first output is {list(output.shape)} and the data has {has}: this is neither classification nor "
        "prediction of the next token nor regression; give a metric of your own with `metric='FILE.py:NAME'`"
    )


def predictions_of(task: Task, output: npt.NDArray[Any], batch: ArrayBatch) -> Predictions:
    """The predictions of classes in a batch.

    Raises:
        UsageError: a target has no score, or the task predicts no classes.
    """
    if task == "next-token":
        tokens = batch.inputs[0] if batch.target is None else batch.target
        scores, target = output[:, :-1], tokens[:, 1:]
    elif task == "classification":
        scores, target = np.moveaxis(output, 1, -1), batch.target
    else:
        raise UsageError("targets are numbers and no classes; choose the metrics mse and mae (`metric`)")
    return Predictions(scores.reshape(-1, scores.shape[-1]), np.asarray(target, np.int64).reshape(-1))


def _like(target: npt.NDArray[Any], output: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """``target`` in the output's shape, of which axes of one element may be missing; None if it has another shape."""
    squeezed = [n for n in output.shape[1:] if n != 1]
    if target.shape[:1] == output.shape[:1] and [n for n in target.shape[1:] if n != 1] == squeezed:
        return target.reshape(output.shape)
    return None


def differences_of(output: npt.NDArray[Any], batch: ArrayBatch) -> npt.NDArray[np.float64]:
    """Output less target ``[N, ...]``, of a regression.

    Raises:
        UsageError: the target has another shape.
    """
    target = _like(np.asarray(batch.target), output) if batch.target is not None else None
    if target is None:
        raise UsageError(f"the metrics mse and mae need targets of the output's shape {list(output.shape)}")
    result: npt.NDArray[np.float64] = output.astype(np.float64) - target
    return result
