"""Loss and accuracy of a model on validation data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from sift_onnx.training.trainer.batch import Batch
from sift_onnx.training.trainer.losses import Loss, correct_share

__all__ = ["validate"]


@torch.no_grad()
def validate(
    module: nn.Module,
    batches: Iterable[Batch],
    loss: Loss,
    loss_name: Any,
    device: torch.device,
    autocast: Callable[[], contextlib.AbstractContextManager[Any]],
) -> dict[str, Any] | None:
    """Mean figures over examples.

    Args:
        module: the model, on ``device``; it is left in evaluation mode.
        batches: of validation data.
        loss: to compute.
        loss_name: its name in the settings.
        device: where the model is.
        autocast: gives the context of a forward pass.

    Returns:
        ``loss``, ``examples`` and, where predictions are right or wrong, ``accuracy``; None without examples.
    """
    module.eval()
    count, total, right = 0, 0.0, 0.0
    for batch in batches:
        batch = batch.to(device)
        with autocast():
            outputs = module(*batch.inputs)
        total += float(loss(outputs, batch)) * batch.size
        share = correct_share(loss_name, outputs, batch)
        right = right + share * batch.size if share is not None else float("nan")
        count += batch.size
    if not count:
        return None
    return {"loss": total / count, "examples": count} | ({"accuracy": right / count} if right == right else {})
