"""Records from JSON documents, which may be damaged or of another program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from sift_onnx.errors import UsageError
from sift_onnx.records.record import Record
from sift_onnx.settings.faults import fault_of
from sift_onnx.settings.typed import typed

__all__ = ["is_document_of", "read_record"]

AnyRecord = TypeVar("AnyRecord", bound=Record)


def is_document_of(data: Mapping[str, Any], kind: type[Record]) -> bool:
    """Whether all fields are there that a record must have.

    Several verbs have ``totals``: of a field that is a record, its first field has to be there too.
    """
    for field in msgspec.structs.fields(kind):
        if not field.required:
            continue
        value = data.get(field.encode_name, msgspec.UNSET)
        if value is msgspec.UNSET:
            return False
        inner = inspect.type_info(field.type)
        if isinstance(inner, inspect.StructType):
            first = next((f.encode_name for f in inner.fields if f.required), None)
            if not isinstance(value, dict) or (first is not None and first not in value):
                return False
    return True


def read_record(data: dict[str, Any], kind: type[AnyRecord], what: str) -> AnyRecord:
    """The record of a JSON document.

    Args:
        data: the document.
        kind: of the record.
        what: the document, for the message.

    Raises:
        UsageError: something is missing, or is of the wrong kind.
    """
    try:
        return typed(data, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{what} {_reworded(error, data, kind)}") from None


def _reworded(error: msgspec.ValidationError, data: dict[str, Any], kind: type[Record]) -> str:
    fault = fault_of(error)
    value: Any = data
    wanted = inspect.type_info(kind)
    place = ""
    for step in fault.steps:
        key: Any = step
        wanted = _not_none(wanted)
        if isinstance(wanted, inspect.StructType):
            wanted = next(field.type for field in wanted.fields if field.encode_name == key)
        elif isinstance(wanted, inspect.DictType):
            key, wanted = _wrong_key(value, data, kind, str(error)), wanted.value_type
        else:
            assert isinstance(wanted, (inspect.VarTupleType, inspect.TupleType))
            wanted = wanted.item_types[key] if isinstance(wanted, inspect.TupleType) else wanted.item_type
        place += f"[{key}]" if isinstance(key, int) else f".{key}"
        value = value[key]
    if fault.missing:
        place += f".{fault.missing}"
        return f"has no {place.removeprefix('.')}; it is damaged, or of another version: create it again"
    text = json.dumps(value)
    shown = text if len(text) <= 40 else text[:40] + "..."
    return f"has {shown} for {place.removeprefix('.')}, which is to be {_in_words(_not_none(wanted))}; create it again"


def _not_none(wanted: inspect.Type) -> inspect.Type:
    if isinstance(wanted, inspect.UnionType):
        return next(t for t in wanted.types if not isinstance(t, inspect.NoneType))
    return wanted


def _wrong_key(mapping: dict[str, Any], data: dict[str, Any], kind: type[Record], message: str) -> str:
    """The key of the first wrong entry, which msgspec does not name. The others are taken out of the mapping."""
    for key, entry in list(mapping.items()):
        mapping.clear()
        mapping[key] = entry
        try:
            typed(data, kind)
        except msgspec.ValidationError as error:
            if str(error) == message:
                return key
    raise AssertionError(message)


def _in_words(wanted: inspect.Type) -> str:
    match wanted:
        case inspect.IntType():
            return "a whole number" + ("" if wanted.ge is None else f" from {wanted.ge:g}")
        case inspect.FloatType():
            return "a number" + (f" from {wanted.ge:g}" if wanted.ge is not None and wanted.ge > -1e18 else "")
        case inspect.StrType():
            return "text"
        case inspect.BoolType():
            return "true or false"
        case inspect.TupleType():
            return f"a list of {len(wanted.item_types)}"
        case inspect.VarTupleType():
            return "a list"
    return "an object"
