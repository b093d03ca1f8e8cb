"""Padding of spatial axes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

__all__ = ["pad"]


def pad(x: Tensor, pads: Sequence[int], value: float = 0.0) -> Tensor:
    """Pad the last axes of ``x`` with a constant; ``pads`` are all begins, then all ends."""
    rank = len(pads) // 2
    return functional.pad(x, [n for i in reversed(range(rank)) for n in (pads[i], pads[rank + i])], value=value)
