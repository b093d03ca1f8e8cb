"""Settings as options of the command line.

Messages of the core name a setting as Python takes it, between backquotes: ``input_shapes``, or with a value
``storage='dense'``. The same message on the command line names the option: ``--input-shapes``, ``--storage dense``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, TypeVar

__all__ = ["SETTINGS", "with_flags"]

Value = TypeVar("Value")

# Each is an option of a verb, and a keyword in Python.
SETTINGS = (
    "activation", "activations", "attention", "augment", "batch", "budget", "calibration", "data", "decode", "device",
    "distribution", "dynamic", "eos", "fidelity", "force", "format", "full", "html", "init", "input_shapes",
    "keep_dense", "keep_float", "max_new_tokens", "metric", "normalize", "only", "pattern", "resize_output", "resume",
    "seed", "storage", "strict", "teacher", "temperature", "top_k", "training", "weights",
)  # fmt: skip

# The second form is one more value of the setting before it.
_SETTING = re.compile(rf"`(?P<name>{'|'.join(SETTINGS)})(?:=(?P<value>[^`]+))?`|`(?P<other>'[^'`]*')`")
# One input's shape, of which some sizes may be letters.
_SHAPE = re.compile(r"\{(?P<name>.+): \((?P<sizes>[^()]*)\)\}")


def with_flags(value: Value) -> Value:
    """``value`` with options in place of settings: a text, or what texts are in (lists, mappings, records)."""
    result: Any = value
    if isinstance(value, str):
        result = _SETTING.sub(_as_flag, value)
    elif isinstance(value, Mapping):
        result = {key: with_flags(entry) for key, entry in value.items()}
    elif isinstance(value, (list, tuple)):
        result = type(value)(map(with_flags, value))
    elif hasattr(type(value), "__struct_fields__"):  # a record, without the import of msgspec
        record: Any = value
        result = type(record)(**{name: with_flags(getattr(record, name)) for name in record.__struct_fields__})
    return result  # type: ignore[no-any-return]


def _as_flag(setting: re.Match[str]) -> str:
    if setting["other"]:
        return str(ast.literal_eval(setting["other"]))
    flag = "--" + setting["name"].replace("_", "-")
    value = setting["value"]
    if value is None or value == "True":
        return flag
    shape = _SHAPE.fullmatch(value)
    if shape is not None:
        sizes = shape["sizes"].rstrip(",").replace(" ", "")
        return f"{flag} {ast.literal_eval(shape['name'])}:{sizes}"
    try:
        return f"{flag} {ast.literal_eval(value)}"
    except (SyntaxError, ValueError):
        return f"{flag} {value}"
