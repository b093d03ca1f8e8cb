"""What the multipliers of a pool's threads can do."""

from __future__ import annotations

import time

from sift_onnx.backends.cpu import _kernels

__all__ = ["Peak"]

_ITERATIONS = 200_000  # half a millisecond
_ROUNDS = 3


class Peak:
    """The rate of a loop of multiply-adds whose operands stay in registers: the best of all rounds so far.

    Other programs, and other machines on the same processor, take part of it at any moment. What is compared with it
    should be measured in turns with :meth:`sample`.
    """

    def __init__(self, pool: _kernels.ThreadPool, isa: str) -> None:
        self._pool = pool
        self._isa = isa
        self._best = 0.0

    def sample(self) -> None:
        """A few rounds, 2 ms in all."""
        for _ in range(_ROUNDS):
            start = time.perf_counter()
            operations = _kernels.run_multiply_adds(self._pool, _ITERATIONS, self._isa)
            self._best = max(self._best, operations / (time.perf_counter() - start) / 1e9)

    @property
    def gflops(self) -> float:
        """Multiply-adds per second of all threads, twice, in 10**9."""
        if not self._best:
            self.sample()
        return self._best
