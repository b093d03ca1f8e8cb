"""One forward pass and one loss, so that what does not fit is found before any training."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sift_onnx.errors import CheckError, SiftError, UsageError
from sift_onnx.plugins import first_line
from sift_onnx.training.trainer.batch import Batch
from sift_onnx.training.trainer.data import DataSource
from sift_onnx.training.trainer.losses import Loss, check_targets

__all__ = ["try_first_batch"]


@torch.no_grad()
def try_first_batch(
    module: nn.Module,
    source: DataSource,
    loss: Loss,
    loss_name: str,
    device: torch.device,
    warn: Callable[[str], None],
) -> Batch:
    """Run the model and the loss on the first batch.

    Args:
        module: the model, on ``device``; it is left in evaluation mode.
        source: of batches.
        loss: to compute.
        loss_name: its name in the settings.
        device: where the model is.
        warn: is called with what looks wrong and may be meant.

    Returns:
        The batch, on ``device``.

    Raises:
        UsageError: the model or the loss does not run on it, or a target has no score.
        CheckError: the loss is not finite.
    """
    parts = next(source.epoch(0), None)
    if parts is None:
        raise UsageError("the data has no batches")
    batch = parts[0].to(device)
    shapes = ", ".join(str(list(tensor.shape)) for tensor in batch.inputs)
    try:
        outputs: Any = module.eval()(*batch.inputs)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise UsageError(
            f"the model does not run on the first batch, {shapes}: {first_line(error)}; if the model was exported "
            "for one batch size, export it with a dynamic batch axis, or choose that batch_size"
        ) from error
    try:
        value = float(loss(outputs, batch))
    except SiftError:
        raise
    except Exception as error:
        raise UsageError(f"loss {loss_name!r} fails on the first batch: {first_line(error)}") from error
    if not math.isfinite(value):
        raise CheckError(f"the loss of the untrained model on the first batch is {value}; look at model and data")
    if loss_name == "classification":
        scores = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
        for target in source.targets():
            check_targets(target, scores.shape[1])
        if bool((scores >= 0).all()) and bool(((scores.float().sum(1) - 1).abs() < 1e-4).all()):
            warn("the model's output is a softmax already, and the loss takes another; export it without")
    return batch
