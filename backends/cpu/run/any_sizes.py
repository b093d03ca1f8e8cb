"""A model for requests whose sizes are not as its plan takes them to be: opened when the first one comes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from sift_onnx.backends.forks import renew_in_children

__all__ = ["AnySizes"]

Model = TypeVar("Model")


class AnySizes(Generic[Model]):
    """Opens a model at the first request for it, and keeps it; thread-safe."""

    def __init__(self, open_model: Callable[[], Model]) -> None:
        """Nothing is opened yet.

        Args:
            open_model: makes it, or raises an error of the package; it is then asked again.
        """
        self._open = open_model
        self._opened: Model | None = None
        self._opening = threading.Lock()
        renew_in_children(self)

    def renew(self) -> None:
        """In a forked child: a thread that it does not have may hold the lock."""
        self._opening = threading.Lock()

    @property
    def if_opened(self) -> Model | None:
        """It, if a request has come; else None."""
        return self._opened

    def opened(self) -> Model:
        """It, in any case."""
        with self._opening:
            if self._opened is None:
                self._opened = self._open()
            return self._opened
