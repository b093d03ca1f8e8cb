"""Colours and measures of charts; a colour stands for a CSS variable of the page, which has it in light and dark."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["DENSE", "FOREGROUND", "GRID", "SERIES", "SETTINGS", "SOFT", "VARIABLES", "label", "points", "prefixed"]

FOREGROUND, SOFT, GRID, BACKGROUND = "#1b1f24", "#59636e", "#d8dde3", "#fffffe"
DENSE = "#8b949e"
SERIES = ("#1f5fa8", "#c2571a", "#17806d", "#7a4fa3", "#a8861d", "#a83253")

# What matplotlib writes -> what the style sheet defines.
VARIABLES = {
    FOREGROUND: "var(--fg)",
    SOFT: "var(--soft)",
    GRID: "var(--line)",
    BACKGROUND: "var(--bg)",
    DENSE: "var(--dense)",
    **{colour: f"var(--c{i})" for i, colour in enumerate(SERIES, 1)},
}

SETTINGS: dict[Any, object] = {
    "svg.fonttype": "none",  # text stays text: found by search, read aloud, in the page's font
    "text.parse_math": False,  # a layer may be called $
    "text.color": FOREGROUND,
    "font.size": 11.5,
    "axes.labelcolor": SOFT,
    "axes.labelsize": 11.5,
    "axes.edgecolor": SOFT,
    "axes.linewidth": 0.8,
    "axes.facecolor": "none",
    "axes.titlelocation": "left",
    "axes.titlesize": 11.5,
    "axes.titlepad": 6,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "figure.constrained_layout.w_pad": 0.07,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "legend.frameon": False,
    "legend.fontsize": 11,
    "legend.handlelength": 1.2,
    "legend.columnspacing": 1.2,
    "legend.borderaxespad": 0,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
}


def label(text: str, most: int) -> str:
    """``text`` with its beginning left out where it is longer than ``most``: names of layers differ at the end."""
    return text if len(text) <= most else "\u2026" + text[1 - most :]


def prefixed(value: float) -> str:
    """A count on an axis: ``250 M``."""
    for limit, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit * 0.9995:
            return f"{value / limit:.3g} {prefix}"
    return f"{value:.3g}"


def points(values: list[float]) -> list[float]:
    """Round values of a logarithmic axis for ticks: powers of ten, and 2 and 5 times those over less than a decade."""
    low, high = min(values), max(values)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    factors = (1,) if high / low > 30 else (1, 2, 5) if high / low > 4 else (1, 1.5, 2, 3, 4, 5, 6, 8)
    return [factor * 10.0**power for power in powers for factor in factors]
