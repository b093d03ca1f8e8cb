"""Accuracy against cost, with the line that dense models reach (Figure 1 of the Sparse-IFT paper)."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sift_onnx.report.charts.canvas import Canvas, Chart
from sift_onnx.report.charts.rows import log_axis
from sift_onnx.report.charts.theme import DENSE, FOREGROUND, SERIES, SOFT, label
from sift_onnx.report.numbers import si
from sift_onnx.report.page.table import Table

__all__ = ["Point", "accuracy_chart", "pareto"]

_SAME_COST = 0.02


@dataclass(frozen=True)
class Point:
    """A trained model.

    Attributes:
        name: to show; repetitions of a run share it.
        cost: MACs of an example's forward pass, those of attention products among them.
        accuracy: on validation data, 0 to 1.
        dense: whether it has no masks.
        steps: that it was trained for.
    """

    name: str
    cost: int
    accuracy: float
    dense: bool
    steps: int


@dataclass(frozen=True)
class _Group:
    name: str
    cost: int
    dense: bool
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)


def accuracy_chart(points: Sequence[Point]) -> Chart:
    """One mark per run, a bar at the mean of repetitions, and the Pareto line of dense models."""
    groups = _groups(points)
    line = pareto([(g.cost, g.mean) for g in groups if g.dense])
    gain = _best_gain(groups)

    def draw(canvas: Canvas) -> None:
        canvas.height(360)
        axes = canvas.axes()
        if line:
            axes.plot(*zip(*line, strict=True), "-", color=DENSE, linewidth=1.8, label="dense, best for their cost")
        sparse_names = list(dict.fromkeys(g.name for g in groups if not g.dense))
        for group in groups:
            index = 0 if group.dense else sparse_names.index(group.name)
            colour = DENSE if group.dense else SERIES[index % len(SERIES)]
            for value in group.values:
                (mark,) = axes.plot([group.cost], [value], "os"[not group.dense], color=colour, alpha=0.75)
                canvas.tip(mark, f"{group.name}: {value:.2%} at {group.cost:,} MACs")
            if len(group.values) > 1:
                axes.plot([group.cost], [group.mean], "_", color=colour, markersize=22, markeredgewidth=2)
        log_axis(axes, "x", [float(g.cost) for g in groups])
        _name(canvas, axes, groups)
        if gain is not None:
            dense, best = gain
            style = {"arrowstyle": "->", "color": SOFT, "lw": 1.1, "shrinkA": 5, "shrinkB": 5}
            axes.annotate("", (best.cost, best.mean), (dense.cost, dense.mean), arrowprops=style)
        axes.margins(y=0.14)
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g} %")
        axes.grid(axis="y")
        axes.set_xlabel("MACs per example, forward pass")
        axes.set_ylabel("validation accuracy")
        if line:
            canvas.legend(axes)

    steps = {point.steps for point in points}
    caption = (
        "MACs of non-zero weights and attention products. Grey: dense models, and the line of those that no "
        "cheaper one beats; colours: models with masks."
    )
    if any(len(g.values) > 1 for g in groups):
        caption += " Dots are runs, bars the means of repetitions."
    if len(steps) > 1:
        caption += " The runs differ in length, which the axis does not count: the table has their steps."
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
            [_row(g, points) for g in groups],
        ),
    )


def pareto(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The points that none of equal or lower cost beats, by cost."""
    best: list[tuple[int, float]] = []
    for cost, value in sorted(points, key=lambda point: (point[0], -point[1])):
        if not best or value > best[-1][1]:
            best.append((cost, value))
    return best


def _groups(points: Sequence[Point]) -> list[_Group]:
    found: dict[tuple[str, int, bool], list[float]] = defaultdict(list)
    for point in points:
        found[point.name, point.cost, point.dense].append(point.accuracy)
    groups = [_Group(name, cost, dense, tuple(values)) for (name, cost, dense), values in found.items()]
    return sorted(groups, key=lambda g: (g.cost, g.mean))


def _best_gain(groups: Sequence[_Group]) -> tuple[_Group, _Group] | None:
    """A dense model and the best one with masks at its cost, where they differ most."""
    pairs = [
        (dense, sparse)
        for dense in groups
        for sparse in groups
        if dense.dense and not sparse.dense and abs(sparse.cost / dense.cost - 1) <= _SAME_COST
    ]
    return max(pairs, key=lambda pair: pair[1].mean - pair[0].mean, default=None)


def _name(canvas: Canvas, axes: object, groups: Sequence[_Group]) -> None:
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


def _row(group: _Group, points: Sequence[Point]) -> tuple[str, ...]:
    spread = f"{statistics.stdev(group.values):.2%}" if len(group.values) > 1 else ""
    steps = sorted({p.steps for p in points if (p.name, p.cost) == (group.name, group.cost)})
    return (
        group.name,
        "dense" if group.dense else "masked",
        f"{group.cost:,}",
        str(len(group.values)),
        f"{group.mean:.2%}",
        spread,
        f"{min(group.values):.2%}",
        f"{max(group.values):.2%}",
        ", ".join(f"{s:,}" for s in steps),
    )
