"""Two configurations with the same seeds: which is better, or can it not be told?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Difference", "mean_and_spread", "verdict"]


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences, with its standard error.

    Attributes:
        mean: of first less second, over seeds.
        error: standard error of that mean.
    """

    mean: float
    error: float

    @classmethod
    def of(cls, first: Sequence[float], second: Sequence[float]) -> Difference:
        """Seed by seed."""
        differences = [a - b for a, b in zip(first, second, strict=True)]
        spread = statistics.stdev(differences) if len(differences) > 1 else math.inf
        return cls(statistics.mean(differences), spread / math.sqrt(len(differences)))

    @property
    def is_above(self) -> bool | None:
        """Whether the first is above the second; None within two standard errors."""
        if abs(self.mean) <= 2 * self.error:
            return None
        return self.mean > 0

    def __str__(self) -> str:
        return f"{self.mean:+.2f} ± {self.error:.2f}"


def verdict(found: Sequence[bool | None]) -> bool | None:
    """Of a sentence about several comparisons: none may contradict it, and all must hold for it to hold.

    Without a comparison it cannot be told.
    """
    if False in found:
        return False
    return True if found and all(found) else None


def mean_and_spread(values: Sequence[float], digits: int = 1) -> str:
    """Mean ± standard deviation."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.{digits}f} ± {spread:.{digits}f}"
