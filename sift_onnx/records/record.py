"""What records are made of: their base, and numbers within bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

__all__ = ["SCHEMA", "Amount", "Count", "Positive", "Real", "Record", "Share", "json_of", "print_records_by"]

SCHEMA = 1

_MOST_SHOWN = 4
_MOST = 10**18
# Bounds hold for what is read.
Count = Annotated[int, Meta(ge=0, le=_MOST)]
Amount = Annotated[float, Meta(ge=0, le=_MOST)]
Positive = Annotated[float, Meta(ge=1e-12, le=_MOST)]
Real = Annotated[float, Meta(ge=-_MOST, le=_MOST)]
# With room for rounding.
Share = Annotated[float, Meta(ge=-1e-9, le=1 + 1e-9)]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a JSON document. Fields have the names of the document, and are in its order.

    A record prints as the tables of the command line, and notebooks render it so, where a printer is known for it
    (:func:`print_records_by`): ``print(report)``, ``report`` at the end of a cell. ``repr(report)`` is one line.
    """

    def __str__(self) -> str:
        text = _printer(self, "text") if _printer is not None else None
        return repr(self) if text is None else text

    def _repr_html_(self) -> str | None:
        return _printer(self, "html") if _printer is not None else None

    def __repr__(self) -> str:
        fields = [
            (field.name, getattr(self, field.name), field.default) for field in msgspec.structs.fields(type(self))
        ]
        shown = [f"{name}={_short(value)}" for name, value, default in fields if value is not default]
        return f"{type(self).__name__}({', '.join(shown)})"

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it. A field that is not set is left out, and so is one that is None by default."""
        return {
            field.encode_name: json_of(value)
            for field in msgspec.structs.fields(type(self))
            if (value := getattr(self, field.name)) is not msgspec.UNSET
            and not (value is None and field.default is None)
        }


# Gives a record as text or as HTML; None if it does not know how.
Printer = Callable[[Record, Literal["text", "html"]], "str | None"]
_printer: Printer | None = None


def print_records_by(printer: Printer) -> None:
    """Have records printed by a function; that of the room above that knows tables."""
    global _printer
    _printer = printer


def _short(value: Any) -> str:
    """A value in a line that has others beside it."""
    if isinstance(value, (tuple, list, dict)) and (len(value) > _MOST_SHOWN or any(map(_is_nested, _entries(value)))):
        what = "entry" if len(value) == 1 else "entries"
        return f"<{len(value)} {what}>"
    return f"<{type(value).__name__}>" if isinstance(value, Record) else repr(value)


def _entries(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else list(value)


def _is_nested(value: Any) -> bool:
    return isinstance(value, (Record, tuple, list, dict))


def json_of(value: Any) -> Any:
    """A record, or what holds some, in the types of JSON."""
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: json_of(entry) for key, entry in value.items()}
    return [json_of(entry) for entry in value] if isinstance(value, (tuple, list)) else value
