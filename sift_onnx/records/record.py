"""What records are made of: their base, and numbers within bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

__all__ = ["SCHEMA", "Amount", "Count", "Positive", "Real", "Record", "Share", "json_of"]

SCHEMA = 1

_MOST = 10**18
# Bounds hold for what is read.
Count = Annotated[int, Meta(ge=0, le=_MOST)]
Amount = Annotated[float, Meta(ge=0, le=_MOST)]
Positive = Annotated[float, Meta(ge=1e-12, le=_MOST)]
Real = Annotated[float, Meta(ge=-_MOST, le=_MOST)]
# With room for rounding.
Share = Annotated[float, Meta(ge=-1e-9, le=1 + 1e-9)]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a JSON document. Fields have the names of the document, and are in its order."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it. A field that is not set is left out, and so is one that is None by default."""
        return {
            field.encode_name: json_of(value)
            for field in msgspec.structs.fields(type(self))
            if (value := getattr(self, field.name)) is not msgspec.UNSET
            and not (value is None and field.default is None)
        }


def json_of(value: Any) -> Any:
    """A record, or what holds some, in the types of JSON."""
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: json_of(entry) for key, entry in value.items()}
    return [json_of(entry) for entry in value] if isinstance(value, (tuple, list)) else value
