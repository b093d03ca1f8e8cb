"""Plain values as instances of types, from several threads.

msgspec describes a type when it is first used. In version 0.22, the process crashes if two threads do so at once.
"""

from __future__ import annotations

import os
import threading
from typing import Any, TypeVar, overload

import msgspec

__all__ = ["typed"]

T = TypeVar("T")

# A type may convert values of its own in `__post_init__`.
_describing = threading.RLock()


@overload
def typed(value: Any, kind: type[T]) -> T: ...
@overload
def typed(value: Any, kind: Any) -> Any: ...
def typed(value: Any, kind: Any) -> Any:
    """``value`` as an instance of ``kind``.

    Args:
        value: what JSON, YAML or TOML hold.
        kind: a dataclass, a ``msgspec.Struct``, a container or a union of those.

    Raises:
        msgspec.ValidationError: the value does not fit.
        TypeError: no plain value has the type ``kind``.
    """
    with _describing:
        return msgspec.convert(value, kind)


def _renew() -> None:
    """In a forked child: a thread that it does not have may hold the lock."""
    global _describing
    _describing = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
