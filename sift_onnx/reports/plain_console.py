"""A terminal that prints text literally: names come from files, which may be hostile."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from sift_onnx.errors import printable

__all__ = ["PlainConsole"]


class PlainConsole(Console):
    """A console without markup, emoji and highlighting, which shows control characters instead of sending them."""

    def __init__(self, **options: Any) -> None:
        """Options as of :class:`rich.console.Console`."""
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def on_broken_pipe(self) -> None:
        # rich would leave with 1, which means a check that failed.
        raise BrokenPipeError

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str("\n".join(map(printable, text.split("\n"))), **options)
