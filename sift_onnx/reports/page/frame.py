"""The document around the sections of a page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from sift_onnx.errors import OutputError
from sift_onnx.reports.page.markup import Markup, tag

__all__ = ["Section", "document", "write_page"]

# A page that asks for anything from elsewhere is a defect: browsers refuse it by this rule.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True)
class Section:
    """A part of a page that the list of contents names."""

    title: str
    content: Markup

    @property
    def anchor(self) -> str:
        """What a link to the section ends with."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


def document(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """The whole page: one file without scripts that loads nothing.

    Args:
        title: of the page.
        subtitle: a line below it.
        sections: with titles that differ from each other.
    """
    links = [tag("a", section.title, href=f"#{section.anchor}") for section in sections]
    contents = tag("nav", *links, aria_label="Contents") if len(links) > 1 else Markup()
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#content", class_="skip"),
        tag("header", tag("h1", title), tag("p", subtitle, class_="soft"), contents),
        tag(
            "main",
            *(
                tag("section", tag("h2", s.title, id=f"{s.anchor}-title"), s.content, id=s.anchor,
                    aria_labelledby=f"{s.anchor}-title")
                for s in sections
            ),
            id="content",
            tabindex="-1",
        ),
    )  # fmt: skip
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("title", title),
        tag("style", Markup(style())),
    )
    return "<!doctype html>" + tag("html", head, body, lang="en") + "\n"


def style() -> str:
    """The style sheet, with its colours for light and dark."""
    return files("sift_onnx.reports.page").joinpath("style.css").read_text(encoding="utf-8")


def write_page(html: str | Path, text: str) -> None:
    """Write a page.

    Raises:
        OutputError: the file cannot be written.
    """
    try:
        Path(html).write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write the page {str(html)!r} (`html`): {error.strerror}") from error
