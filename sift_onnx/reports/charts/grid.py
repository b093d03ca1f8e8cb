"""Maps of the simulated grid, and masks of weights, as pixels of one colour on the page's background."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sift_onnx.records.simulate import GridMap
from sift_onnx.reports.charts.canvas import Canvas, Chart
from sift_onnx.reports.charts.theme import SOFT
from sift_onnx.reports.numbers import rate
from sift_onnx.reports.page.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["heat_chart", "scale", "shade"]

# Between the theme's blues for light and dark: images know no CSS variables.
_COLOUR = (63, 128, 206)


def shade(axes: Axes, shares: npt.NDArray[np.float64], extent: tuple[float, float, float, float]) -> None:
    """Draw shares between 0 and 1 as opacity, row 0 on top.

    Args:
        axes: to draw on.
        shares: ``[rows, columns]``.
        extent: left, right, bottom and top, in data.
    """
    pixels = np.empty((*shares.shape, 4), np.uint8)
    pixels[..., :3] = _COLOUR
    pixels[..., 3] = np.clip(np.rint(shares * 255), 0, 255)
    axes.imshow(pixels, interpolation="none", extent=extent, aspect="auto")
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color(SOFT)
        spine.set_linewidth(0.6)


def scale(axes: Axes, highest: str) -> None:
    """A scale of colours above the right end of axes: from nothing at 0 to full colour at ``highest``."""
    bar = axes.inset_axes((0.72, 1.06, 0.28, 0.07))
    shade(bar, np.linspace(0, 1, 64)[None], (0, 1, 1, 0))
    bar.set_yticks([])
    bar.xaxis.tick_top()
    bar.set_xticks([0, 1], ["0", highest])
    bar.tick_params(axis="x", length=0, pad=1, labelsize=9)


def heat_chart(grid: GridMap) -> Chart:
    """A quantity over the cores of the machine: one of ``maps`` of what ``simulate`` reports."""
    rows, columns = grid.shape
    shares = np.frombuffer(base64.b64decode(grid.shares), np.uint8).reshape(rows, columns) / 255
    most = grid.largest
    text = f"{most:.1%}" if "share" in grid.title else rate(most)

    def draw(canvas: Canvas) -> None:
        width = 330 if canvas.narrow else 700
        canvas.height(min(max(width * grid.rows / grid.columns, 60), 420) + 100)
        axes = canvas.axes()
        shade(axes, shares, (0, grid.columns, grid.rows, 0))
        scale(axes, text)
        axes.locator_params(nbins=5)
        axes.set_xlabel("core column")
        axes.set_ylabel("core row")

    by_row, by_column = shares.mean(1) * most, shares.mean(0) * most
    ends = (("rows", by_row), ("columns", by_column))
    return Chart(
        grid.title[:1].upper() + grid.title[1:],
        f"{grid.columns} x {grid.rows} cores, means of blocks.",
        f"Largest {text}, mean {shares.mean():.0%} of it; {np.mean(shares == 0):.0%} of the grid at zero.",
        draw,
        Table.of(
            f"{grid.title}: means along the grid",
            "<along|blocks|lowest|mean|highest",
            [(name, str(len(v)), f"{v.min():.4g}", f"{v.mean():.4g}", f"{v.max():.4g}") for name, v in ends],
        ),
    )
