"""The largest of many scores, found by selection and without sorting, with ties that every machine breaks alike.

On the host, a sample says between which two bounds the smallest score that is chosen lies. One pass over the scores, a
few thousand at a time so that they stay in the cache, counts those above and copies out the few between the bounds; the
one that is looked for is selected among these. A second pass writes the mask. There is no copy of all scores, not even
of their magnitudes, and positions are never listed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sift_onnx.training.sparse.host_tensors import in_parts

__all__ = ["largest"]

# Values that are looked at first, to see where the bounds may lie.
_SAMPLE = 1 << 13
# Values at a time.
_CHUNK = 1 << 15

_Array = npt.NDArray[Any]


def largest(
    scores: torch.Tensor,
    count: int,
    preferred: torch.Tensor | None = None,
    candidates: torch.Tensor | None = None,
    *,
    magnitudes: bool = False,
) -> torch.Tensor:
    """Where the ``count`` largest scores are.

    Of equal scores those that are ``preferred`` come first, then those of lower index. NaN is as low as minus infinity.

    Args:
        scores: a vector ``[n]`` of floats.
        count: how many; all of them if there are fewer, none if it is below 0.
        preferred: a bool vector ``[n]``.
        candidates: a bool vector ``[n]``; only scores where it is true count. All of them if None.
        magnitudes: compare the scores' absolute values.

    Returns:
        A bool vector ``[n]`` on the device of ``scores``, with ``count`` set, or as many as there are to choose from.
    """
    available = scores.numel() if candidates is None else int(torch.count_nonzero(candidates))
    if count <= 0 or count >= available:
        if count > 0 and candidates is not None:
            return candidates.clone()
        return torch.full(scores.shape, count > 0, dtype=torch.bool, device=scores.device)
    scores = scores.detach()
    if scores.device.type != "cpu":
        return _largest_on_device(scores.abs() if magnitudes else scores, count, preferred, candidates)
    chosen = _Scores(
        scores.numpy(),
        None if candidates is None else candidates.numpy(),
        None if preferred is None else preferred.numpy(),
        available,
        magnitudes,
    ).largest(count)
    return torch.from_numpy(chosen)


def _largest_on_device(
    scores: torch.Tensor, count: int, preferred: torch.Tensor | None, candidates: torch.Tensor | None
) -> torch.Tensor:
    scores = torch.where(torch.isnan(scores), -torch.inf, scores)
    values = scores if candidates is None else scores[candidates]
    threshold = torch.kthvalue(values, values.numel() - count + 1).values
    chosen, tied = scores > threshold, scores == threshold
    if candidates is not None:
        chosen, tied = chosen.logical_and_(candidates), tied.logical_and_(candidates)
    missing = count - int(torch.count_nonzero(chosen))
    ties = torch.nonzero(tied).reshape(-1)
    if preferred is not None and missing < ties.numel():
        liked = preferred[ties]
        ties = torch.cat([ties[liked], ties[~liked]])
    chosen[ties[:missing]] = True
    return chosen


@dataclass
class _Counts:
    """How many candidates lie where, and those in between.

    Attributes:
        from_high: at the upper bound or above.
        above_low: above the lower bound.
        above_high: above the upper bound; not counted at first.
        from_low: at the lower bound or above; not counted at first.
        between: the scores between the bounds, both left out.
    """

    from_high: int = 0
    above_low: int = 0
    above_high: int = 0
    from_low: int = 0
    between: tuple[_Array, ...] = ()

    def __add__(self, other: _Counts) -> _Counts:
        return _Counts(
            self.from_high + other.from_high,
            self.above_low + other.above_low,
            self.above_high + other.above_high,
            self.from_low + other.from_low,
            self.between + other.between,
        )


@dataclass(frozen=True)
class _Scores:
    """Scores on the host, of which some are candidates.

    Attributes:
        values: ``[n]``.
        candidates: ``[n]``, or None for all.
        preferred: ``[n]``: which scores win ties; None for the first.
        available: number of candidates.
        magnitudes: whether absolute values count.
    """

    values: _Array
    candidates: _Array | None
    preferred: _Array | None
    available: int
    magnitudes: bool

    def largest(self, count: int) -> _Array:
        """The mask of the ``count`` largest; ``0 < count < available``."""
        threshold, above = self._threshold(count)
        mask = np.empty(self.values.size, np.bool_)
        in_parts(mask.size, lambda start, stop: self._mark_above(threshold, mask, start, stop))
        self._mark_ties(threshold, count - above, mask)
        return mask

    def _chunks(self, start: int, stop: int) -> Iterator[tuple[slice, _Array]]:
        """Slices and their scores; the array is overwritten for each."""
        buffer = np.empty(_CHUNK, self.values.dtype)
        for first in range(start, stop, _CHUNK):
            where = slice(first, min(first + _CHUNK, stop))
            part = self.values[where]
            yield where, np.abs(part, out=buffer[: part.size]) if self.magnitudes else part

    def _only_candidates(self, chosen: _Array, where: slice) -> _Array:
        return chosen if self.candidates is None else np.logical_and(chosen, self.candidates[where], out=chosen)

    def _threshold(self, count: int) -> tuple[Any, int]:
        """The ``count``-th largest score, and how many are above it."""
        low, high = self._bounds(count)
        counts = self._counts(low, high)
        if not counts.from_high < count <= counts.above_low:
            # At a bound, as a rule because many scores are equal; or beyond, if the sample was unlucky.
            counts = self._counts(low, high, at_bounds=True)
            if not counts.above_high < count <= counts.from_low:
                low, high = -np.inf, np.inf
                counts = self._counts(low, high, at_bounds=True)
        if counts.above_high < count <= counts.from_high:
            return high, counts.above_high
        if count > counts.above_low:
            return low, counts.above_low
        between, rank = np.concatenate(counts.between), count - counts.from_high
        found = np.partition(between, between.size - rank)[between.size - rank]
        return found, counts.from_high + int(np.count_nonzero(between > found))

    def _counts(self, low: Any, high: Any, at_bounds: bool = False) -> _Counts:
        parts = in_parts(self.values.size, lambda start, stop: self._count(low, high, at_bounds, start, stop))
        counts = sum(parts, start=_Counts())
        if low == -np.inf:
            # NaN, which compares with nothing, is as low.
            counts.from_low = self.available
        return counts

    def _bounds(self, count: int) -> tuple[Any, Any]:
        """Two scores that the ``count``-th largest is most likely between, or equal to."""
        if self.values.size < 2 * _SAMPLE:
            return -np.inf, np.inf
        # At places drawn by chance: every n-th gradient of a convolution may be of the same place of its windows.
        places = np.random.default_rng(0).integers(self.values.size, size=_SAMPLE)
        places = places if self.candidates is None else places[self.candidates[places]]
        sample = self.values[places]
        sample = np.abs(sample) if self.magnitudes else sample
        sample = np.sort(np.where(np.isnan(sample), -np.inf, sample))[::-1]
        expected = count / self.available * sample.size
        spread_of_rank = 4 * math.sqrt(expected * (1 - count / self.available)) + 4
        first, last = int(expected - spread_of_rank), int(expected + spread_of_rank)
        low = sample[last] if last < sample.size else -np.inf
        return low, (sample[first] if first >= 0 else np.inf)

    def _count(self, low: Any, high: Any, at_bounds: bool, start: int, stop: int) -> _Counts:
        found = _Counts()
        between: list[_Array] = []
        for where, scores in self._chunks(start, stop):
            above_low = self._only_candidates(scores > low, where)
            from_high = np.logical_and(scores >= high, above_low)
            found.above_low += int(np.count_nonzero(above_low))
            found.from_high += int(np.count_nonzero(from_high))
            if at_bounds:
                found.from_low += int(np.count_nonzero(self._only_candidates(scores >= low, where)))
                found.above_high += int(np.count_nonzero(self._only_candidates(scores > high, where)))
            # Between them: above the lower one, and not at the upper one or above.
            between.append(scores[np.greater(above_low, from_high, out=above_low)])
        found.between = tuple(between)
        return found

    def _mark_above(self, threshold: Any, mask: _Array, start: int, stop: int) -> None:
        for where, scores in self._chunks(start, stop):
            self._only_candidates(np.greater(scores, threshold, out=mask[where]), where)

    def _mark_ties(self, threshold: Any, missing: int, mask: _Array) -> None:
        """Add ``missing`` of the scores that equal the threshold, those that are preferred first."""
        others: list[_Array] = []
        found = 0
        for where, scores in self._chunks(0, mask.size):
            # Not above minus infinity: that, or NaN.
            tied = ~(scores > threshold) if threshold == -np.inf else scores == threshold
            if not self._only_candidates(tied, where).any():
                continue
            positions = np.flatnonzero(tied)
            if self.preferred is not None:
                liked = self.preferred[where][positions]
                if found < missing:
                    others.append(where.start + positions[~liked][: missing - found])
                    found += others[-1].size
                positions = positions[liked]
            positions = positions[:missing]
            mask[where.start + positions] = True
            missing -= positions.size
            if not missing:
                return
        if others:
            mask[np.concatenate(others)[:missing]] = True
