"""Pictures of masks: the whole matrix as densities, a corner of it weight by weight, and how even its rows are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sift_onnx.reports.charts.canvas import Canvas, Chart
from sift_onnx.reports.charts.grid import scale, shade
from sift_onnx.reports.charts.theme import SERIES
from sift_onnx.reports.numbers import dims
from sift_onnx.reports.page.table import Table

__all__ = ["MaskPicture", "mask_chart", "picture_of"]

_PIXELS, _CORNER = 128, 64


@dataclass(frozen=True)
class MaskPicture:
    """What is drawn of a mask.

    Attributes:
        name: of the weight.
        shape: of the weight.
        matrix: sizes of the mask as a matrix.
        density: mean of each block, ``[<= 128, <= 128]``.
        corner: the first rows and columns, bool.
        by_row: non-zeros of each row of the matrix.
        by_column: of each column.
    """

    name: str
    shape: tuple[int, ...]
    matrix: tuple[int, int]
    density: npt.NDArray[np.float64]
    corner: npt.NDArray[np.bool_]
    by_row: npt.NDArray[np.int64]
    by_column: npt.NDArray[np.int64]


def picture_of(name: str, mask: npt.NDArray[np.bool_]) -> MaskPicture:
    """Take down what is drawn of a mask; its first axis is the rows, the others together the columns."""
    matrix = mask.reshape(mask.shape[0] if mask.ndim else 1, -1)
    rows, columns = matrix.shape
    row_edges, column_edges = (_edges(size) for size in (rows, columns))
    # Sums along the columns first: that leaves little of a large mask.
    sums = np.add.reduceat(np.add.reduceat(matrix, column_edges, axis=1, dtype=np.int64), row_edges, axis=0)
    sizes = np.outer(np.diff([*row_edges, rows]), np.diff([*column_edges, columns]))
    return MaskPicture(
        name,
        tuple(mask.shape),
        (rows, columns),
        sums / sizes,
        matrix[:_CORNER, : 2 * _CORNER].copy(),
        matrix.sum(1, dtype=np.int64),
        matrix.sum(0, dtype=np.int64),
    )


def _edges(size: int) -> npt.NDArray[np.int64]:
    blocks = min(size, _PIXELS)
    return np.arange(blocks, dtype=np.int64) * size // blocks


def mask_chart(picture: MaskPicture) -> Chart:
    """A spy plot of a mask."""
    rows, columns = picture.matrix
    density = picture.density / max(float(picture.density.max()), 1e-12)
    nnz = int(picture.by_row.sum())
    block = f"{math.ceil(rows / density.shape[0])} x {math.ceil(columns / density.shape[1])}"

    def draw(canvas: Canvas) -> None:
        # A small mask is seen weight by weight as a whole.
        panels = canvas.panels(2 if density.shape == (rows, columns) else 3)
        canvas.height(len(panels) * 250 if canvas.narrow else 290)
        *spies, counts = panels
        shade(spies[0], density, (0, columns, rows, 0))
        if len(spies) > 1:
            scale(spies[0], f"{picture.density.max():.0%}")
        spies[0].set_title("Weight by weight" if len(spies) == 1 else f"Whole: pixels of {block} weights")
        for corner in spies[1:]:
            shade(corner, picture.corner.astype(np.float64), (0, picture.corner.shape[1], picture.corner.shape[0], 0))
            corner.set_title("First rows and columns, weight by weight")
        for axes in spies:
            axes.locator_params(nbins=4)
            axes.set_xlabel("input feature and tap" if len(picture.shape) > 2 else "column")
            axes.set_ylabel("row (first axis)")
        for name, values, colour in (("rows", picture.by_row, SERIES[0]), ("columns", picture.by_column, SERIES[1])):
            ordered = np.sort(values) / (columns if name == "rows" else rows)
            # Long curves need no more points than there are pixels.
            kept = np.unique(np.linspace(0, len(ordered) - 1, min(len(ordered), 200)).astype(int))
            share = 100 * (kept / max(len(ordered) - 1, 1))
            counts.plot(share, 100 * ordered[kept], color=colour, label=name)
        counts.set_title("Density of rows and columns, sorted")
        counts.set_xlabel("% of rows or columns")
        counts.set_ylabel("% of their weights in the mask")
        counts.set_ylim(bottom=0)
        counts.grid(axis="y")
        counts.legend(loc="lower right")

    table = []
    for name, values, size in (("rows", picture.by_row, columns), ("columns", picture.by_column, rows)):
        empty = int((values == 0).sum())
        table.append(
            (name, f"{len(values):,}", f"{size:,}", f"{values.min():,}", f"{values.mean():,.1f}", f"{values.max():,}",
             f"{empty:,}")
        )  # fmt: skip
    share = nnz / (rows * columns)
    return Chart(
        picture.name,
        f"{dims(picture.shape)}, {nnz:,} of {rows * columns:,} weights in the mask ({1 - share:.2%} sparse).",
        f"Non-zeros of a row {picture.by_row.min():,} to {picture.by_row.max():,}, "
        f"of a column {picture.by_column.min():,} to {picture.by_column.max():,}.",
        draw,
        Table.of(f"Non-zeros of {picture.name}", "<of|count|weights in each|fewest|mean|most|empty", table),
    )
