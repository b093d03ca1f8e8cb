"""Active weights that are zero, in words."""

from __future__ import annotations

__all__ = ["zeros_line"]


def zeros_line(name: str, active: int, zeros: int) -> list[str]:
    """A line for a model that has some: how many of its ``active`` weights are ``zeros``; none if it has none."""
    return [f"{name}: {zeros:,} of {active:,} active weights are zero ({zeros / active:.2%})"] if zeros else []
