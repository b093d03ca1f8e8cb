"""Machines: the parameters of the cycle models, and the TOML files that they are read from.

Every value of a file comes with its unit, its source and a confidence, so that a report can say what a result rests on.
A value that nobody has published may have a range; reports then give a band instead of a number.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from sift_onnx.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "ArrayMachine",
    "GridMachine",
    "IdealMachine",
    "Machine",
    "Parameter",
    "available_presets",
    "load_machine",
    "with_grid",
]

_PRESETS = Path(__file__).parent / "presets"
_CONFIDENCES = {"H": "high", "M": "medium", "L": "low", "assumed": "assumed"}


@dataclass(frozen=True)
class Parameter:
    """One value of a machine.

    Attributes:
        value: the number that is used.
        unit: of it.
        source: a document, or why it is assumed.
        confidence: ``H``, ``M``, ``L``, or ``assumed`` where there is no source.
        low: lower end of what is plausible; equal to ``value`` where it is known.
        high: upper end.
    """

    value: float
    unit: str
    source: str
    confidence: str
    low: float
    high: float


@dataclass(frozen=True)
class _Named:
    """What all kinds of machine have.

    Attributes:
        name: of the preset, or of the file.
        summary: one line.
        parameters: where each value comes from, by name.
    """

    name: str
    summary: str
    parameters: Mapping[str, Parameter] = field(repr=False)


@dataclass(frozen=True)
class GridMachine(_Named):
    """A grid of cores that weights are streamed over, column by column.

    Attributes:
        clock_hz: cycles per second.
        columns: cores along x, over which the input features of a layer are spread.
        rows: cores along y, over which tokens (batch times positions) are spread.
        simd_lanes: multiply-accumulates of one vector step.
        cycles_per_vector: cycles of one vector step.
        axpy_startup: cycles that each non-zero of a sparse weight costs besides its vector steps.
        dense_startup: the same for a weight that is streamed densely, in order and without indices.
        row_overhead: cycles that each core spends on each output row.
        window_rows: output rows that may be in flight at once; ``inf`` lets columns run apart without limit.
        value_bytes: bytes of an activation.
        partial_sum_bytes: bytes of a partial sum on its way along a row of cores.
        sram_bytes: memory of a core.
        sram_reserved_bytes: what code, queues and stack take of it.
        sram_port_bytes: bytes that a core reads and writes per cycle.
        link_bytes: bytes that a link between neighbours carries per cycle and direction.
        hop_cycles: cycles from a router to the next.
        queue_words: wavelets that an input queue holds.
        index_bits: of the index in a wavelet that carries a non-zero.
        edge_bytes_per_cycle: bytes that enter the wafer, or leave it, per cycle.
        edge_index_bytes: bytes of an index at the wafer's edge.
        edge_value_bytes: bytes of a weight at the wafer's edge.
        core_cycle_pj: energy of a core that computes, picojoules per cycle, all included.
        idle_fraction: share of it that a waiting core takes.
        edge_byte_pj: energy of a byte over the wafer's edge, picojoules.
    """

    clock_hz: float
    columns: int
    rows: int
    simd_lanes: int
    cycles_per_vector: float
    axpy_startup: float
    dense_startup: float
    row_overhead: float
    window_rows: float
    value_bytes: int
    partial_sum_bytes: int
    sram_bytes: float
    sram_reserved_bytes: float
    sram_port_bytes: float
    link_bytes: float
    hop_cycles: float
    queue_words: int
    index_bits: int
    edge_bytes_per_cycle: float
    edge_index_bytes: float
    edge_value_bytes: float
    core_cycle_pj: float
    idle_fraction: float
    edge_byte_pj: float

    @property
    def cores(self) -> int:
        """Cores of the grid."""
        return self.columns * self.rows

    @property
    def peak_macs_per_cycle(self) -> float:
        """Multiply-accumulates per cycle with every core busy."""
        return self.cores * self.simd_lanes / self.cycles_per_vector


@dataclass(frozen=True)
class ArrayMachine(_Named):
    """A weight-stationary systolic array, as a contrast: it skips an input feature only if no output uses it.

    Attributes:
        clock_hz: cycles per second.
        array_rows: processing elements along the summed axis.
        array_columns: processing elements along the output features.
        value_bytes: bytes of a weight and of an activation.
        mac_pj: energy of a multiply-accumulate, picojoules.
    """

    clock_hz: float
    array_rows: int
    array_columns: int
    value_bytes: int
    mac_pj: float

    @property
    def peak_macs_per_cycle(self) -> float:
        """Multiply-accumulates per cycle with every element busy."""
        return float(self.array_rows * self.array_columns)


@dataclass(frozen=True)
class IdealMachine(_Named):
    """Hardware on which FLOPs translate directly to time (paper, section 4): every non-zero costs the same, no more.

    Attributes:
        clock_hz: cycles per second.
        macs_per_cycle: multiply-accumulates per cycle.
        value_bytes: bytes of a weight and of an activation.
        mac_pj: energy of a multiply-accumulate, picojoules.
    """

    clock_hz: float
    macs_per_cycle: float
    value_bytes: int
    mac_pj: float

    @property
    def peak_macs_per_cycle(self) -> float:
        """As given."""
        return self.macs_per_cycle


Machine = GridMachine | ArrayMachine | IdealMachine

_KINDS: dict[str, Any] = {"grid": GridMachine, "array": ArrayMachine, "ideal": IdealMachine}
# What may be nothing; everything else has to be above 0.
_MAY_BE_ZERO = {
    "axpy_startup",
    "dense_startup",
    "row_overhead",
    "sram_reserved_bytes",
    "hop_cycles",
    "edge_index_bytes",
    "core_cycle_pj",
    "idle_fraction",
    "edge_byte_pj",
    "mac_pj",
}
_MAY_BE_INFINITE = {"window_rows", "sram_bytes", "sram_port_bytes", "link_bytes", "edge_bytes_per_cycle"}


def available_presets() -> tuple[str, ...]:
    """The names of the machines that come with the package."""
    return tuple(sorted(path.stem for path in _PRESETS.glob("*.toml")))


def load_machine(name: str | Path) -> Machine:
    """A machine by the name of a preset, or from a file that ends in ``.toml``.

    Raises:
        UsageError: there is no such preset or file, or a value of it is missing, negative, unknown, out of its range,
            or without a source; the message names the file and the value.
    """
    path = Path(name)
    if path.suffix != ".toml":
        path = _PRESETS / f"{name}.toml"
        if str(name) not in available_presets():
            raise UsageError(
                f"no machine {str(name)!r}; choose {', '.join(available_presets())}, or name a .toml file of your own"
            )
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read the machine {path}: {reason}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}") from error
    return _parse(document, str(path), path.stem)


def _parse(document: Mapping[str, Any], where: str, name: str) -> Machine:
    kind = _KINDS.get(document.get("kind", ""))
    if kind is None:
        raise UsageError(f"{where}: kind is {document.get('kind')!r}; choose {', '.join(_KINDS)}")
    types = {f.name: f.type for f in fields(kind) if f.name not in ("name", "summary", "parameters")}
    tables = document.get("parameters")
    if not isinstance(tables, Mapping):
        raise UsageError(
            f"{where}: there is no table [parameters]; each value stands in one of its own, "
            f"[parameters.{next(iter(types))}]"
        )
    for key in tables:
        if key not in types:
            raise UsageError(f"{where}: no parameter {key!r}; there are {', '.join(types)}")
    parameters: dict[str, Parameter] = {}
    for key in types:
        if key not in tables:
            raise UsageError(
                f"{where}: the parameter {key!r} is missing; add [parameters.{key}] with value, unit, "
                "source and confidence"
            )
        parameters[key] = _parameter(tables[key], f"{where}: {key}", key, types[key] == "int")
    values = {key: int(p.value) if types[key] == "int" else p.value for key, p in parameters.items()}
    machine: Machine = kind(name=name, summary=str(document.get("summary", "")), parameters=parameters, **values)
    if isinstance(machine, GridMachine) and machine.sram_reserved_bytes >= machine.sram_bytes:
        raise UsageError(f"{where}: sram_reserved_bytes leaves nothing of sram_bytes ({machine.sram_bytes:g})")
    return machine


def _parameter(table: Any, where: str, key: str, whole: bool) -> Parameter:
    if not isinstance(table, Mapping) or "value" not in table:
        raise UsageError(f"{where}: write it as a table with value, unit, source and confidence")
    value = _number(table["value"], where, key, whole)
    source, confidence = table.get("source"), table.get("confidence")
    if not isinstance(source, str) or not source:
        raise UsageError(f"{where}: source is missing; name the document, or say why it is assumed")
    if confidence not in _CONFIDENCES:
        raise UsageError(f"{where}: confidence is {confidence!r}; choose {', '.join(_CONFIDENCES)}")
    low, high = (_number(table.get(end, value), f"{where}, {end}", key, whole) for end in ("low", "high"))
    if not low <= value <= high:
        raise UsageError(f"{where}: {value:g} lies outside of its range, {low:g} to {high:g}")
    return Parameter(value, str(table.get("unit", "")), source, confidence, low, high)


def _number(value: Any, where: str, key: str, whole: bool) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise UsageError(f"{where}: {value!r} is no number")
    if math.isinf(value) and key not in _MAY_BE_INFINITE:
        raise UsageError(f"{where}: it must be finite")
    if value < 0 or (value == 0 and key not in _MAY_BE_ZERO):
        raise UsageError(f"{where}: it is {value}; it must be {'0 or more' if key in _MAY_BE_ZERO else 'above 0'}")
    if (whole or key == "window_rows") and math.isfinite(value) and value != int(value):
        raise UsageError(f"{where}: {value} is no whole number")
    return float(value)


def with_grid(machine: GridMachine, columns: int, rows: int) -> GridMachine:
    """``machine`` with another number of cores, all else the same.

    Raises:
        UsageError: a number below 1.
    """
    if columns < 1 or rows < 1:
        raise UsageError(f"a grid of {columns}x{rows} cores; both must be at least 1")
    said = {
        key: Parameter(size, "cores", "given by the caller", "H", size, size)
        for key, size in (("columns", columns), ("rows", rows))
    }
    return replace(
        machine,
        name=f"{machine.name}, {columns}x{rows}",
        columns=columns,
        rows=rows,
        parameters={**machine.parameters, **said},
    )
