"""The largest of many scores, found by selection and without sorting, with ties that every machine breaks alike."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["largest"]

# Values that are looked at first, to see where the bound may lie.
_SAMPLE = 1 << 13


def largest(
    scores: torch.Tensor,
    count: int,
    preferred: torch.Tensor | None = None,
    candidates: torch.Tensor | None = None,
) -> torch.Tensor:
    """Where the ``count`` largest scores are.

    Of equal scores those that are ``preferred`` come first, then those of lower index. NaN is the lowest score.

    Args:
        scores: a vector ``[n]`` of floats.
        count: how many; all of them if there are fewer, none if it is below 0.
        preferred: a bool vector ``[n]``.
        candidates: a bool vector ``[n]``; only scores where it is true count. All of them if None.

    Returns:
        A bool vector ``[n]`` on the device of ``scores``, with ``count`` set, or as many as there are to choose from.
    """
    available = scores.numel() if candidates is None else int(torch.count_nonzero(candidates))
    if count <= 0 or count >= available:
        if count > 0 and candidates is not None:
            return candidates.clone()
        return torch.full(scores.shape, count > 0, dtype=torch.bool, device=scores.device)
    comparable = scores.detach()
    # A sum is NaN if an element is, and takes an eighth of the time; opposite infinities only cost a needless pass.
    if bool(torch.isnan(comparable.sum())):
        comparable = torch.where(torch.isnan(comparable), -torch.inf, comparable)
    threshold = _kth_largest(comparable, count, candidates)
    chosen, tied = comparable > threshold, comparable == threshold
    if candidates is not None:
        chosen, tied = chosen.logical_and_(candidates), tied.logical_and_(candidates)
    missing = count - int(torch.count_nonzero(chosen))
    ties = torch.nonzero(tied).reshape(-1)
    if preferred is not None and missing < ties.numel():
        liked = preferred[ties]
        ties = torch.cat([ties[liked], ties[~liked]])
    chosen[ties[:missing]] = True
    return chosen


def _kth_largest(scores: torch.Tensor, k: int, candidates: torch.Tensor | None) -> float:
    if scores.device.type != "cpu":
        values = scores if candidates is None else scores[candidates]
        return float(torch.kthvalue(values, values.numel() - k + 1).values)
    # On the host numpy's selection and indexing are several times faster than torch.topk, kthvalue and indexing.
    array = scores.numpy()
    return _kth_largest_of(array if candidates is None else array[candidates.numpy()], k)


def _kth_largest_of(values: npt.NDArray[Any], k: int) -> float:
    step = values.size // _SAMPLE
    if step > 1:
        # What is surely below is left out. Selection is slow, too, where many values are equal, as those of pruned
        # weights are: then the bound itself is the answer, or above them all.
        sample = np.sort(values[::step])
        rank = k / values.size * sample.size
        bound = sample[max(int(sample.size - rank - 4 * math.sqrt(rank) - 4), 0)]
        above = values[values >= bound]
        if above.size >= k:
            values = above
            if int(np.count_nonzero(values > bound)) < k:
                return float(bound)
    return float(np.partition(values, values.size - k)[values.size - k])
