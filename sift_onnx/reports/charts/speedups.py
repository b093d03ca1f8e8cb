"""Speed-up over sparsity on the simulated machine, with the band of what is not known of it."""

from __future__ import annotations

from collections.abc import Sequence

from sift_onnx.records.simulate import SweepPoint
from sift_onnx.reports.charts.canvas import Canvas, Chart
from sift_onnx.reports.charts.theme import SERIES, SOFT
from sift_onnx.reports.page.table import Table

__all__ = ["sweep_chart"]


def sweep_chart(points: Sequence[SweepPoint], now: tuple[float, float] | None) -> Chart:
    """Speed-up over the same model executed dense.

    Args:
        points: ``sweep`` of what ``simulate`` reports.
        now: sparsity and speed-up of the model itself.
    """

    def draw(canvas: Canvas) -> None:
        canvas.height(330)
        axes = canvas.axes()
        most = 1.1 * max([1.0, *(p.high for p in points), now[1] if now else 0.0])
        xs = [100 * p.sparsity for p in points]
        ideal = [(s / 2, 200 / (200 - s)) for s in range(200) if 200 / (200 - s) <= most]
        axes.plot(*zip(*ideal, strict=True), "--", color=SOFT, linewidth=1.1, label="ideal, 1 / (1 - sparsity)")
        axes.fill_between(xs, [p.low for p in points], [p.high for p in points], color=SERIES[0], alpha=0.18,
                          linewidth=0)  # fmt: skip
        axes.plot(xs, [p.value for p in points], "-", color=SERIES[0], label="simulated")
        for x, p in zip(xs, points, strict=True):
            (mark,) = axes.plot([x], [p.value], "o", color=SERIES[0])
            canvas.tip(mark, f"{p.sparsity:.0%}: {p.value:.2f}x ({p.low:.2f}x to {p.high:.2f}x)")
        if now is not None:
            axes.plot([100 * now[0]], [now[1]], "o", markersize=10, markerfacecolor="none", markeredgewidth=2,
                      markeredgecolor=SERIES[1], label="this model")  # fmt: skip
        axes.set_xlim(0, 102)
        axes.set_ylim(0, most)
        axes.grid(axis="y")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} %")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
        axes.set_xlabel("sparsity of the masked layers")
        axes.set_ylabel("speed over dense execution")
        canvas.legend(axes)

    return Chart(
        "Speed-up over sparsity",
        "The same layers at other sparsities, masks sampled, against the same model executed dense on that machine. "
        "The band runs over what is not published of the machine.",
        "; ".join(f"{p.sparsity:.0%}: {p.value:.2f} times" for p in points),
        draw,
        Table.of(
            "Speed-up over sparsity",
            "sparsity|speed-up|lower end|upper end",
            [(f"{p.sparsity:.1%}", *(f"{getattr(p, k):.3f}x" for k in ("value", "low", "high"))) for p in points],
        ),
    )
