"""The states of an optimizer that are as sparse as the parameter they belong to."""

from __future__ import annotations

import torch

__all__ = ["sparse_states"]


def sparse_states(optimizer: torch.optim.Optimizer, param: torch.nn.Parameter) -> list[torch.Tensor]:
    """The state tensors of ``param`` that have its shape, except those with ``requires_dense``.

    No table of optimizers is needed: what has the parameter's shape belongs to its weights one by one.
    """
    states = [state for state in optimizer.state.get(param, {}).values() if isinstance(state, torch.Tensor)]
    return [state for state in states if state.shape == param.shape and not getattr(state, "requires_dense", False)]
