"""Remarks below what they are about."""

from __future__ import annotations

from collections.abc import Sequence

from sift_onnx.reports.page.markup import Markup, tag

__all__ = ["notes_html"]


def notes_html(notes: Sequence[str]) -> Markup | str:
    """A list of them; nothing where there are none."""
    return tag("ul", *(tag("li", note) for note in notes)) if notes else ""
