"""``optimizer.apply(sparsity)``, as cstorch's own optimizers have it."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["install_optimizer_apply"]


def install_optimizer_apply() -> None:
    """Give ``torch.optim.Optimizer`` a method ``apply``, so that loops written for cstorch run as they are.

    ``optimizer.apply(f)`` is ``f.apply(optimizer)``. It changes a class of torch's, for the whole process, which is why
    nothing does it unasked; ``sparsity.apply(optimizer)`` does without.
    """
    torch.optim.Optimizer.apply = _apply  # type: ignore[attr-defined]


def _apply(optimizer: torch.optim.Optimizer, f: Any) -> torch.optim.Optimizer:
    f.apply(optimizer)
    return optimizer
