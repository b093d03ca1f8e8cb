"""Reading a machine from a TOML file: a preset of the package, or a file of the user's."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_type_hints

from sift_onnx.backends.dataflow.machines.machine import ArrayMachine, GridMachine, IdealMachine, Machine, Parameter
from sift_onnx.errors import UsageError
from sift_onnx.settings.convert import convert

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["available_presets", "load_machine"]

# At the root of the room, where the documentation tells users to copy them from.
_PRESETS = Path(__file__).parents[1] / "presets"

# Fields that every machine has, besides its parameters.
_OWN = ("name", "summary", "parameters")
_KINDS: dict[str, Any] = {"grid": GridMachine, "array": ArrayMachine, "ideal": IdealMachine}


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
    kind = _KINDS[convert(document.get("kind"), Literal["grid", "array", "ideal"], where=f"{where}: kind")]
    types = {key: hint for key, hint in get_type_hints(kind, include_extras=True).items() if key not in _OWN}
    tables = document.get("parameters")
    if not isinstance(tables, Mapping):
        raise UsageError(
            f"{where}: there is no table [parameters]; each value stands in one of its own, "
            f"[parameters.{next(iter(types))}]"
        )
    for key in tables:
        if key not in types:
            raise UsageError(f"{where}: no parameter {key!r}; there are {', '.join(types)}")
    for key in types:
        if key not in tables:
            raise UsageError(
                f"{where}: the parameter {key!r} is missing; add [parameters.{key}] with value, unit, "
                "source and confidence"
            )
    parameters = {key: convert(tables[key], Parameter, where=f"{where}: {key}", ignore_unknown=True) for key in types}
    values = {key: _value(tables[key], f"{where}: {key}", key, types[key]) for key in types}
    machine: Machine = kind(name=name, summary=str(document.get("summary", "")), parameters=parameters, **values)
    if isinstance(machine, GridMachine) and machine.sram_reserved_bytes >= machine.sram_bytes:
        raise UsageError(f"{where}: sram_reserved_bytes leaves nothing of sram_bytes ({machine.sram_bytes:g})")
    return machine


def _value(table: Mapping[str, Any], where: str, key: str, kind: Any) -> float:
    """The value of a table; the ends of its range have to be of its type as well."""
    for end in ("low", "high", "value"):
        if end in table:
            value: float = convert(table[end], kind, where=where if end == "value" else f"{where}, {end}")
            if key == "window_rows" and math.isfinite(value) and value != int(value):
                raise UsageError(f"{where} is {value}; write a whole number, or inf")
    return value
