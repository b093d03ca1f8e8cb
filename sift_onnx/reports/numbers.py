"""How numbers are written in tables."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["dims", "file_size", "rate", "si"]


def dims(shape: Sequence[int]) -> str:
    """A shape: ``64x3x7x7``; ``scalar`` for no axes."""
    return "x".join(map(str, shape)) or "scalar"


def si(number: float) -> str:
    """A count with three or four digits and a prefix: ``1.81 G``."""
    for limit, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= limit:
            return f"{number / limit:.2f} {prefix}"
    return f"{number:g}"


def rate(number: float) -> str:
    """A number of things per second, or of milliseconds: three digits, or all of those before the point."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def file_size(count: int) -> str:
    """A number of bytes: ``44.7 MB`` (decimal)."""
    for limit, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= limit:
            return f"{count / limit:.1f} {unit}"
    return f"{count} B"
