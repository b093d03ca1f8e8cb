"""Holds a JSON document against the fields that a report needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sift_onnx.errors import UsageError

__all__ = ["Maybe", "Number", "hold", "is_there"]

# Fields are described by: a type; Number; Maybe, where null may stand; a mapping of names, in which a trailing ``?``
# marks what need not be there, and ``*`` stands for every name; a list with the description of its entries; a tuple of
# the descriptions of a list of just that length.


@dataclass(frozen=True)
class Number:
    """A number within bounds, both included."""

    low: float
    high: float = 1e18
    whole: bool = False

    def takes(self, value: Any) -> bool:
        """Whether ``value`` is such a number."""
        types = int if self.whole else (int, float)
        return isinstance(value, types) and not isinstance(value, bool) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"a {'whole ' * self.whole}number" + (f" from {self.low:g}" if self.low > -1e18 else "")


@dataclass(frozen=True)
class Maybe:
    """What ``wanted`` describes, or null."""

    wanted: Any


def is_there(data: Mapping[str, Any], key: str, wanted: Any) -> bool:
    """Whether a field is there, and is what is meant: several verbs have ``totals``, with other names in them."""
    if key not in data or not isinstance(wanted, Mapping):
        return key in data
    told = next((name for name in wanted if not name.endswith(("?", "*"))), None)
    return isinstance(data[key], dict) and (told is None or told in data[key])


def hold(value: Any, wanted: Any, where: str, what: str) -> None:
    """Hold a value against its description; fields that need not be there are taken out where they are null.

    Args:
        value: of the document.
        wanted: its description.
        where: its place in the document.
        what: the document, for the message.

    Raises:
        UsageError: something is missing, or is of the wrong kind.
    """
    match wanted:
        case Maybe():
            if value is not None:
                hold(value, wanted.wanted, where, what)
        case Number():
            _demand(wanted.takes(value), value, str(wanted), where, what)
        case Mapping():
            _demand(isinstance(value, dict), value, "an object", where, what)
            _hold_names(value, wanted, where, what)
        case list():
            _demand(isinstance(value, list), value, "a list", where, what)
            for i, entry in enumerate(value):
                hold(entry, wanted[0], f"{where}[{i}]", what)
        case tuple():
            right = isinstance(value, list) and len(value) == len(wanted)
            _demand(right, value, f"a list of {len(wanted)}", where, what)
            for i, (entry, inner) in enumerate(zip(value, wanted, strict=True)):
                hold(entry, inner, f"{where}[{i}]", what)
        case _:
            _demand(isinstance(value, wanted), value, "text" if wanted is str else "true or false", where, what)


def _hold_names(value: dict[str, Any], wanted: Mapping[str, Any], where: str, what: str) -> None:
    for key, inner in wanted.items():
        if key == "*":
            for name, entry in value.items():
                hold(entry, inner, f"{where}.{name}", what)
            continue
        name = key.removesuffix("?")
        place = f"{where}.{name}" if where else name
        if name != key and value.get(name) is None:
            value.pop(name, None)
            continue
        if name not in value:
            raise UsageError(f"{what} has no {place}; it is damaged, or of another version: make it anew")
        hold(value[name], inner, place, what)


def _demand(right: bool, value: Any, wanted: str, where: str, what: str) -> None:
    if right:
        return
    text = json.dumps(value)
    shown = text if len(text) <= 40 else text[:40] + "..."
    raise UsageError(f"{what} has {shown} for {where}, which is to be {wanted}; make it anew")
