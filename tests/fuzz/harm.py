"""Trials that go wrong, to see that the harness notices."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from fuzz.trial import Outcome

__all__ = ["die", "hang", "want_memory"]

Say = Callable[[str], None]


def die(content: bytes, number: int, say: Say) -> Outcome:
    os.kill(os.getpid(), signal.SIGSEGV)
    return Outcome()


def hang(content: bytes, number: int, say: Say) -> Outcome:
    while True:
        pass


def want_memory(content: bytes, number: int, say: Say) -> Outcome:
    try:
        bytearray(8 << 30)
    except MemoryError:
        return Outcome(findings=["MemoryError"])
    return Outcome()
