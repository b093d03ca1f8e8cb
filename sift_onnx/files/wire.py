"""The protobuf wire format, as far as large tensors need it.

A ModelProto is read and written without its large tensors passing through protobuf, which would copy them.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx

__all__ = [
    "GRAPH",
    "INITIALIZER",
    "RAW_DATA",
    "SPARSE_INITIALIZER",
    "cut_out_raw_data",
    "key",
    "padded_varints",
    "varint",
    "varint_bytes",
]

GRAPH = onnx.ModelProto.DESCRIPTOR.fields_by_name["graph"].number
INITIALIZER = onnx.GraphProto.DESCRIPTOR.fields_by_name["initializer"].number
SPARSE_INITIALIZER = onnx.GraphProto.DESCRIPTOR.fields_by_name["sparse_initializer"].number
RAW_DATA = onnx.TensorProto.DESCRIPTOR.fields_by_name["raw_data"].number

_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5


class _Field(NamedTuple):
    number: int  # 0 for what is not length-delimited
    key: int
    start: int
    end: int


def varint(n: int) -> bytes:
    """A non-negative number as protobuf writes it."""
    encoded = bytearray()
    while n >= 0x80:
        encoded.append(n & 0x7F | 0x80)
        n >>= 7
    encoded.append(n)
    return bytes(encoded)


def varint_bytes(n: int) -> int:
    """How many bytes :func:`varint` gives for ``n``."""
    return max(1, -(-n.bit_length() // 7))


def padded_varints(numbers: npt.NDArray[np.integer], width: int) -> npt.NDArray[np.uint8]:
    """Numbers from 0 on as protobuf reads them, each in ``width`` bytes: [len(numbers)][width].

    A short one is filled up with zeros behind bits that say that more follows, which every reader takes.
    """
    encoded = np.empty((numbers.size, width), np.uint8)
    for i in range(width):
        encoded[:, i] = (numbers >> (7 * i)) & 0x7F
    encoded[:, :-1] |= 0x80
    return encoded


def key(field_number: int) -> bytes:
    """What stands before a length-delimited field."""
    return varint(field_number << 3 | _LENGTH_DELIMITED)


def cut_out_raw_data(data: bytes | mmap.mmap, at_least: int) -> tuple[bytes, dict[int, range]]:
    """A serialized ModelProto without the raw data of its large initializers.

    Args:
        data: the serialized model, or a mapping of its file, of which only the pages around large data are touched.
        at_least: size in bytes from which raw data is cut out.

    Returns:
        The serialized model without them, and where in ``data`` that is what was cut out, by the initializer's position
        in the main graph. What is not laid out as usual, or damaged, is left for protobuf to judge.
    """
    view = memoryview(data)
    try:
        return _cut(view, at_least, data if isinstance(data, mmap.mmap) else None)
    except (IndexError, ValueError):
        return bytes(view), {}


def _cut(view: memoryview, at_least: int, mapping: mmap.mmap | None) -> tuple[bytes, dict[int, range]]:
    graphs = [field for field in _fields(view, 0, len(view)) if field.number == GRAPH]
    if len(graphs) != 1:
        raise ValueError("protobuf merges the parts of a message that is written in parts")
    graph = graphs[0]
    kept: list[bytes | memoryview] = []
    cut: dict[int, range] = {}
    done = graph.start
    initializers = (field for field in _fields(view, graph.start, graph.end) if field.number == INITIALIZER)
    for position, tensor in enumerate(initializers):
        if tensor.end - tensor.start < at_least:
            continue
        raw = [field for field in _fields(view, tensor.start, tensor.end) if field.number == RAW_DATA]
        if len(raw) != 1 or raw[0].end - raw[0].start < at_least:
            continue
        front, back = bytes(view[tensor.start : raw[0].key]), bytes(view[raw[0].end : tensor.end])
        kept += [bytes(view[done : tensor.key]), key(INITIALIZER), varint(len(front) + len(back)), front, back]
        cut[position] = range(raw[0].start, raw[0].end)
        _forget(mapping, done, tensor.end)
        done = tensor.end
    kept.append(view[done : graph.end])
    length = varint(sum(len(part) for part in kept))
    return b"".join([view[: graph.key], key(GRAPH), length, *kept, view[graph.end :]]), cut


def _forget(mapping: mmap.mmap | None, start: int, end: int) -> None:
    """Give back the pages of a mapping: where the system caches files in large pieces, each touch maps megabytes."""
    first, last = (at - at % mmap.PAGESIZE for at in (start, end))
    if mapping is not None and hasattr(mmap, "MADV_DONTNEED") and first < last:
        mapping.madvise(mmap.MADV_DONTNEED, first, last - first)


def _fields(view: memoryview, start: int, end: int) -> Iterator[_Field]:
    at = start
    while at < end:
        first = at
        tag, at = _read_varint(view, at)
        kind = tag & 7
        if kind == _LENGTH_DELIMITED:
            length, at = _read_varint(view, at)
        elif kind == _VARINT:
            length = _read_varint(view, at)[1] - at
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {kind} does not occur in ONNX")
        if at + length > end:
            raise ValueError("a field ends after the message that it is part of")
        yield _Field(tag >> 3 if kind == _LENGTH_DELIMITED else 0, first, at, at + length)
        at += length


def _read_varint(view: memoryview, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
