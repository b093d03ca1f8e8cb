"""Latency against its two bounds (Figure 3 of the Sparse-IFT paper): ideal hardware, and dense execution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sift_onnx.reports.charts.canvas import Canvas, Chart
from sift_onnx.reports.charts.rows import log_axis, name_rows
from sift_onnx.reports.charts.theme import DENSE, FOREGROUND, SERIES, label
from sift_onnx.reports.numbers import rate
from sift_onnx.reports.page.table import Table

__all__ = ["Curve", "bounds_chart"]

_STYLES = {"ideal": (FOREGROUND, ":"), "dense": (SERIES[1], "-"), "measured": (SERIES[2], "-")}
_MORE = (SERIES[0], SERIES[3], SERIES[4], SERIES[5])
# A line between two models would say something of what is between them.
_FEWEST_ON_A_LINE = 3


@dataclass(frozen=True)
class Curve:
    """Times of several models, run one way.

    Attributes:
        name: how they were run.
        role: ``ideal`` if nothing but non-zeros took time, ``dense`` if zeros took as long as others, ``measured``.
        values: for each model the time in ms, and its lower and upper end; None where there is none.
    """

    name: str
    role: str
    values: Sequence[tuple[float, float, float] | None]


def bounds_chart(title: str, caption: str, models: Mapping[str, float | None], curves: Sequence[Curve]) -> Chart:
    """Time over sparsity, one line for each way to run the models.

    Args:
        title: of the chart.
        caption: how it was come by.
        models: their names, and their sparsity where it is known; the baseline has 0.
        curves: at least one.
    """
    names, sparsities = list(models), list(models.values())
    # Without sparsities that differ, models are placed next to each other.
    known = [s for s in sparsities if s is not None]
    apart = len(known) == len(names) and len(set(known)) == len(names)
    order = sorted(range(len(names)), key=lambda i: (sparsities[i] is None, sparsities[i] or 0.0))

    def draw(canvas: Canvas) -> None:
        if len(names) < _FEWEST_ON_A_LINE:
            _draw_bars(canvas, names, sparsities, order, curves)
            return
        canvas.height(380 if canvas.narrow else 340)
        axes = canvas.axes()
        colours = _colours(curves)
        for curve in sorted(curves, key=lambda c: c.role != "ideal"):
            colour, line = colours[curve.name], _STYLES[curve.role][1]
            found = [(x, i, v) for x, i in enumerate(order) if (v := curve.values[i]) is not None]
            xs = [100 * (sparsities[i] or 0.0) if apart else float(x) for x, i, _ in found]
            marks = "" if curve.role == "ideal" else "o"
            axes.plot(xs, [v[0] for *_, v in found], line + marks, color=colour, label=label(curve.name, 46))
            for x, (_, i, (value, low, high)) in zip(xs, found, strict=True):
                if curve.role == "ideal":
                    continue
                axes.plot([x, x], [low, high], color=colour, linewidth=1)
                (mark,) = axes.plot([x], [value], "o", color=colour)
                canvas.tip(mark, f"{names[i]}, {curve.name}: {value:.4g} ms ({low:.4g} to {high:.4g})")
        log_axis(
            axes,
            "y",
            [end for c in curves for v in c.values if v is not None for end in (v[:1] if c.role == "ideal" else v)],
        )
        if apart:
            axes.set_xticks([100 * s for s in known], [f"{100 * s:.4g} %" for s in known])
            axes.set_xlabel("sparsity of the masked layers")
        else:
            most = 12 if canvas.narrow else 30
            axes.set_xticks(range(len(names)), [_with_sparsity(label(names[i], most), sparsities[i]) for i in order])
            axes.set_xlabel("model")
        axes.margins(x=0.06)
        axes.grid(axis="y")
        axes.set_ylabel("time per batch, ms")
        canvas.legend(axes, columns=(1, 3))

    rows = []
    for curve in curves:
        for i in order:
            value = curve.values[i]
            if value is not None and curve.role != "ideal":
                rows.append(
                    (names[i], "" if sparsities[i] is None else f"{sparsities[i]:.2%}", curve.name,
                     *(f"{v:.4g}" for v in value))
                )  # fmt: skip
    return Chart(
        title,
        caption,
        "; ".join(f"{name}, {how}: {ms} ms" for name, _, how, ms, *_ in rows[:20]),
        draw,
        Table.of(title, "<model|sparsity|<run by|ms|from|to", rows),
    )


def _draw_bars(
    canvas: Canvas, names: Sequence[str], sparsities: Sequence[float | None], order: Sequence[int],
    curves: Sequence[Curve],
) -> None:  # fmt: skip
    """A bar for each model and each way to run it, with its time; a dotted line at the ideal."""
    colours = _colours(curves)
    bars = []
    for i in order:
        found = [(i, c, v) for c in curves if c.role != "ideal" and (v := c.values[i]) is not None]
        # A model without zeros takes as long however it is run.
        bars += found[-1:] if len({value for *_, value in found}) == 1 else found
    canvas.height(110 + 34 * len(bars))
    axes = canvas.axes()
    shown: set[str] = set()
    for y, (i, curve, (value, low, high)) in enumerate(bars):
        name = "" if curve.name in shown else label(curve.name, 46)
        shown.add(curve.name)
        bar = axes.barh([y], [value], 0.62, color=colours[curve.name], label=name)[0]
        canvas.tip(bar, f"{names[i]}, {curve.name}: {value:.4g} ms ({low:.4g} to {high:.4g})")
        axes.plot([low, high], [y, y], color=FOREGROUND, linewidth=1)
        axes.annotate(f"{rate(value)} ms", (max(value, high), y), (5, 0), textcoords="offset points", va="center")
    for curve in curves:
        ideal = next((v for v in curve.values if v is not None), None)
        if curve.role == "ideal" and ideal is not None:
            axes.axvline(ideal[0], color=FOREGROUND, linestyle=":", linewidth=1.6, label=label(curve.name, 46))
    name_rows(canvas, axes, [_in_a_row(names[i], sparsities[i]) for i, *_ in bars])
    axes.set_xlim(0, 1.22 * max(max(v[0], v[2]) for *_, v in bars))
    axes.locator_params(axis="x", nbins=4 if canvas.narrow else 8)
    axes.set_xlabel("time per batch, ms")
    canvas.legend(axes, columns=(1, 3))


def _colours(curves: Sequence[Curve]) -> dict[str, str]:
    """A colour for each way to run; what was measured first has that of its role, others have more."""
    colours: dict[str, str] = {}
    spare = list(_MORE)
    for curve in curves:
        colour = _STYLES[curve.role][0]
        if curve.role == "measured" and colour in colours.values():
            colour = spare.pop(0) if spare else DENSE
        colours[curve.name] = colour
    return colours


def _in_a_row(name: str, sparsity: float | None) -> str:
    name = name.removesuffix(".onnx")
    return name if not sparsity else f"{name}, {100 * sparsity:.0f} %"


def _with_sparsity(name: str, sparsity: float | None) -> str:
    return name if sparsity is None else f"{name}\n{100 * sparsity:.4g} %"
