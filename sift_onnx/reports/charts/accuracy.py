"""Accuracy against cost, with the line that dense models reach (Figure 1 of the Sparse-IFT paper)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from sift_onnx.reports.charts.canvas import Canvas, Chart
from sift_onnx.reports.charts.rows import log_axis, name_rows
from sift_onnx.reports.charts.theme import DENSE, FOREGROUND, SERIES, SOFT, label
from sift_onnx.reports.numbers import si
from sift_onnx.reports.page.table import Table
from sift_onnx.reports.trained_models import Group, Point, best_gain, group_points, same_cost

__all__ = ["accuracy_chart", "pareto"]


def accuracy_chart(points: Sequence[Point]) -> Chart:
    """One mark per run, a bar at the mean of repetitions, and the Pareto line of dense models."""
    groups = group_points(points)
    line = pareto([(g.cost, g.mean) for g in groups if g.dense])
    gain = best_gain(groups)

    at_one_cost = same_cost(groups)

    def draw(canvas: Canvas) -> None:
        if at_one_cost:
            _draw_rows(canvas, groups)
        else:
            _draw_over_cost(canvas, groups, line, gain)

    steps = {point.steps for point in points}
    if at_one_cost:
        caption = (
            f"All models cost the same: {_cost_span(groups)} MACs of non-zero weights and attention products. "
            "Grey: dense models; colours: models with masks."
        )
    else:
        caption = (
            "MACs of non-zero weights and attention products. Grey: dense models, and the line of those that no "
            "cheaper one beats; colours: models with masks."
        )
    if any(len(g.values) > 1 for g in groups):
        caption += " Marks are runs, strokes the means of repetitions."
    if len(steps) > 1:
        caption += " The runs differ in length, which the cost does not count: the table has their steps."
    if not line:
        caption += " No dense run is among the results, so there is no line to compare with."
    remark = ""
    if gain is not None:
        dense, best = gain
        points_apart = 100 * (best.mean - dense.mean)
        side = "above" if points_apart >= 0 else "below"
        remark = f" At the cost of {dense.name}, {best.name} is {abs(points_apart):.2f} points {side} it."
    return Chart(
        "Accuracy against FLOPs",
        caption + remark,
        "; ".join(f"{g.name}: {g.mean:.2%} at {si(g.cost)} MACs" for g in groups[:20]) + "." + remark,
        draw,
        Table.of(
            "Accuracy and cost",
            "<model|<kind|MACs|runs|mean|standard deviation|lowest|highest|steps",
            [_row(g) for g in groups],
        ),
    )


def _draw_over_cost(
    canvas: Canvas, groups: Sequence[Group], line: Sequence[tuple[int, float]], gain: tuple[Group, Group] | None
) -> None:
    canvas.height(360)
    axes = canvas.axes()
    if line:
        axes.plot(*zip(*line, strict=True), "-", color=DENSE, linewidth=1.8, label="dense, best for their cost")
    colours = _colours(groups)
    for group in groups:
        for value in group.values:
            (mark,) = axes.plot([group.cost], [value], "os"[not group.dense], color=colours[group.name], alpha=0.75)
            canvas.tip(mark, f"{group.name}: {value:.2%} at {group.cost:,} MACs")
        if len(group.values) > 1:
            axes.plot([group.cost], [group.mean], "_", color=colours[group.name], markersize=22, markeredgewidth=2)
    log_axis(axes, "x", [float(g.cost) for g in groups])
    _name(canvas, axes, groups)
    if gain is not None:
        dense, best = gain
        style = {"arrowstyle": "->", "color": SOFT, "lw": 1.1, "shrinkA": 5, "shrinkB": 5}
        axes.annotate("", (best.cost, best.mean), (dense.cost, dense.mean), arrowprops=style)
    axes.margins(y=0.14)
    axes.yaxis.set_major_formatter(_percent)
    axes.grid(axis="y")
    axes.set_xlabel("MACs per example, forward pass")
    axes.set_ylabel("validation accuracy")
    if line:
        canvas.legend(axes)


def _draw_rows(canvas: Canvas, groups: Sequence[Group]) -> None:
    """A row for each model, the best on top: an axis of costs would spread out differences that are rounding."""
    rows = sorted(groups, key=lambda g: -g.mean)
    canvas.height(110 + 46 * len(rows))
    axes = canvas.axes()
    colours = _colours(groups)
    best_dense = max((g.mean for g in groups if g.dense), default=None)
    if best_dense is not None:
        axes.axvline(best_dense, color=DENSE, linestyle=":", linewidth=1.6, label="best dense model")
    for y, group in enumerate(rows):
        for value in group.values:
            (mark,) = axes.plot([value], [y], "os"[not group.dense], color=colours[group.name], alpha=0.75)
            canvas.tip(mark, f"{group.name}: {value:.2%} at {group.cost:,} MACs")
        if len(group.values) > 1:
            axes.plot([group.mean], [y], "|", color=colours[group.name], markersize=20, markeredgewidth=2)
        axes.annotate(
            f"{group.mean:.2%}", (group.mean, y), (0, 11), textcoords="offset points", ha="center", fontsize=10.5,
            color=SOFT if group.dense else FOREGROUND,
        )  # fmt: skip
    name_rows(canvas, axes, [group.name for group in rows])
    axes.set_ylim(len(rows) - 0.4, -0.75)
    axes.margins(x=0.12)
    axes.locator_params(axis="x", nbins=4 if canvas.narrow else 8)
    axes.xaxis.set_major_formatter(_percent)
    axes.set_xlabel("validation accuracy")
    if best_dense is not None:
        canvas.legend(axes)


def _colours(groups: Sequence[Group]) -> dict[str, str]:
    sparse = list(dict.fromkeys(g.name for g in groups if not g.dense))
    dense = dict.fromkeys((g.name for g in groups if g.dense), DENSE)
    return dense | {name: SERIES[i % len(SERIES)] for i, name in enumerate(sparse)}


def _percent(value: float, _: object) -> str:
    return f"{100 * value:.4g} %"


def _cost_span(groups: Sequence[Group]) -> str:
    low, high = min(g.cost for g in groups), max(g.cost for g in groups)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def pareto(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The points that none of equal or lower cost beats, by cost."""
    best: list[tuple[int, float]] = []
    for cost, value in sorted(points, key=lambda point: (point[0], -point[1])):
        if not best or value > best[-1][1]:
            best.append((cost, value))
    return best


def _name(canvas: Canvas, axes: object, groups: Sequence[Group]) -> None:
    """Names next to the marks, on the side where there is more room; one that would cover another is left out."""
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    low, high = axes.get_xlim()
    values = [value for g in groups for value in g.values]
    apart = (max(values) - min(values) or 1.0) / 17
    taken: list[tuple[float, float]] = []
    for group in sorted(groups, key=lambda g: (not g.dense, g.mean), reverse=True):
        position = (group.cost / low) / (high / low)
        if any(abs(position / p - 1) < 0.8 and abs(group.mean - v) < apart for p, v in taken):
            continue
        taken.append((position, group.mean))
        left = group.cost * group.cost > low * high
        # The line of dense models rises to the right: there is room below it.
        axes.annotate(
            label(group.name, 24 if canvas.narrow else 44),
            (group.cost, group.mean),
            ((-6 if left else 8, -9) if group.dense else (-13 if left else 13, 0)),
            textcoords="offset points",
            ha="right" if left else "left",
            va="top" if group.dense else "center",
            fontsize=10.5,
            color=SOFT if group.dense else FOREGROUND,
        )


def _row(group: Group) -> tuple[str, ...]:
    spread = f"{statistics.stdev(group.values):.2%}" if len(group.values) > 1 else ""
    return (
        group.name,
        "dense" if group.dense else "masked",
        f"{group.cost:,}",
        str(len(group.values)),
        f"{group.mean:.2%}",
        spread,
        f"{min(group.values):.2%}",
        f"{max(group.values):.2%}",
        f"{group.steps:,}",
    )
