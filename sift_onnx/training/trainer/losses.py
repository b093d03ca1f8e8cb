"""Losses: of classification, of next-token prediction, or the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from sift_onnx.datasets.user_functions import load_function
from sift_onnx.errors import UsageError
from sift_onnx.training.trainer.batch import Batch

__all__ = ["Loss", "check_targets", "correct_share", "first_output", "make_loss"]

Loss = Callable[[Any, Batch], torch.Tensor]

# Targets that torch's cross entropy leaves out, by its own default.
_IGNORED = -100
_OF_NUMBERS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "huber": functional.huber_loss,
}


def make_loss(name: str | Callable[[Any, Any], torch.Tensor], label_smoothing: float = 0.0) -> Loss:
    """A loss by name.

    Args:
        name: ``classification``: cross entropy of the first output ``[N, classes, ...]`` and integer targets
            ``[N, ...]``. ``next-token``: cross entropy of the first output ``[N, tokens, vocabulary]`` at each position
            and the next token, of the target ``[N, tokens]`` or, without one, of the first input. ``mse``, ``l1`` and
            ``huber``: of the first output and targets of its shape that are not integers. A function, or
            ``FILE.py:FUNCTION``: ``f(outputs, target)`` gives a tensor of one number, the mean over the batch.
        label_smoothing: of the first two.

    Raises:
        UsageError: there is no such loss.
    """
    if name == "classification":
        return lambda outputs, batch: _classification(outputs, batch, label_smoothing)
    if name == "next-token":
        return lambda outputs, batch: _next_token(outputs, batch, label_smoothing)
    if isinstance(name, str) and name in _OF_NUMBERS:
        return lambda outputs, batch: _regression(name, outputs, batch)
    function = name if callable(name) else load_function(name, "loss")

    def own(outputs: Any, batch: Batch) -> torch.Tensor:
        loss = function(outputs, batch.target)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise UsageError(f"loss {name!r} gives {_kind(loss)}; it has to be a tensor of one number")
        return loss.reshape(())

    return own


def correct_share(name: Any, outputs: Any, batch: Batch) -> float | None:
    """The share of predictions of ``batch`` that are right; None for losses that predict nothing discrete."""
    if name == "classification":
        scores, target = first_output(outputs), batch.target
    elif name == "next-token":
        tokens = batch.target if batch.target is not None else batch.inputs[0]
        scores, target = first_output(outputs)[:, :-1].transpose(1, 2), tokens[:, 1:]
    else:
        return None
    counted = target != _IGNORED
    right = (scores.argmax(1) == target) & counted
    return float(right.sum() / counted.sum().clamp(min=1))


def check_targets(target: torch.Tensor, classes: int) -> None:
    """Hold integer targets against the number of classes.

    Raises:
        UsageError: there is one that the model has no score for.
    """
    wrong = (target != _IGNORED) & ((target < 0) | (target >= classes))
    if bool(wrong.any()):
        found = int(target[wrong][0])
        raise UsageError(f"the data has the target {found}; the model has {classes} classes, 0 to {classes - 1}")


def _classification(outputs: Any, batch: Batch, label_smoothing: float) -> torch.Tensor:
    scores, target = first_output(outputs), batch.target
    if not isinstance(target, torch.Tensor) or target.is_floating_point() or target.is_complex():
        raise UsageError(f"loss 'classification' needs integer targets, the data has {_kind(target)}")
    if scores.dim() < 2 or (scores.shape[0], *scores.shape[2:]) != tuple(target.shape):
        raise UsageError(
            f"loss 'classification' compares scores [N, classes, ...] with targets [N, ...]; the model gives "
            f"{list(scores.shape)}, the data has {list(target.shape)}"
        )
    return _cross_entropy(scores, target.long(), label_smoothing)


def _next_token(outputs: Any, batch: Batch, label_smoothing: float) -> torch.Tensor:
    scores = first_output(outputs)
    tokens = batch.target if batch.target is not None else batch.inputs[0]
    if not isinstance(tokens, torch.Tensor) or tokens.is_floating_point():
        raise UsageError(f"loss 'next-token' needs integer tokens, the data has {_kind(tokens)}")
    if scores.dim() != 3 or tuple(scores.shape[:2]) != tuple(tokens.shape):
        raise UsageError(
            f"loss 'next-token' compares scores [N, tokens, vocabulary] with tokens [N, tokens]; the model gives "
            f"{list(scores.shape)}, the data has {list(tokens.shape)}"
        )
    if tokens.shape[1] < 2:
        raise UsageError("loss 'next-token' needs sequences of two tokens or more")
    return _cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten().long(), label_smoothing)


def _regression(name: str, outputs: Any, batch: Batch) -> torch.Tensor:
    found, target = first_output(outputs), batch.target
    if not isinstance(target, torch.Tensor) or not target.is_floating_point():
        raise UsageError(f"loss {name!r} needs floating-point targets, the data has {_kind(target)}")
    # One number for each example may have an axis of its own. Nothing else is broadcast.
    if [n for n in target.shape if n != 1] != [n for n in found.shape if n != 1]:
        raise UsageError(
            f"loss {name!r} compares outputs and targets of one shape; the model gives {list(found.shape)}, the data "
            f"has {list(target.shape)}"
        )
    return _OF_NUMBERS[name](found.float(), target.reshape(found.shape).float())


def _cross_entropy(scores: torch.Tensor, target: torch.Tensor, label_smoothing: float) -> torch.Tensor:
    # On a GPU a wrong target stops the device, and looking for it would stop the queue.
    if target.device.type == "cpu":
        check_targets(target, scores.shape[1])
    return functional.cross_entropy(scores.float(), target, label_smoothing=label_smoothing)


def first_output(outputs: Any) -> torch.Tensor:
    """The first output of a model.

    Raises:
        UsageError: it is not a tensor.
    """
    first = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
    if not isinstance(first, torch.Tensor):
        raise UsageError(f"the first output of the model is {_kind(first)}; losses need a tensor there")
    return first


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return "none" if value is None else f"a {type(value).__name__}"
