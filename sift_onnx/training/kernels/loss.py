"""Losses."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from sift_onnx.training.registry import kernel

__all__: list[str] = []

# A class that no target has.
_NONE_IGNORED = -(2**31)


def _loss(
    log_probabilities: Tensor, target: Tensor, weight: Tensor | None, ignored: int | None, reduction: str
) -> Tensor:
    classes = log_probabilities.movedim(1, -1)
    shape = target.shape
    skipped = _NONE_IGNORED if ignored is None else ignored
    if weight is None:
        weight = torch.ones(classes.shape[-1], dtype=classes.dtype, device=classes.device)
    loss = functional.nll_loss(
        classes.reshape(-1, classes.shape[-1]),
        target.reshape(-1).to(torch.int64),
        weight,
        ignore_index=skipped,
        reduction=reduction,
    )
    return loss.reshape(shape) if reduction == "none" else loss


@kernel("NegativeLogLikelihoodLoss", since=12)
def negative_log_likelihood(
    x: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int | None = None, reduction: str = "mean"
) -> Tensor:
    """``x`` is batch x classes x positions, ``target`` batch x positions; the mean is weighted."""
    return _loss(x, target, weight, ignore_index, reduction)


@kernel("SoftmaxCrossEntropyLoss", since=12)
def softmax_cross_entropy(
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    outputs: int = 1,
) -> tuple[Tensor, ...]:
    """The loss, and the logarithms of probabilities."""
    logs = torch.log_softmax(scores, 1)
    return _loss(logs, target, weight, ignore_index, reduction), logs
