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
        self._program: Any = program  # those of some back ends take more than others
        self._in_place: frozenset[str] = getattr(program, "caches", frozenset())
        # By the names of outputs.
        self._memory: dict[str, Array] = {}
        self._room = 0
        # What the program makes of the memory; None where it takes arrays of each step.
        self._rooms: Any = None
        # Where a program computes in float32, what it made is not rounded in each step, nor cast.
        wide: frozenset[str] = getattr(program, "wide_caches", frozenset())
        self._types = {pair.past: np.dtype(np.float32) if pair.past in wide else pair.dtype for pair in pairs}
        self._past: dict[str, Array] = {
            pair.past: np.zeros(pair.sizes(batch, 0), self._types[pair.past]) for pair in pairs
        }

    def run(self, feeds: Mapping[str, Array], past: int, length: int) -> dict[str, Array]:
        """A step of the program.

        Args:
            feeds: its inputs that are no cache.
            past: tokens before it.
            length: tokens after it.

        Returns:
            Its outputs, those that are no cache among them.

        Raises:
            BackendError: the cache has not as many tokens after it.
        """
        if self._in_place and length > self._room:
            self._grow(past, length)
        if self._rooms is not None:
            results: dict[str, Array] = self._program.run_step(feeds, self._rooms, past, length)
            return results
        feeds = {**feeds, **self._past}
        # Only programs with caches that can be written in place take arrays for them.
        results = self._program.run(feeds, self._targets(length)) if self._in_place else self._program.run(feeds)
        self._keep(results, length)
        return results

    def _grow(self, past: int, length: int) -> None:
        self._room = max(_LEAST_ROOM, 1 << (length - 1).bit_length())
        before, self._memory = self._memory, {}
        for pair in self._pairs:
            if pair.present in self._in_place:
                made = np.empty(pair.sizes(self._batch, self._room), self._types[pair.past])
                if self._rooms is not None:
                    self._cut(pair, made, past)[...] = self._cut(pair, before[pair.present], past)
                # Else the step copies what is there, since it lies elsewhere.
                self._memory[pair.present] = made
        self._rooms = self._opened()

    def _opened(self) -> Any:
        open_rooms = getattr(self._program, "cache_rooms", None)
        in_order = all((pair.batch_axis, pair.length_axis, len(pair.shape)) == (0, 2, 4) for pair in self._pairs)
        if open_rooms is None or not in_order or len(self._memory) < len(self._pairs):
            return None
        presents = {pair.past: pair.present for pair in self._pairs}
        return open_rooms({past: self._memory[present] for past, present in presents.items()}, presents)

    def _targets(self, length: int) -> dict[str, Array]:
        """Arrays for the outputs of a step, after which there are ``length`` tokens; of those that can be chosen."""
        return {
            pair.present: self._cut(pair, self._memory[pair.present], length)
            for pair in self._pairs
            if pair.present in self._memory
        }

    @staticmethod
    def _cut(pair: CachePair, array: Array, length: int) -> Array:
        return array[(*(slice(None),) * pair.length_axis, slice(length))]

    def _keep(self, results: Mapping[str, Array], length: int) -> None:
        for pair in self._pairs:
            made = results[pair.present]
            found = made.shape[pair.length_axis]
            if found != length:
                raise BackendError(
                    f"the cache {pair.present!r} has {found} positions after a step to {length}; the model does not "
                    "append to its cache"
                )
            self._past[pair.past] = made
