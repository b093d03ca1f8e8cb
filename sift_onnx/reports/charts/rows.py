"""Charts with a row for each layer or node: which rows are shown, and their names along the axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from sift_onnx.reports.charts.theme import GRID, label, points, prefixed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sift_onnx.reports.charts.canvas import Canvas

__all__ = ["MOST_ROWS", "choose_rows", "log_axis", "name_panels", "name_rows", "rows_height"]

MOST_ROWS = 48
T = TypeVar("T")


def choose_rows(entries: Sequence[T], weight: Callable[[T], float], most: int = MOST_ROWS) -> tuple[list[T], str]:
    """The entries to show, in their order, and a remark if these are not all of them.

    Args:
        entries: in order of execution.
        weight: the greatest are shown.
        most: how many there is room for.
    """
    if len(entries) <= most:
        return list(entries), ""
    greatest = sorted(range(len(entries)), key=lambda i: -weight(entries[i]))[:most]
    return [entries[i] for i in sorted(greatest)], f"The {most} greatest of {len(entries)}; the table has more."


def rows_height(rows: int, panels: int = 1) -> float:
    """Height of a chart with that many rows, in pixels; ``panels`` are below each other."""
    return panels * (rows * 15 + 52) + 24


def name_rows(canvas: Canvas, axes: Axes, names: Sequence[str]) -> None:
    """The names of the rows, the first on top."""
    axes.set_yticks(range(len(names)), [label(name, 20 if canvas.narrow else 34) for name in names], fontsize=10)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    axes.hlines(range(len(names)), 0, 1, transform=axes.get_yaxis_transform(), colors=GRID, linewidth=0.4, zorder=0)


def name_panels(canvas: Canvas, grid: Sequence[Axes], names: Sequence[str]) -> None:
    """Panels with the same rows: named once where they are next to each other, and each where they are not."""
    for i, axes in enumerate(grid):
        if not i or canvas.narrow:
            name_rows(canvas, axes, names)
        else:
            axes.grid(axis="x")
            axes.spines["left"].set_visible(False)
            axes.tick_params(axis="y", length=0)


def log_axis(axes: Axes, which: str, values: list[float]) -> None:
    """Make an axis logarithmic over ``values``, with round ticks in words."""
    low, high = min(values), max(values)
    room = (high / low) ** 0.06 * 1.05
    limits = low / room, high * room
    getattr(axes, f"set_{which}scale")("log")
    ticks = [value for value in points(values) if limits[0] <= value <= limits[1]]
    while len(ticks) > 6:
        ticks = ticks[::2]
    axis = getattr(axes, f"{which}axis")
    axis.set_ticks(ticks, [prefixed(value) for value in ticks])
    axis.set_ticks([], minor=True)
    getattr(axes, f"set_{which}lim")(*limits)
