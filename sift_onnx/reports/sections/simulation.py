"""A simulation: what bounds it, its roofline, maps of the grid, speed-ups, the machine and what is known of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sift_onnx.records.simulate import MachineReport, SimulatedLayer, SimulationReport
from sift_onnx.reports.charts.canvas import Chart, charts_html
from sift_onnx.reports.charts.grid import heat_chart
from sift_onnx.reports.charts.latency import Curve, bounds_chart
from sift_onnx.reports.charts.simulator import limits_chart, roofline_chart
from sift_onnx.reports.charts.speedups import sweep_chart
from sift_onnx.reports.documents import Document
from sift_onnx.reports.numbers import file_size, si
from sift_onnx.reports.page.markup import Markup, join, tag
from sift_onnx.reports.page.table import Table, table_html
from sift_onnx.reports.simulate import (
    DECODE_COLUMNS,
    decode_line,
    decode_rows,
    energy_text,
    functional_lines,
    run_text,
    source_line,
    speedup_lines,
    time_text,
)

__all__ = ["bounds_html", "simulation_html", "simulation_words"]

Times = tuple[float, float, float]
_ORIGINAL = "the original"
_WAYS = {"ideal": "ideal: the original, dense", "dense": "dense execution", "measured": "zeros are skipped"}


def simulation_words(data: SimulationReport) -> str:
    """How it was simulated, in a line."""
    return (
        f"{run_text(data)}, batch {data.batch}, weights {data.weights}, {data.fidelity} model; "
        f"{data.machine.summary}. Simulated: a model of the machine, not the machine."
    )


def simulation_html(data: SimulationReport, prefix: str) -> Markup:
    """All that ``simulate`` reports."""
    weighted = [layer for layer in data.layers if layer.storage != "none" and layer.cycles > 0]
    charts: list[Chart | None] = []
    if weighted:
        charts.append(limits_chart(weighted))
    if data.sweep:
        charts.append(sweep_chart(data.sweep, _now(data, weighted)))
    charts.append(roofline_chart(weighted, data.machine))
    charts += [heat_chart(grid) for grid in data.maps or ()]
    lines = [*speedup_lines(data), *functional_lines(data)]
    return join(
        _totals(data),
        _phases(data),
        *(tag("p", line) for line in lines),
        charts_html([chart for chart in charts if chart is not None], prefix),
        tag("details", tag("summary", "Layers"), _layers(data.layers)),
        tag("details", tag("summary", "The machine, and what is known of it"), _machine(data.machine)),
        _notes(data),
    )


def bounds_html(documents: Sequence[Document[SimulationReport]], prefix: str) -> Markup:
    """Simulated time against dense execution and the ideal, for each setting that was simulated; may be empty."""
    settings: dict[tuple[Any, ...], list[SimulationReport]] = defaultdict(list)
    for d in documents:
        names = ("preset", "batch", "training", "weights", "fidelity")
        key = (run_text(d.data), *(getattr(d.data, name) for name in names))
        if d.data.speedup.vs_dense_wide is not None:
            settings[key].append(d.data)
    charts = [_bounds(runs) for runs in settings.values()]
    return charts_html([chart for chart in charts if chart is not None], prefix)


def _bounds(runs: Sequence[SimulationReport]) -> Chart | None:
    first = runs[0]
    times: dict[str, tuple[float | None, dict[str, Times]]] = {}
    for data in sorted(runs, key=_sparsity):
        ms, speedup = 1e3 * data.totals.seconds, data.speedup
        found: dict[str, Times] = {"measured": (ms, ms, ms)}
        for role, key in (("dense", "vs_dense_wide"), ("ideal", "vs_dense_original")):
            value: float | None = getattr(speedup, key)
            if value is not None:
                low, high = getattr(speedup.bands, key) or (value, value)
                found[role] = ms * value, ms * low, ms * high
        if "ideal" in found and _ORIGINAL not in times:
            # Nothing to skip: the three ways are one.
            times[_ORIGINAL] = 0.0, dict.fromkeys(_WAYS, (found["ideal"][0],) * 3)
        times.setdefault(data.model, (_sparsity(data), found))
    if len(times) < 2:
        return None
    curves = [Curve(name, role, [found.get(role) for _, found in times.values()]) for role, name in _WAYS.items()]
    step = "a training step" if first.training else run_text(first)
    caption = f"Simulated time of {step} on {first.preset}; bars are the band of what is not known of the machine."
    if _ORIGINAL not in times:
        caption += " simulate --baseline MODEL adds the ideal: the original on the same machine."
    return bounds_chart(
        f"Simulated time against its bounds, {first.preset}, batch {first.batch}",
        caption,
        {name: sparsity for name, (sparsity, _) in times.items()},
        [curve for curve in curves if any(curve.values)],
    )


def _sparsity(data: SimulationReport) -> float:
    """Of the layers with a mask."""
    sparse = [layer for layer in data.layers if layer.storage == "csr" and layer.step == "forward"]
    size = sum(layer.size for layer in sparse)
    return 1 - sum(layer.nnz for layer in sparse) / size if size else 0.0


def _now(data: SimulationReport, layers: Sequence[SimulatedLayer]) -> tuple[float, float] | None:
    value, sparsity = data.speedup.vs_dense_wide, _sparsity(data)
    return (sparsity, value) if value is not None and sparsity else None


def _totals(data: SimulationReport) -> Markup:
    totals = data.totals
    clock = data.machine.clock_hz / 1e9
    assumed = ", parts of it assumed" if data.energy.assumed else ""
    edge = file_size(round(totals.edge_index_bytes + totals.edge_value_bytes))
    rows = [
        ("time", time_text(totals.seconds), f"{totals.cycles:,} cycles at {clock:g} GHz"),
        ("utilisation", f"{totals.utilization:.1%}", "of all lanes over all cycles"),
        ("energy", energy_text(totals.energy_j), f"by the model of the machine{assumed}"),
        ("work", f"{si(totals.weight_macs)}", "MACs of non-zero weights"),
        ("over the edge", edge, f"{file_size(round(totals.edge_index_bytes))} of it indices"),
    ]
    return table_html(Table.of("Totals", "<total|value|<of which", rows))


def _phases(data: SimulationReport) -> Markup:
    if data.decode is None:
        return Markup()
    return join(
        table_html(Table.of("The prompt and the steps after it", DECODE_COLUMNS, decode_rows(data.decode))),
        tag("p", decode_line(data)),
    )


def _layers(layers: Sequence[SimulatedLayer]) -> Markup:
    columns = "<name|<operator|<step|cycles|<bound|utilisation|imbalance|non-zeros|MACs|fabric|SRAM|index|values|energy"
    rows = []
    for layer in layers:
        sizes = (getattr(layer, key) for key in ("fabric_bytes", "sram_bytes", "edge_index_bytes", "edge_value_bytes"))
        rows.append(
            (
                layer.name,
                layer.op,
                layer.step.replace("_", " "),
                f"{layer.cycles:,}",
                layer.bound,
                f"{layer.utilization:.2%}",
                f"{layer.imbalance:.2f}",
                f"{layer.nnz:,}",
                si(layer.macs),
                *(file_size(round(size)) for size in sizes),
                energy_text(layer.energy_j),
            )
        )
    return table_html(Table.of("Layers on the machine", columns, rows))


def _machine(machine: MachineReport) -> Markup:
    rows = []
    for name, p in machine.parameters.items():
        value, low, high = (_number(getattr(p, key)) for key in ("value", "low", "high"))
        spread = f"{low} to {high}" if low != high else ""
        sure = p.confidence if p.confidence != "assumed" else tag("span", "assumed", class_="bad")
        rows.append((name, value, p.unit, spread, sure, p.source))
    return table_html(Table.of("The machine", "<parameter|value|<unit|range|<confidence|<source", rows))


def _number(value: float | None) -> str:
    return "unlimited" if value is None else f"{value:g}"


def _notes(data: SimulationReport) -> Markup:
    notes = [source_line(data), *data.notes]
    if data.energy.assumed:
        notes.append(f"energy rests on assumed values of {', '.join(data.energy.assumed)}")
    notes += [
        f"{layer.name} ({layer.step}): {note}"
        for layer in data.layers
        for note in layer.notes
        if layer.step != "mask_update"
    ]
    notes += [f"not fully costed: {e.node} ({e.op}): {e.reason}" for e in data.uncosted]
    items = [tag("li", note) for note in dict.fromkeys(notes)]
    return tag("details", tag("summary", f"Notes ({len(items)})"), tag("ul", *items)) if items else Markup()
