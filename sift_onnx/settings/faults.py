"""What msgspec says of a value that does not have its type: where it is, and whether a field is missing there."""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

__all__ = ["Fault", "fault_of"]

_PATH = re.compile(r" - at `(?:key` in `)?\$(?P<steps>.*)`$")
_STEP = re.compile(r"\.(?P<name>\w+)|\[(?P<index>\d+)\]|\[\.\.\.\]")
_MISSING = re.compile(r"Object missing required field `(?P<name>\w+)`")


@dataclass(frozen=True)
class Fault:
    """Where a value is wrong.

    Attributes:
        steps: names of fields and indices on the way to it; None for the key of a mapping, which msgspec does not name.
        missing: the field that it lacks; None where it is of the wrong type.
    """

    steps: tuple[str | int | None, ...]
    missing: str | None


def fault_of(error: msgspec.ValidationError) -> Fault:
    """The place that an error names, and the field that is missing there."""
    path, missing = _PATH.search(str(error)), _MISSING.match(str(error))
    steps = _STEP.finditer(path["steps"] if path else "")
    return Fault(
        tuple(int(step["index"]) if step["index"] else step["name"] for step in steps),
        missing["name"] if missing else None,
    )
