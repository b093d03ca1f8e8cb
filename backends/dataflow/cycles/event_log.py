"""What the event-driven model saw: when cores were busy, how full queues were, and when links were used."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["EventLog"]

Core = tuple[int, int]


@dataclass
class EventLog:
    """What happened in one pass of a layer; times in cycles from its start, cores as ``(grid column, grid row)``.

    Attributes:
        busy: ``(grid column, grid row, begin, end)`` of uninterrupted runs of AXPYs.
        queue: ``(grid column, grid row, cycle, change)`` of the wavelets in an input queue.
        link: ``(grid column, grid row, first cycle, words)`` of partial sums that are sent on to the next core.
        limit: most entries that each of these lists takes.
        dropped: entries beyond that.
        busy_cycles: per core; complete, whatever was dropped.
        queue_peaks: most wavelets that waited in a core's queue at once; complete as well.
        cycles: until the last result is there.
        passes: how often the layer runs like this.
    """

    busy: list[tuple[int, int, float, float]] = field(default_factory=list)
    queue: list[tuple[int, int, float, int]] = field(default_factory=list)
    link: list[tuple[int, int, float, int]] = field(default_factory=list)
    limit: int = 200_000
    dropped: int = 0
    busy_cycles: dict[Core, float] = field(default_factory=dict)
    queue_peaks: dict[Core, int] = field(default_factory=dict)
    cycles: float = 0.0
    passes: int = 1

    def add_busy(self, core: Core, begin: float, end: float) -> None:
        """A core computed from ``begin`` to ``end``."""
        self.busy_cycles[core] = self.busy_cycles.get(core, 0.0) + end - begin
        if len(self.busy) < self.limit:
            self.busy.append((*core, begin, end))
        else:
            self.dropped += 1

    def add_wavelet(self, core: Core, arrived: float, taken: float, waiting: int) -> None:
        """A wavelet came into a queue, in which ``waiting`` of them are then, and left it."""
        if waiting > self.queue_peaks.get(core, 0):
            self.queue_peaks[core] = waiting
        if len(self.queue) < self.limit:
            self.queue += [(*core, arrived, 1), (*core, taken, -1)]
        else:
            self.dropped += 2

    def add_words(self, core: Core, begin: float, words: int) -> None:
        """A core sent the partial sums of a row to the next one."""
        if len(self.link) < self.limit:
            self.link.append((*core, begin, words))
        else:
            self.dropped += 1
