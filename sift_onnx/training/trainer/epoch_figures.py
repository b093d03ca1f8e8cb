"""Losses and speed of an epoch, as its log lines have them."""

from __future__ import annotations

import time

__all__ = ["EpochFigures"]


class EpochFigures:
    """Sums over the steps of an epoch, and over those since the last log line."""

    def __init__(self, ranks: int) -> None:
        """Begin an epoch.

        Args:
            ranks: that train together, each with as many examples.
        """
        self._ranks = ranks
        self._losses: list[float] = []
        self._logged = 0  # losses before the current line
        self._examples = 0
        self._began = self._since = time.perf_counter()

    def note(self, loss: float, examples: int) -> None:
        """Take in a step of this rank."""
        self._losses.append(loss)
        self._examples += examples

    def since_last_line(self) -> tuple[float, float]:
        """Mean loss, and examples per second of all ranks, since the last call; there has been a step."""
        now, losses = time.perf_counter(), self._losses[self._logged :]
        speed = self._examples * self._ranks / max(now - self._since, 1e-9)
        self._logged, self._examples, self._since = len(self._losses), 0, now
        return sum(losses) / len(losses), speed

    def of_epoch(self) -> tuple[float, float] | None:
        """Mean loss and seconds of the epoch; None if it had no step."""
        if not self._losses:
            return None
        return sum(self._losses) / len(self._losses), time.perf_counter() - self._began
