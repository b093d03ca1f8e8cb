"""The part of the protobuf wire format that large tensors need.

A ModelProto is read and written without its large tensors passing through protobuf, which would copy them, and unpack
varints at more than twice their memory.
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
    "DataLocation",
    "cut_out_data",
    "key",
    "packed_field",
    "padded_varints",
    "unpacked_varints",
    "varint",
    "varint_bytes",
]

GRAPH = onnx.ModelProto.DESCRIPTOR.fields_by_name["graph"].number
INITIALIZER = onnx.GraphProto.DESCRIPTOR.fields_by_name["initializer"].number
SPARSE_INITIALIZER = onnx.GraphProto.DESCRIPTOR.fields_by_name["sparse_initializer"].number
RAW_DATA = onnx.TensorProto.DESCRIPTOR.fields_by_name["raw_data"].number

# Readers of sparse tensors want their data in these.
_TYPED_DATA = tuple(
    onnx.TensorProto.DESCRIPTOR.fields_by_name[name].number
    for name in ("float_data", "int32_data", "int64_data", "double_data")
)
_PARTS = {onnx.SparseTensorProto.DESCRIPTOR.fields_by_name[name].number: name for name in ("values", "indices")}
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


class DataLocation(NamedTuple):
    """The field of a model that holds the data of a large tensor.

    Attributes:
        position: of the initializer, or of the sparse initializer, in the main graph.
        part: of a sparse initializer, ``values`` or ``indices``; empty for a dense one.
        field: number of the field of the TensorProto.
    """

    position: int
    part: str
    field: int


class _Field(NamedTuple):
    number: int
    kind: int
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
    """Non-negative numbers as varints of exactly ``width`` bytes each: [len(numbers)][width].

    A short one is padded with continuation bytes that hold zeros, which every reader accepts.
    """
    encoded = np.empty((numbers.size, width), np.uint8)
    for i in range(width):
        encoded[:, i] = (numbers >> (7 * i)) & 0x7F
    encoded[:, :-1] |= 0x80
    return encoded


def unpacked_varints(data: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], int]:
    """The inverse of :func:`padded_varints`; numbers may differ in their lengths.

    Args:
        data: numbers of up to 64 bits; the last one may be cut off.

    Returns:
        The whole numbers, and how many bytes they take.

    Raises:
        ValueError: a number takes more than 10 bytes.
    """
    ends = np.flatnonzero(data < 0x80)
    used = int(ends[-1]) + 1 if ends.size else 0
    starts = np.concatenate([[0], ends[:-1] + 1]) if ends.size else ends
    lengths = ends - starts + 1
    longest = int(lengths.max(initial=0))
    if max(longest, data.size - used) > _LONGEST_VARINT:
        raise ValueError("a number of more than 64 bits")
    numbers = np.zeros(ends.size, np.uint64)
    if used == ends.size * longest:
        for i, digits in enumerate(data[:used].reshape(ends.size, longest).T):
            numbers |= (digits & 0x7F).astype(np.uint64) << np.uint64(7 * i)
        return numbers.view(np.int64), used
    for i in range(longest):
        has_more = np.flatnonzero(lengths > i)
        numbers[has_more] |= (data[starts[has_more] + i] & 0x7F).astype(np.uint64) << np.uint64(7 * i)
    return numbers.view(np.int64), used


def packed_field(number: int, data: bytes) -> bytes:
    """A length-delimited field as it stands in a message."""
    return key(number) + varint(len(data)) + data


def key(field_number: int) -> bytes:
    """The tag of a length-delimited field."""
    return varint(field_number << 3 | _LENGTH_DELIMITED)


def cut_out_data(data: bytes | mmap.mmap, at_least: int) -> tuple[bytes, dict[DataLocation, range]]:
    """A serialized ModelProto without the raw data of its large initializers and the typed data of its sparse ones.

    Args:
        data: the serialized model, or a mapping of its file, of which only the pages around large data are touched.
        at_least: size in bytes from which data is cut out.

    Returns:
        The serialized model without them, and where each of them lies in ``data``. A message that is damaged, or laid
        out in an unusual way, is returned whole, for protobuf to parse or to refuse.
    """
    view = memoryview(data)
    try:
        return _cut(view, at_least, data if isinstance(data, mmap.mmap) else None)
    except (IndexError, ValueError):
        return bytes(view), {}


def _cut(view: memoryview, at_least: int, mapping: mmap.mmap | None) -> tuple[bytes, dict[DataLocation, range]]:
    graphs = [field for field in _fields(view, 0, len(view)) if field.number == GRAPH]
    if len(graphs) != 1 or graphs[0].kind != _LENGTH_DELIMITED:
        raise ValueError("protobuf merges the parts of a message that is written in parts")
    graph = graphs[0]
    kept: list[bytes | memoryview] = []
    cut: dict[DataLocation, range] = {}
    done = graph.start
    seen = {INITIALIZER: 0, SPARSE_INITIALIZER: 0}
    for tensor in _fields(view, graph.start, graph.end):
        if tensor.number not in seen or tensor.kind != _LENGTH_DELIMITED:
            continue
        position, seen[tensor.number] = seen[tensor.number], seen[tensor.number] + 1
        if tensor.end - tensor.start < at_least:
            continue
        if tensor.number == INITIALIZER:
            found = _shortened(view, tensor, (RAW_DATA,), at_least)
            rest, fields = (found[0], {"": found[1]}) if found is not None else (b"", {})
        else:
            rest, fields = _shortened_sparse(view, tensor, at_least)
        if not fields:
            continue
        kept += [bytes(view[done : tensor.key]), rest]
        cut |= {DataLocation(position, part, f.number): range(f.start, f.end) for part, f in fields.items()}
        _forget(mapping, done, tensor.end)
        done = tensor.end
    kept.append(view[done : graph.end])
    length = varint(sum(len(part) for part in kept))
    return b"".join([view[: graph.key], key(GRAPH), length, *kept, view[graph.end :]]), cut


def _shortened(
    view: memoryview, tensor: _Field, numbers: tuple[int, ...], at_least: int
) -> tuple[bytes, _Field] | None:
    """A tensor as a field, without its data, and where that is; None if none of ``numbers`` is all of its data."""
    data = None
    for field in _fields(view, tensor.start, tensor.end):
        if field.number not in numbers:
            continue
        if data is not None or field.kind != _LENGTH_DELIMITED or field.end - field.start < at_least:
            return None
        data = field
    if data is None:
        return None
    rest = bytes(view[tensor.start : data.key]) + bytes(view[data.end : tensor.end])
    return packed_field(tensor.number, rest), data


def _shortened_sparse(view: memoryview, sparse: _Field, at_least: int) -> tuple[bytes, dict[str, _Field]]:
    """A sparse tensor as a field, without the data of its parts, and where that is; empty if it cannot be without."""
    parts: dict[int, _Field] = {}
    for field in _fields(view, sparse.start, sparse.end):
        if field.number in parts:
            return b"", {}
        if field.number in _PARTS and field.kind == _LENGTH_DELIMITED:
            parts[field.number] = field
    rest: list[bytes | memoryview] = []
    found_in: dict[str, _Field] = {}
    done = sparse.start
    for field in parts.values():
        found = _shortened(view, field, _TYPED_DATA, at_least)
        if found is not None:
            rest += [view[done : field.key], found[0]]
            found_in[_PARTS[field.number]] = found[1]
            done = field.end
    rest.append(view[done : sparse.end])
    return packed_field(sparse.number, b"".join(rest)) if found_in else b"", found_in


def _forget(mapping: mmap.mmap | None, start: int, end: int) -> None:
    """Release the pages of a mapping: where the system caches files in large folios, each access maps megabytes."""
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
        yield _Field(tag >> 3, kind, first, at, at + length)
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
