"""The answers on top of a page: a figure each, and what it compares."""

from __future__ import annotations

from collections.abc import Sequence

from sift_onnx.reports.answers import Answer
from sift_onnx.reports.page.markup import Markup, tag

__all__ = ["answers_html"]


def answers_html(found: Sequence[Answer]) -> Markup:
    """The answers next to each other; empty without any."""
    if not found:
        return Markup()
    cards = [
        tag(
            "div",
            tag("dt", answer.topic, class_="soft"),
            tag("dd", tag("strong", answer.figure), tag("p", answer.detail, class_="soft")),
        )
        for answer in found
    ]
    return tag("dl", *cards, class_="answers")
