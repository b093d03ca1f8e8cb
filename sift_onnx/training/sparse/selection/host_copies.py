"""Large copies on the host.

numpy asks the system for huge pages where torch does not, and to be given a page costs more than to fill it: copies and
magnitudes of large tensors take a quarter of the time.
"""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["copied", "magnitudes"]


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor, without its history."""
    tensor = tensor.detach()
    return torch.from_numpy(np.array(tensor.numpy())) if _is_plain(tensor) else tensor.clone()


def magnitudes(tensor: torch.Tensor) -> torch.Tensor:
    """Absolute values of a tensor, without its history."""
    tensor = tensor.detach()
    return torch.from_numpy(np.abs(tensor.numpy())) if _is_plain(tensor) else tensor.abs()


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64) and tensor.dim() > 0
