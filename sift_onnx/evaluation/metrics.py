"""Metrics: our own by name, or the user's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sift_onnx.datasets.batches import ArrayBatch
from sift_onnx.datasets.user_functions import load_function
from sift_onnx.errors import UsageError
from sift_onnx.evaluation.task import Predictions, Task, differences_of, predictions_of
from sift_onnx.plugins import first_line

__all__ = ["METRICS", "Metric", "default_metrics", "make_metric"]

METRICS = ("top1", "top5", "loss", "perplexity", "mse", "mae")

Outputs = Sequence[npt.NDArray[Any]]

# Sums of probabilities, in half precision too.
_SUM_TOLERANCE = 1e-2


class Metric(Protocol):
    """A figure over many batches."""

    def update(self, outputs: Outputs, batch: ArrayBatch) -> None:
        """Take in the outputs of a batch, in the model's order."""

    def compute(self) -> float:
        """The figure."""


def default_metrics(task: Task, classes: int) -> tuple[str, ...]:
    """The metrics of a task, where none are chosen."""
    if task == "regression":
        return ("mse", "mae")
    if task == "next-token":
        return ("perplexity", "top1")
    return ("top1", "top5", "loss") if classes > 5 else ("top1", "loss")


def make_metric(name: str, task: Task | None) -> Metric:
    """A metric by name.

    Args:
        name: one of :data:`METRICS`, or ``FILE.py:NAME``. That is either a function ``f(outputs, target)`` that gives
            the mean over a batch, or a class whose objects have ``update(outputs, target)`` and ``compute()``, as
            torchmetrics has them. ``outputs`` is an array, or a list of them where the model has several.
        task: of the model; None where only metrics of the user's own are asked for.

    Raises:
        UsageError: there is no such metric.
    """
    if ".py:" in name:
        return _of_user(name)
    if name not in METRICS:
        raise UsageError(f"metric {name!r} is unknown; choose {', '.join(METRICS)}, or write FILE.py:NAME")
    assert task is not None
    if name in ("mse", "mae"):
        power = 2 if name == "mse" else 1
        return _Mean(lambda output, batch: np.abs(differences_of(output, batch)) ** power)
    if name == "perplexity" and task != "next-token":
        raise UsageError("perplexity is of models that predict the next token; choose loss for classifiers")
    score: Callable[[Predictions], npt.NDArray[Any]] = {
        "top1": lambda found: _ranks(found) < 1,
        "top5": lambda found: _ranks(found) < 5,
    }.get(name, _NegativeLogLikelihood())
    return _Mean(
        lambda output, batch: score(predictions_of(task, output, batch)), math.exp if name == "perplexity" else float
    )


class _Mean:
    """The mean of what a function says of each prediction."""

    def __init__(
        self,
        function: Callable[[npt.NDArray[Any], ArrayBatch], npt.NDArray[Any]],
        finish: Callable[[float], float] = float,
    ) -> None:
        self._function, self._finish = function, finish
        self._sum, self._count = 0.0, 0

    def update(self, outputs: Outputs, batch: ArrayBatch) -> None:
        values = self._function(outputs[0], batch)
        self._sum += float(values.sum(dtype=np.float64))
        self._count += values.size

    def compute(self) -> float:
        if not self._count:
            raise UsageError("the data has no target that counts")
        return self._finish(self._sum / self._count)


def _ranks(found: Predictions) -> npt.NDArray[np.int64]:
    """How many classes come before the right one; of equal scores, the first one leads."""
    rows = np.arange(len(found.target))
    own = found.scores[rows, found.target][:, None]
    before = np.arange(found.scores.shape[1]) < found.target[:, None]
    ranks: npt.NDArray[np.int64] = ((found.scores > own) | ((found.scores == own) & before)).sum(1)
    return ranks


class _NegativeLogLikelihood:
    """Of the right class, in nats; scores are probabilities if the first ones are, and logits otherwise."""

    def __init__(self) -> None:
        self._are_probabilities: bool | None = None

    def __call__(self, found: Predictions) -> npt.NDArray[np.float64]:
        scores = found.scores.astype(np.float64)
        if self._are_probabilities is None and len(scores):
            sums = np.abs(scores.sum(1) - 1)
            self._are_probabilities = bool((scores >= 0).all() and (sums < _SUM_TOLERANCE).all())
        own = scores[np.arange(len(found.target)), found.target]
        if self._are_probabilities:
            return np.asarray(-np.log(np.maximum(own, np.finfo(np.float32).tiny)))
        largest = scores.max(1)
        return np.asarray(largest + np.log(np.exp(scores - largest[:, None]).sum(1)) - own)


class _OfUser:
    """The mean over examples of what the user's function says of batches, or what the user's object computes."""

    def __init__(self, name: str, own: Any) -> None:
        self._name, self._own = name, own
        self._sum, self._count = 0.0, 0

    def update(self, outputs: Outputs, batch: ArrayBatch) -> None:
        given = outputs[0] if len(outputs) == 1 else list(outputs)
        if hasattr(self._own, "update"):
            self._guarded(lambda: self._own.update(given, batch.target))
        else:
            self._sum += self._number(lambda: self._own(given, batch.target)) * batch.size
            self._count += batch.size

    def compute(self) -> float:
        if hasattr(self._own, "update"):
            return self._number(self._own.compute)
        return self._sum / max(self._count, 1)

    def _number(self, call: Callable[[], Any]) -> float:
        found = self._guarded(call)
        try:
            return float(found)
        except (TypeError, ValueError):
            raise UsageError(f"metric {self._name!r} gives a {type(found).__name__}; it has to give a number") from None

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            raise UsageError(f"metric {self._name!r} fails: {first_line(error)}") from error


def _of_user(name: str) -> _OfUser:
    own: Any = load_function(name, "`metric`")
    if isinstance(own, type):
        try:
            own = own()
        except Exception as error:
            raise UsageError(f"metric {name!r} cannot be made: {first_line(error)}") from error
        if not (callable(getattr(own, "update", None)) and callable(getattr(own, "compute", None))):
            raise UsageError(f"metric {name!r} is a class without update(outputs, target) and compute()")
    return _OfUser(name, own)
