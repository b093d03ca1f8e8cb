"""The cache of a batch between steps: in memory that has room for more tokens, where the program can write into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.base import Program
from sift_onnx.backends.decoding.cache_pairs import CachePair
from sift_onnx.errors import BackendError

__all__ = ["Cache"]

Array = npt.NDArray[Any]
# Tokens that memory has room for at first; it doubles, so that each token is copied about once.
_LEAST_ROOM = 64


class Cache:
    """Keys and values of all tokens so far.

    Where a program writes only what is new, a step copies nothing: past and present are the beginning of one array.
    """

    def __init__(self, pairs: Sequence[CachePair], batch: int, program: Program) -> None:
        """A cache without a token.

        Args:
            pairs: its tensors.
            batch: sequences.
            program: that runs the steps.
        """
        self._pairs = pairs
        self._batch = batch
        self._in_place: frozenset[str] = getattr(program, "caches", frozenset())
        self._room: dict[str, Array] = {}
        # Where a program computes in float32, what it made is not rounded in each step, nor cast.
        wide: frozenset[str] = getattr(program, "wide_caches", frozenset())
        self._types = {pair.past: np.dtype(np.float32) if pair.past in wide else pair.dtype for pair in pairs}
        self.feeds: dict[str, Array] = {
            pair.past: np.zeros(pair.sizes(batch, 0), self._types[pair.past]) for pair in pairs
        }

    def targets(self, length: int) -> dict[str, Array]:
        """Arrays for the outputs of a step, after which there are ``length`` tokens; of those that can be chosen."""
        return {pair.present: self._roomy(pair, length) for pair in self._pairs if pair.present in self._in_place}

    def _roomy(self, pair: CachePair, length: int) -> Array:
        found = self._room.get(pair.present)
        if found is None or found.shape[pair.length_axis] < length:
            room = max(_LEAST_ROOM, 1 << (length - 1).bit_length())
            # The step copies what is there, since it lies elsewhere.
            found = self._room[pair.present] = np.empty(pair.sizes(self._batch, room), self._types[pair.past])
        cut = [slice(None)] * found.ndim
        cut[pair.length_axis] = slice(length)
        return found[tuple(cut)]

    def keep(self, results: Mapping[str, Array], length: int) -> None:
        """Go on with what a step has made.

        Raises:
            BackendError: it has not as many tokens.
        """
        for pair in self._pairs:
            made = results[pair.present]
            found = made.shape[pair.length_axis]
            if found != length:
                raise BackendError(
                    f"the cache {pair.present!r} has {found} positions after a step to {length}; the model does not "
                    "append to its cache"
                )
            self.feeds[pair.past] = made
