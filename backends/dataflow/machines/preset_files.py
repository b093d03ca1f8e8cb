"""Reading a machine from a TOML file: a preset of the package, or a file of the user's."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from sift_onnx.backends.dataflow.machines.machine import ArrayMachine, GridMachine, IdealMachine, Machine, Parameter
from sift_onnx.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["available_presets", "load_machine"]

# At the root of the room, where the documentation tells users to copy them from.
_PRESETS = Path(__file__).parents[1] / "presets"
_CONFIDENCES = {"H": "high", "M": "medium", "L": "low", "assumed": "assumed"}

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
