"""Optimizers and the way of the learning rate."""

from __future__ import annotations

import math
from itertools import compress
from typing import Any

import torch
from torch import nn

from sift_onnx.errors import UsageError
from sift_onnx.plugins import first_line
from sift_onnx.training.sparse.parameters.compact import compact_weights
from sift_onnx.training.trainer.optimizer_classes import class_of
from sift_onnx.training.trainer.settings import OptimizerSettings, ScheduleSettings

__all__ = ["make_optimizer", "rate_factor", "set_rate"]


def make_optimizer(module: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """An optimizer over a module's parameters; those of one dimension, scales and biases, have no weight decay.

    Raises:
        UsageError: the module has no parameter, or torch has no such optimizer or none with these options.
    """
    kind = class_of(settings.type)
    params = [param for param in module.parameters() if param.requires_grad]
    if not params:
        raise UsageError("the model has no parameters; name the initializers to train under 'trainable'")
    # A weight that is stored as its active values is a matrix all the same.
    matrices = {id(weight.values) for weight in compact_weights(module).values() if len(weight.shape) > 1}
    decays = [param.dim() > 1 or id(param) in matrices for param in params]
    groups = [
        {"params": list(compress(params, decays)), "weight_decay": settings.weight_decay},
        {"params": [p for p, decay in zip(params, decays, strict=True) if not decay], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    own: dict[str, Any] = {}
    if settings.type == "sgd":
        own = {"momentum": settings.momentum, "nesterov": settings.nesterov}
    elif settings.type == "adamw":
        own = {"betas": settings.betas, "eps": settings.eps}
    try:
        return kind(groups, lr=settings.lr, **{**own, **settings.options})
    except (TypeError, ValueError) as error:
        raise UsageError(f"optimizer {settings.type!r}: {first_line(error)}; see torch.optim.{kind.__name__}") from None


def rate_factor(settings: ScheduleSettings, step: int, total: int) -> float:
    """The learning rate of a step as a share of its peak.

    Args:
        settings: of the schedule.
        step: counted from 0.
        total: steps of the training.
    """
    if step < settings.warmup:
        return (step + 1) / settings.warmup
    if settings.type == "constant":
        return 1.0
    if settings.type == "step":
        drops = step // settings.every if settings.every else sum(step >= m for m in settings.milestones)
        return float(settings.gamma**drops)
    progress = (step - settings.warmup) / max(1, total - settings.warmup)
    return settings.final + (1 - settings.final) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give all parameter groups one learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate
