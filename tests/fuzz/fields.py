"""Mutations of any field of any message in a model, found by protobuf's reflection."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

__all__ = ["NAMES", "NUMBERS", "mutate_field"]

NUMBERS = (
    *(0, 0, 1, 1, 2, 3, 4, 7, 8, 16, 100, -1, -1, -2, -3, 127, 128, 255, 256, 1000, 2**16, 2**20, 2**24),
    *(2**31 - 1, 2**31, -(2**31), 2**32, 2**40, 2**60, 2**61, 2**62, 2**63 - 1, -(2**63)),
)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e30, -3e38, float("inf"), float("-inf"), float("nan"))
# What breaks tables, paths, terminals, globs and line-by-line output.
NAMES = (
    *("", " ", "x", "a\nb", "\x1b[31mred", "[/b]", "[red]", "%s{0}", "\0", "../../x", "/etc/passwd", "é\u202e", "*?["),
    *("x" * 3000, "Conv", "MatMul", "Gemm", "Reshape", "If", "Loop", "Scan", "Constant", "ai.onnx", "com.microsoft"),
    *("ai.onnx.ml", "local", "act", "data.bin", "nan", "-1", "1" * 5000, "sift_onnx", "SAME_UPPER", "bhqd,bhdk->bhqk"),
)

# Walking all of a model with large weights in typed fields would cost more than what it is for.
_MOST_MESSAGES = 3000
_LARGEST_COPY = 20_000


def mutate_field(model: onnx.ModelProto, rng: Random) -> None:
    """One random change of one random field."""
    messages = _messages(model)
    message = rng.choice(messages)
    fields = [field for field, _ in message.ListFields()]
    if rng.random() < 0.15 or not fields:
        fields = list(message.DESCRIPTOR.fields)
    field = rng.choice(fields)
    if _is_repeated(field):
        _mutate_list(message, field, rng, messages)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        _mutate_message(message, field, rng, messages)
    elif rng.random() < 0.15:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _scalar(field, getattr(message, field.name), rng, messages))


def _messages(model: onnx.ModelProto) -> list[Message]:
    found: list[Message] = [model]
    for message in found:
        if len(found) > _MOST_MESSAGES:
            break
        found.extend(_children(message))
    return found


def _children(message: Message) -> Iterator[Message]:
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            yield from value if _is_repeated(field) else (value,)


def _is_repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated) if hasattr(field, "is_repeated") else field.label == FieldDescriptor.LABEL_REPEATED


def _scalar(field: FieldDescriptor, value: Any, rng: Random, messages: list[Message]) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return rng.choice(FLOATS)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _bytes(value, rng)
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return rng.choice(NAMES) if rng.random() < 0.5 else _text_of_model(rng, messages)
    number = rng.choice(NUMBERS) if rng.random() < 0.7 else value + rng.choice((-1, 1))
    low, high = {
        FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
        FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
        FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    }.get(kind, (-(2**63), 2**63 - 1))
    return min(max(number, low), high)


def _text_of_model(rng: Random, messages: list[Message]) -> str:
    """A string from another place of the model: what is wired to what changes, and names come twice."""
    for _ in range(10):
        message = rng.choice(messages)
        texts = [v for f, v in message.ListFields() if f.cpp_type == FieldDescriptor.CPPTYPE_STRING]
        flat = [t for v in texts for t in ([v] if isinstance(v, (str, bytes)) else v)]
        if flat and isinstance(text := rng.choice(flat), str):
            return text
    return ""


def _bytes(value: Any, rng: Random) -> bytes:
    data = value if isinstance(value, bytes) else b""
    return rng.choice(
        (
            b"",
            data[: rng.randrange(len(data) + 1)],
            data + rng.randbytes(rng.choice((1, 4, 100))),
            data * 2,
            rng.randbytes(len(data)),
            b"\xff" * len(data),
            b"\0" * len(data),
            rng.choice(NAMES).encode(),
        )
    )


def _mutate_message(message: Message, field: FieldDescriptor, rng: Random, messages: list[Message]) -> None:
    if rng.random() < 0.4:
        message.ClearField(field.name)
        return
    donor = _donor(field, rng, messages)
    getattr(message, field.name).SetInParent()
    if rng.random() < 0.7:
        _replace(getattr(message, field.name), donor)


def _donor(field: FieldDescriptor, rng: Random, messages: list[Message]) -> bytes:
    """A serialized message of the field's type from somewhere in the model."""
    donors = [m for m in messages if m.DESCRIPTOR.full_name == field.message_type.full_name]
    return _bytes_of(rng.choice(donors)) if donors else b""


def _bytes_of(message: Message) -> bytes:
    # As bytes, since a message may hold the one that it is copied into.
    return bytes(message.SerializePartialToString()) if message.ByteSize() < _LARGEST_COPY else b""


def _replace(message: Message, serialized: bytes) -> None:
    message.Clear()
    message.MergeFromString(serialized)


def _mutate_list(message: Message, field: FieldDescriptor, rng: Random, messages: list[Message]) -> None:
    values = getattr(message, field.name)
    is_message = field.type == FieldDescriptor.TYPE_MESSAGE
    action = rng.choice(("change", "change", "remove", "repeat", "swap", "clear", "append", "many"))
    i, j = (rng.randrange(len(values)), rng.randrange(len(values))) if len(values) else (0, 0)
    if action == "clear":
        message.ClearField(field.name)
    elif action in ("append", "many") or not len(values):
        count = rng.choice((1, 2)) if action == "append" else 40
        added = _donor(field, rng, messages) if is_message else _scalar(field, _zero(field), rng, messages)
        for _ in range(count):
            _replace(values.add(), added) if is_message else values.append(added)
    elif action == "remove":
        del values[i]
    elif is_message:
        mine, other = _bytes_of(values[i]), _bytes_of(values[j])
        if action == "repeat":
            _replace(values.add(), mine)
        elif action == "swap":
            _replace(values[i], other)
            _replace(values[j], mine)
        else:
            _replace(values[i], _donor(field, rng, messages))
    elif action == "repeat":
        values.append(values[i])
    elif action == "swap":
        values[i], values[j] = values[j], values[i]
    else:
        values[i] = _scalar(field, values[i], rng, messages)


def _zero(field: FieldDescriptor) -> Any:
    return {FieldDescriptor.CPPTYPE_STRING: b"" if field.type == FieldDescriptor.TYPE_BYTES else ""}.get(
        field.cpp_type, 0
    )
