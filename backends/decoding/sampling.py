"""The next token, out of the logits of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.errors import UsageError

__all__ = ["Sampler"]


class Sampler:
    """Chooses tokens: the most likely one, or one drawn at a temperature.

    Each sequence has random numbers of its own, so that what it draws does not depend on its batch.
    """

    def __init__(self, temperature: object, top_k: object, seed: object, sequences: int) -> None:
        """Begin anew.

        Args:
            temperature: 0 takes the most likely token.
            top_k: how many of the most likely tokens to draw from; 0 draws from all.
            seed: of the random numbers.
            sequences: how many there are.

        Raises:
            UsageError: a number is negative or not finite, or is none.
        """
        if not isinstance(temperature, Real):
            raise UsageError(f"`temperature` is {temperature!r}; it has to be a number")
        if not isinstance(top_k, Integral):
            raise UsageError(f"`top_k` is {top_k!r}; it has to be a whole number")
        if not isinstance(seed, Integral):
            raise UsageError(f"`seed` is {seed!r}; it has to be a whole number")
        self._temperature = float(temperature)
        if not (math.isfinite(self._temperature) and self._temperature >= 0):
            raise UsageError(f"`temperature` is {temperature}; it has to be a finite number, 0 or more")
        if top_k < 0:
            raise UsageError(f"`top_k` is {top_k}; it has to be 0, for all tokens, or more")
        if seed < 0:
            raise UsageError(f"`seed` is {seed}; it has to be 0 or more")
        self._top_k = int(top_k)
        self._generators: Sequence[np.random.Generator] = [
            np.random.default_rng([int(seed), sequence]) for sequence in range(sequences)
        ]

    def choose(self, logits: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """A token for each sequence.

        Args:
            logits: [sequences, vocabulary].
        """
        if self._temperature == 0:
            most_likely: npt.NDArray[np.int64] = np.argmax(logits, axis=-1).astype(np.int64)
            return most_likely
        drawn = [self._draw(row, generator) for row, generator in zip(logits, self._generators, strict=True)]
        return np.array(drawn, np.int64)

    def _draw(self, logits: npt.NDArray[Any], generator: np.random.Generator) -> int:
        below = logits.astype(np.float64) - float(logits.max())
        places = np.arange(below.size)
        if 0 < self._top_k < below.size:
            places = np.argpartition(below, -self._top_k)[-self._top_k :]
        with np.errstate(over="ignore"):  # of a tiny temperature: all but the largest have no weight
            weights = np.exp(below[places] / self._temperature)
        ends = np.cumsum(weights)
        return int(places[min(int(np.searchsorted(ends, generator.random() * ends[-1], "right")), places.size - 1)])
