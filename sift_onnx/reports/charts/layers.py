"""What a transform did: the budget of the model, and each layer before and after."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from sift_onnx.records.transform import LayerChange, Totals, TransformReport
from sift_onnx.reports.charts.canvas import Canvas, Chart
from sift_onnx.reports.charts.rows import choose_rows, log_axis, name_panels, rows_height
from sift_onnx.reports.charts.theme import DENSE, SERIES, prefixed
from sift_onnx.reports.layer_groups import changes_of_each
from sift_onnx.reports.numbers import dims, si
from sift_onnx.reports.page.table import Table

__all__ = ["budget_chart", "layers_chart"]

_SHARES = {"sparse": "masked layers", "dense": "dense layers", "unchanged": "unchanged layers"}
_ATTENTION = "attention products"
_NO_BUDGET = ("prune", "densify")
_COLOURS = dict(zip((*_SHARES.values(), _ATTENTION), (SERIES[0], DENSE, SERIES[4], SERIES[3]), strict=True))


def budget_chart(report: TransformReport) -> Chart:
    """Where the multiply-accumulates are, before and after, as two bars of parts."""
    parts = _budget(report)
    names = [name for name in _COLOURS if any(parts[side][name] for side in parts)]
    totals = report.totals
    ratio = totals.weight_macs_ratio

    def draw(canvas: Canvas) -> None:
        canvas.height(165 if canvas.narrow else 128)
        axes = canvas.axes()
        most = max(sum(side.values()) for side in parts.values())
        for name in names:
            starts = [sum(parts[side][n] for n in names[: names.index(name)]) for side in parts]
            widths = [parts[side][name] for side in parts]
            bars = axes.barh(list(parts), widths, 0.62, left=starts, color=_COLOURS[name], label=name)
            for side, bar, width in zip(parts, bars, widths, strict=True):
                canvas.tip(bar, f"{side}: {name} {width:,} MACs")
                if width > most * (0.16 if canvas.narrow else 0.07):
                    centre = bar.get_x() + bar.get_width() / 2
                    axes.text(centre, bar.get_y() + 0.31, prefixed(width), ha="center", va="center", color="#fffffe")
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, most)
        axes.xaxis.set_major_formatter(lambda value, _: prefixed(value))
        axes.xaxis.set_major_locator(_locator(3 if canvas.narrow else 6))
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("multiply-accumulates of non-zero weights (MACs)")
        canvas.legend(axes)

    rows = [(name, *(f"{parts[side][name]:,}" for side in parts)) for name in names]
    rows.append(("weights in all", f"{totals.weight_macs_before:,}", f"{totals.weight_macs_after:,}"))
    return Chart(
        "MACs before and after" if report.pass_ in _NO_BUDGET else "Iso-FLOP budget",
        f"Weight MACs: {totals.weight_macs_before:,} before, {totals.weight_macs_after:,} after, "
        f"ratio {ratio:.6f}." + _attention(totals),
        "; ".join(f"{side}: " + ", ".join(f"{n} {si(parts[side][n])}" for n in names) for side in parts),
        draw,
        Table.of("MACs by kind of layer", "<part|before|after", rows),
    )


def _budget(report: TransformReport) -> dict[str, dict[str, int]]:
    sides: dict[str, dict[str, int]] = {"before": defaultdict(int), "after": defaultdict(int)}
    for layer in _layers(report):
        for side in sides:
            sides[side][_SHARES.get(layer.status, _SHARES["unchanged"])] += getattr(layer, f"macs_{side}")
    for side in sides:
        # A recipe reports only the layers that it changes.
        rest = getattr(report.totals, f"weight_macs_{side}") - sum(sides[side].values())
        sides[side][_SHARES["unchanged"]] += max(rest, 0)
        sides[side][_ATTENTION] += getattr(report.totals, f"attention_macs_{side}") or 0
    return sides


def _layers(report: TransformReport) -> list[LayerChange]:
    """The layers, each once: what one pass of a recipe made of a layer, a later one may have changed again."""
    found: dict[str, LayerChange] = {}
    for layer in report.layers:
        first = found.get(layer.name, layer)
        found[layer.name] = replace(layer, shape_before=first.shape_before, macs_before=first.macs_before)
    return list(found.values())


def _attention(totals: Totals) -> str:
    before, after = (getattr(totals, f"attention_macs_{side}") or 0 for side in ("before", "after"))
    if not before:
        return ""
    return f" Products of two activations (attention) are not weights: {si(before)} before, {si(after)} after."


def _locator(count: int) -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(count, steps=[1, 2, 5, 10])


def layers_chart(report: TransformReport) -> Chart | None:
    """MACs before and after, and weights with non-zeros, for each layer; None where no layer has any of both."""
    drawn = [layer for layer in changes_of_each(_layers(report)) if min(*_macs(layer), *_weights(layer)) > 0]
    if not drawn:
        return None
    shown, remark = choose_rows(drawn, lambda layer: layer.macs_after)
    if len(drawn) < len(report.layers):
        remark = f"Layers that repeat are one row, with the figures of the first. {remark}"

    def draw(canvas: Canvas) -> None:
        canvas.height(rows_height(len(shown), 2 if canvas.narrow else 1))
        macs, weights = canvas.panels(2, sharey=not canvas.narrow)
        _dumbbells(canvas, macs, shown, list(map(_macs, shown)), "MACs")
        _dumbbells(canvas, weights, shown, list(map(_weights, shown)), "weights")
        name_panels(canvas, (macs, weights), [layer.name for layer in shown])
        macs.set_xlabel("MACs per example")
        macs.set_title("MACs: before (ring), after (dot)")
        weights.set_xlabel("weights")
        weights.set_title("Weights: all (ring), non-zero (dot)")

    sparse = [layer.sparsity for layer in drawn if layer.status == "sparse"]
    span = f"sparsities {min(sparse):.1%} to {max(sparse):.1%}" if sparse else "no layer has a mask"
    return Chart(
        "Before and after, layer by layer",
        f"Layers in order of execution. Blue: masked; grey: dense or unchanged. {remark}".strip(),
        f"{len(drawn)} rows, {len(sparse)} of them masked; {span}.",
        draw,
        Table.of(
            "Layers before and after",
            "<weight|<kind|<shape before|<shape after|non-zeros|sparsity|MACs before|MACs after|<status",
            [_row(layer) for layer in _layers(report)],
        ),
    )


def _macs(layer: LayerChange) -> tuple[int, int]:
    return layer.macs_before, layer.macs_after


def _weights(layer: LayerChange) -> tuple[int, int]:
    """All, and those that are not zero."""
    if layer.parts is not None:
        return sum(math.prod(part.shape) for part in layer.parts), layer.nnz
    return math.prod(layer.shape_after), layer.nnz


def _dumbbells(
    canvas: Canvas, axes: Any, layers: Sequence[LayerChange], pairs: Sequence[tuple[int, int]], unit: str
) -> None:
    for y, (layer, (ring, dot)) in enumerate(zip(layers, pairs, strict=True)):
        colour = SERIES[0] if layer.status == "sparse" else DENSE
        axes.plot([ring, dot], [y, y], color=colour, linewidth=1.2, solid_capstyle="butt")
        axes.plot([ring], [y], "o", markerfacecolor="#fffffe", markeredgecolor=colour, markersize=5.5)
        (mark,) = axes.plot([dot], [y], "o", color=colour, markersize=5.5)
        words = ("before", "after") if unit == "MACs" else ("in all", "not zero")
        canvas.tip(mark, f"{layer.name}: {ring:,} {unit} {words[0]}, {dot:,} {words[1]}")
    log_axis(axes, "x", [float(value) for pair in pairs for value in pair])


def _row(layer: LayerChange) -> tuple[str, ...]:
    if layer.parts is not None:
        after = ", ".join(f"{part.role} {dims(part.shape)}" for part in layer.parts)
    else:
        after = dims(layer.shape_after)
    return (
        layer.name,
        layer.kind,
        dims(layer.shape_before),
        after,
        f"{layer.nnz:,}",
        f"{layer.sparsity:.2%}",
        f"{layer.macs_before:,}",
        f"{layer.macs_after:,}",
        layer.status + (f": {layer.reason}" if layer.reason else ""),
    )
