"""Names of values that the lowering adds to those of a model."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["made_name", "stored_key", "with_mark"]

# In each name that is made up, and in none of a model: exporters put slashes, colons and blanks behind other names.
_OF_VALUES = "~/"
_OF_LAYOUTS = "~:"


def made_name(base: str, what: str) -> str:
    """The name of a value that is made for another.

    Args:
        base: name of the other.
        what: that this value is to it, unlike any other value for it.
    """
    return f"{base}{_OF_VALUES}{what}"


def stored_key(name: str, what: str) -> str:
    """The name of a value in one of several layouts, or of a copy of it."""
    return f"{name}{_OF_LAYOUTS}{what}"


def with_mark(names: Iterable[str]) -> str:
    """The first name that might be one of those made up; empty if none is."""
    return next((name for name in names if _OF_VALUES in name or _OF_LAYOUTS in name), "")
