"""What bounds each layer on the simulated machine, and how near it comes to the machine's roofs."""

from __future__ import annotations

from collections.abc import Sequence

from sift_onnx.records.simulate import MachineReport, SimulatedLayer
from sift_onnx.reports.charts.canvas import Canvas, Chart
from sift_onnx.reports.charts.rows import choose_rows, log_axis, name_rows, rows_height
from sift_onnx.reports.charts.theme import FOREGROUND, SERIES, prefixed
from sift_onnx.reports.layer_groups import shown_simulated
from sift_onnx.reports.page.table import Table

__all__ = ["BOUNDS", "limits_chart", "roofline_chart", "step_name"]

BOUNDS = {"compute": SERIES[0], "reduce": SERIES[1], "stream": SERIES[2], "sram": SERIES[3]}
_STEPS = {"forward": "", "input_gradient": " dX", "weight_gradient": " dW", "mask_update": " mask"}


def step_name(layer: SimulatedLayer) -> str:
    """A layer's name, and its step of training if it is not the forward pass."""
    return f"{layer.name}{_STEPS.get(layer.step, ' ' + layer.step)}"


def limits_chart(layers: Sequence[SimulatedLayer]) -> Chart:
    """Cycles of each layer, stacked by what bound them."""
    grouped = shown_simulated(layers)
    shown, remark = choose_rows(grouped, lambda layer: float(layer.cycles))
    if len(grouped) < len(layers):
        remark = f"Layers that repeat are one row, with their sums. {remark}"
    total = sum(layer.cycles for layer in layers) or 1
    sums = {name: sum(layer.limits.get(name, 0.0) for layer in layers) for name in BOUNDS}

    def draw(canvas: Canvas) -> None:
        canvas.height(rows_height(len(shown)) + 12)
        axes = canvas.axes()
        starts = [0.0] * len(shown)
        for name, colour in BOUNDS.items():
            widths = [layer.limits.get(name, 0.0) for layer in shown]
            if not any(widths):
                continue
            bars = axes.barh(range(len(shown)), widths, 0.72, left=starts, color=colour, label=name)
            for layer, bar, width in zip(shown, bars, widths, strict=True):
                canvas.tip(bar, f"{step_name(layer)}: {width:,.0f} of {layer.cycles:,} cycles bound by {name}")
            starts = [a + b for a, b in zip(starts, widths, strict=True)]
        name_rows(canvas, axes, [step_name(layer) for layer in shown])
        axes.xaxis.set_major_formatter(lambda value, _: prefixed(value))
        axes.locator_params(axis="x", nbins=4 if canvas.narrow else 8)
        axes.set_xlabel("cycles")
        canvas.legend(axes)

    return Chart(
        "What binds each layer",
        f"Cycles of weighted layers; compute includes waits for the busiest grid column of a window. {remark}".strip(),
        "Of all cycles, " + ", ".join(f"{value / total:.0%} are bound by {name}" for name, value in sums.items()),
        draw,
        Table.of(
            "Cycles by what bounds them",
            "<layer|cycles|" + "|".join(BOUNDS),
            [
                (step_name(layer), f"{layer.cycles:,}", *(f"{layer.limits.get(n, 0.0):,.0f}" for n in BOUNDS))
                for layer in layers
            ],
        ),
    )


def roofline_chart(layers: Sequence[SimulatedLayer], machine: MachineReport) -> Chart | None:
    """MACs per second over MACs per byte at the wafer's edge; None where no layer moves bytes over the edge."""
    clock = machine.clock_hz
    peak = clock * machine.peak_macs_per_cycle
    points = [
        (layer.macs / edge, layer.macs / layer.cycles * clock, layer)
        for layer in layers
        if (edge := layer.edge_index_bytes + layer.edge_value_bytes) > 0 and layer.macs > 0
    ]
    if not points:
        return None
    edge_bytes = machine.parameters.get("edge_bytes_per_cycle")
    roof = edge_bytes.value * clock if edge_bytes is not None and edge_bytes.value else None

    def draw(canvas: Canvas) -> None:
        canvas.height(360)
        axes = canvas.axes()
        corner = [peak / roof] if roof else []
        log_axis(axes, "x", [x for x, *_ in points] + corner)
        log_axis(axes, "y", [y for _, y, _ in points] + [peak])
        low, high = axes.get_xlim()
        start = corner[0] if corner else low
        if roof:
            axes.plot([low, start], [low * roof, peak], color=FOREGROUND, linewidth=1.2)
        axes.plot([start, high], [peak, peak], color=FOREGROUND, linewidth=1.2)
        for name, colour in BOUNDS.items():
            bound = [point for point in points if point[2].bound == name]
            for i, (x, y, layer) in enumerate(bound):
                (mark,) = axes.plot(
                    [x], [y], "o", color=colour, alpha=0.8, markersize=7, label=None if i else f"bound by {name}"
                )
                canvas.tip(mark, f"{step_name(layer)}: {y:.3g} MAC/s, {x:.3g} MAC per byte")
        axes.grid(visible=True)
        axes.set_xlabel("MACs per byte over the wafer's edge")
        axes.set_ylabel("MAC/s")
        canvas.legend(axes)

    roofs = f"peak {prefixed(peak)}MAC/s" + (f", edge {prefixed(roof)}B/s" if roof else "")
    return Chart(
        "Roofline",
        f"One mark per layer; lines: {roofs}.",
        f"{len(points)} layers; the nearest to the peak reaches {max(y for _, y, _ in points) / peak:.1%} of it.",
        draw,
        Table.of(
            "Roofline",
            "<layer|MACs per byte|MAC/s|of peak|<bound by",
            [(step_name(layer), f"{x:.4g}", f"{y:.4g}", f"{y / peak:.2%}", layer.bound) for x, y, layer in points],
        ),
    )
