"""The result of ``simulate`` in words: a table of layers, the totals, and speed-ups with what they are against."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from sift_onnx.records.simulate import DecodePhase, SimulatedDecode, SimulatedLayer, SimulationReport
from sift_onnx.reports.fitting_table import FittingTable
from sift_onnx.reports.layer_groups import remark, shown_simulated
from sift_onnx.reports.numbers import file_size, si

__all__ = [
    "decode_line",
    "decode_rows",
    "energy_text",
    "functional_lines",
    "run_text",
    "simulate_tables",
    "source_line",
    "speedup_lines",
    "time_text",
]

# Of the table of phases; the last two columns are speed-ups.
DECODE_COLUMNS = "<phase|cycles|time|utilisation|weights|cache read|cache written|energy|vs dense|vs original"

_MOST_NOTES = 10
_STEPS = {
    "forward": "",
    "input_gradient": "input gradient",
    "weight_gradient": "weight gradient",
    "mask_update": "mask update",
}


def simulate_tables(report: SimulationReport, full: bool = False) -> Iterator[RenderableType]:
    """Tables and lines for what ``simulate`` reports.

    Args:
        report: of the simulation.
        full: whether every layer has a row in models of any size.
    """
    weighted = [layer for layer in report.layers if layer.storage != "none"]
    shown = shown_simulated(weighted, full)
    yield _layer_table(report, shown)
    yield from remark(len(weighted), len(shown))
    rest = [layer for layer in report.layers if layer.storage == "none"]
    if rest:
        yield _weightless_table(report, rest)
    if report.decode is not None:
        phases = FittingTable(DECODE_COLUMNS, title=f"{report.model}, {run_text(report)}")
        for row in decode_rows(report.decode):
            phases.add_row(*row)
        yield phases
        yield decode_line(report)
    yield from _totals(report)
    yield source_line(report)
    yield from speedup_lines(report)
    yield from functional_lines(report)
    splits = [(layer, note) for layer in weighted for note in layer.notes if layer.step != "mask_update"]
    most = len(splits) if full else _MOST_NOTES
    for layer, note in splits[:most]:
        yield f"{layer.name} ({layer.step}): {note}"
    if len(splits) > most:
        yield f"{len(splits) - most} more such notes; `full=True` lists all"
    for note in report.notes:
        yield f"note: {note}"
    for entry in report.uncosted:
        yield f"not fully costed: {entry.node} ({entry.op}): {entry.reason}"


def _layer_table(report: SimulationReport, layers: Sequence[SimulatedLayer]) -> FittingTable:
    title = f"{report.model} on {report.preset}, batch {report.batch}, {report.fidelity} model"
    columns = "<weight|<step|cycles|share|bound|utilisation|imbalance|non-zeros|MACs|index|values|energy"
    spare = ("step", "values", "index", "MACs", "non-zeros", "energy", "imbalance")
    table = FittingTable(columns, title=title, spare=spare)
    cycles = max(report.totals.cycles, 1)
    for layer in layers:
        table.add_row(
            layer.name,
            _STEPS[layer.step],
            f"{layer.cycles:,}",
            f"{layer.cycles / cycles:.1%}",
            layer.bound,
            f"{layer.utilization:.2%}",
            f"{layer.imbalance:.2f}",
            f"{layer.nnz:,}",
            si(layer.macs),
            file_size(round(layer.edge_index_bytes)),
            file_size(round(layer.edge_value_bytes)),
            energy_text(layer.energy_j),
        )
    return table


def _weightless_table(report: SimulationReport, layers: Sequence[SimulatedLayer]) -> FittingTable:
    table = FittingTable("<operator|nodes|cycles|share", title="Work without weights, by operator")
    groups: dict[str, list[SimulatedLayer]] = defaultdict(list)
    for layer in layers:
        groups[layer.op].append(layer)
    cycles = max(report.totals.cycles, 1)
    for op, members in sorted(groups.items(), key=lambda item: -sum(layer.cycles for layer in item[1])):
        total = sum(layer.cycles for layer in members)
        table.add_row(op, str(len(members)), f"{total:,}", f"{total / cycles:.2%}")
    return table


def _totals(report: SimulationReport) -> Iterator[str]:
    totals = report.totals
    yield (
        f"{run_text(report)}: {totals.cycles:,} cycles, {time_text(totals.seconds)} at "
        f"{report.machine.clock_hz / 1e9:g} GHz, utilisation {totals.utilization:.2%}"
    )
    cycles = max(totals.cycles, 1)
    shares = ", ".join(f"{name} {value / cycles:.1%}" for name, value in (totals.limits or {}).items())
    yield f"bound by: {shares}"
    yield (
        f"traffic: fabric {_bytes(totals.fabric_bytes)} (times links), SRAM {_bytes(totals.sram_bytes)}, wafer "
        f"edge {_bytes(totals.edge_index_bytes)} of indices and {_bytes(totals.edge_value_bytes)} of values"
    )
    assumed = report.energy.assumed
    remark = f" (assumed: {', '.join(assumed)})" if assumed else ""
    yield (
        f"energy: {energy_text(totals.energy_j)}, of it {energy_text(totals.busy_energy_j)} computing, "
        f"{energy_text(totals.idle_energy_j)} waiting, {energy_text(totals.edge_energy_j)} at the edge{remark}"
    )


def run_text(report: SimulationReport) -> str:
    """What was run, in a few words."""
    if report.decode is not None:
        return f"prompt of {report.decode.prompt:,}, {report.decode.tokens:,} new tokens"
    return "training step" if report.training else "inference"


def decode_rows(decode: SimulatedDecode) -> Iterator[tuple[str, ...]]:
    """Rows of a table of phases, see :data:`DECODE_COLUMNS`."""
    names = {"prefill": "prompt", "step": f"mean of {decode.steps:,} steps", "whole": "all"}
    for phase in decode.phases:
        yield (
            names[phase.name],
            f"{phase.cycles:,.0f}",
            time_text(phase.seconds),
            f"{phase.utilization:.2%}",
            _bytes(phase.weight_bytes),
            _bytes(phase.cache_read_bytes),
            _bytes(phase.cache_written_bytes),
            energy_text(phase.energy_j),
            *_factors(phase),
        )


def _factors(phase: DecodePhase) -> Iterator[str]:
    for value in (phase.speedup.vs_dense_wide, phase.speedup.vs_dense_original):
        yield "" if value is None else f"{value:.2f}x"


def decode_line(report: SimulationReport) -> str:
    """Tokens per second, and what they wait for."""
    decode = report.decode
    assert decode is not None
    sequences = "" if report.batch == 1 else f" of {report.batch:,} sequences"
    return (
        f"{decode.tokens_per_second:,.0f} tokens per second{sequences} after the first, which takes "
        f"{time_text(decode.first_seconds)}; the cache has {_bytes(decode.cache_bytes)} in the end"
    )


def source_line(report: SimulationReport) -> str:
    """Which of the machine's values are assumptions, and which have a weak source."""
    named: dict[str, list[str]] = defaultdict(list)
    for name, parameter in report.machine.parameters.items():
        named[parameter.confidence].append(name)
    parts = {"assumed": "assumed, without a source", "L": "from a weak source"}
    said = [f"{text}: {', '.join(named[key])}" for key, text in parts.items() if named[key]]
    return f"values of {report.preset} {'; '.join(said) or 'all have a source'}"


def speedup_lines(report: SimulationReport) -> Iterator[str]:
    """One line per speed-up, with its baseline, its band, and what was published."""
    against = {
        "vs_dense_wide": "the same model executed dense",
        "vs_dense_original": "the original model",
    }
    speedup = report.speedup
    unknown = [
        f"{name} {p.low:g} to {p.high:g}"
        for name, p in report.machine.parameters.items()
        if name in ("window_rows", "axpy_startup") and p.low != p.high
    ]
    for key, other in against.items():
        value: float | None = getattr(speedup, key)
        if value is None:
            continue
        low, high = getattr(speedup.bands, key) or (value, value)
        band = f"; {low:.2f}x to {high:.2f}x over {' and '.join(unknown)}, which are not published" if unknown else ""
        line = f"{value:.2f}x the speed of {other} on this machine"
        if value < 1:
            line = f"{1 / value:.2f}x slower than {other} on this machine ({value:.2f}x its speed)"
        yield line + band
    for entry in report.published or ():
        against_dense = f"{entry.speedup:g}x over the same model executed dense"
        yield f"published: {against_dense} ({entry.source}); {entry.remark}"


def functional_lines(report: SimulationReport) -> Iterator[str]:
    """What was run, and one line per output: how far it is from onnxruntime's."""
    if report.functional is None:
        return
    executed = report.functional
    nodes = ", ".join(f"{name} {count}" for name, count in executed.nodes.items())
    inputs = ", ".join(f"{name} {tuple(shape)}" for name, shape in executed.inputs.items())
    yield (f"executed in {executed.arithmetic}, nodes: {nodes}; random inputs {inputs or 'none'}, seed {executed.seed}")
    for output in executed.outputs:
        what = f"output {output.name!r} {tuple(output.shape)}"
        if output.max_abs_error is None or output.max_abs is None:
            yield f"{what}: not finite, or empty; not compared with onnxruntime's"
        else:
            yield (
                f"{what}: at most {output.max_abs_error:.3g} from onnxruntime's, whose values reach "
                f"{output.max_abs:.3g}"
            )


def time_text(seconds: float) -> str:
    """A time with three digits and a unit."""
    return _scaled(seconds, ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")))


def energy_text(joules: float) -> str:
    """An energy with three digits and a unit."""
    return _scaled(joules, ((1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"), (1e-6, "µJ"), (1e-9, "nJ")))


def _scaled(number: float, units: Sequence[tuple[float, str]]) -> str:
    """``number`` in the largest unit that it reaches, or else in the last."""
    size, unit = next((entry for entry in units if number >= entry[0]), units[-1])
    return f"{number / size:.3g} {unit}"


def _bytes(count: float) -> str:
    return f"{count / 1e12:.2f} TB" if count >= 1e12 else file_size(round(count))
