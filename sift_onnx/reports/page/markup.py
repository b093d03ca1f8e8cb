"""HTML that is escaped by construction: text becomes markup only through :func:`tag`."""

from __future__ import annotations

from html import escape

__all__ = ["Markup", "join", "tag"]

_VOID = {"img", "link", "meta"}


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | bool | None) -> Markup:
    """An element.

    Args:
        name: of the element.
        children: text, which is escaped, or :class:`Markup`.
        attributes: ``class_`` stands for ``class`` and ``aria_label`` for ``aria-label``; True is an attribute without
            a value, None and False are none.
    """
    parts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        parts.append(key if value is True else f'{key}="{escape(value)}"')
    opening = f"<{' '.join(parts)}>"
    return Markup(opening) if name in _VOID else Markup(f"{opening}{join(*children)}</{name}>")


def join(*children: str) -> Markup:
    """Children one after another, escaped unless they are :class:`Markup`."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children))
