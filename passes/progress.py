"""How far a pass is, for whoever waits for it: a pass reports layers, and a listener shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["Listener", "listening", "report_progress"]

# Called with how many layers are done, how many there are, and the name of the next one.
Listener = Callable[[int, int, str], None]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have passes that run inside report to ``listener``."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report_progress(done: int, total: int, name: str) -> None:
    """Say which layer is next; nothing where nobody listens."""
    listener = _listener.get()
    if listener is not None:
        listener(done, total, name)
