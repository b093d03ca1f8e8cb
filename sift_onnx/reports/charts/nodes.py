"""Where the time of a run goes, node by node."""

from __future__ import annotations

from typing import Any

from sift_onnx.records.profile import ProfileReport
from sift_onnx.reports.charts.canvas import Canvas, Chart
from sift_onnx.reports.charts.rows import choose_rows, name_panels, rows_height
from sift_onnx.reports.charts.theme import DENSE, SERIES
from sift_onnx.reports.page.table import Table
from sift_onnx.reports.profile import node_rows

__all__ = ["nodes_chart"]


def nodes_chart(report: ProfileReport) -> Chart:
    """Milliseconds of each node by who ran it, and what share of the peak its arithmetic reached."""
    nodes = report.nodes
    total = report.total_ms or 1.0
    shown, remark = choose_rows(nodes, lambda node: float(node.ms))
    places = sorted({node.placement for node in nodes}, key=lambda place: place == "onnxruntime")
    colours = {place: DENSE if place == "onnxruntime" else SERIES[i % len(SERIES)] for i, place in enumerate(places)}
    with_peak = any(node.share_of_peak is not None for node in shown)

    def draw(canvas: Canvas) -> None:
        count = 2 if with_peak else 1
        canvas.height(rows_height(len(shown), count if canvas.narrow else 1))
        grid = canvas.panels(count, sharey=not canvas.narrow)
        _bars(canvas, grid[0], "ms", lambda node: node.ms)
        grid[0].set_xlabel("ms")
        grid[0].locator_params(axis="x", nbins=4 if canvas.narrow else 6)
        grid[0].set_title("Time")
        if with_peak:
            _bars(canvas, grid[1], "% of peak", lambda node: 100 * (node.share_of_peak or 0.0))
            grid[1].set_xlabel("% of the threads' peak")
            grid[1].set_title("Arithmetic on non-zeros")
        name_panels(canvas, grid, [node.name for node in shown])
        canvas.legend(grid[0])

    def _bars(canvas: Canvas, axes: Any, unit: str, value: Any) -> None:
        for place, colour in colours.items():
            rows = [i for i, node in enumerate(shown) if node.placement == place]
            bars = axes.barh(rows, [value(shown[i]) for i in rows], 0.7, color=colour, label=place)
            for i, bar in zip(rows, bars, strict=True):
                canvas.tip(bar, f"{shown[i].name} ({place}): {value(shown[i]):.3g} {unit}")

    shares = {place: sum(n.ms for n in nodes if n.placement == place) / total for place in places}
    listed = ", ".join(f"{place} {share:.0%}" for place, share in shares.items())
    return Chart(
        "Time by node",
        f"{report.backend}, batch {report.batch}, {report.threads} threads: "
        f"{report.total_ms:.3f} ms in all; {listed}. {remark}".strip(),
        f"{len(nodes)} nodes; {listed}. Slowest: "
        + ", ".join(f"{n.name} {n.ms:.3f} ms" for n in sorted(nodes, key=lambda n: -n.ms)[:3]),
        draw,
        Table.of("Nodes", "<node|<operator|<run by|ms|share|density|GFLOP/s|of peak|<kernel", node_rows(report)),
    )
