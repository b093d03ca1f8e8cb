"""Constants written as dense initializers, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx
import onnx_graphsurgeon as gs

from sift_onnx.files.wire import RAW_DATA, key, varint
from sift_onnx.graphs.constant_tensors import byte_chunks, full_tensor, has_raw_bytes, header_of
from sift_onnx.graphs.constants import nbytes_of, sparse_weight_of, stored_values_of

__all__ = ["LargeTensor"]


@dataclass(frozen=True)
class LargeTensor:
    """A constant that is written piece by piece.

    Attributes:
        constant: its values.
        known: the tensor of that name in the original model, if it had one.
    """

    constant: gs.Constant
    known: onnx.TensorProto | None = None

    def front(self) -> bytes:
        """The serialized tensor up to its raw data; all of it where the data is of another kind."""
        if not has_raw_bytes(self.constant):
            return full_tensor(self.constant, self.known).SerializeToString(deterministic=True)
        header = header_of(self.constant, self.known).SerializeToString(deterministic=True)
        return header + key(RAW_DATA) + varint(nbytes_of(self.constant))

    def size(self) -> int:
        """Length of the serialized tensor in bytes."""
        return len(self.front()) + (nbytes_of(self.constant) if has_raw_bytes(self.constant) else 0)

    @property
    def nbytes(self) -> int:
        """Size of the values."""
        return nbytes_of(self.constant)

    def load(self) -> object:
        """The masked weight that :meth:`pieces` needs, drawn or read in advance."""
        return sparse_weight_of(self.constant) if stored_values_of(self.constant) is None else None

    def chunks(self) -> Iterator[memoryview]:
        """What follows :meth:`front`, piece by piece."""
        return byte_chunks(self.constant) if has_raw_bytes(self.constant) else iter(())

    def pieces(self) -> Iterator[bytes | memoryview]:
        """The serialized tensor, piece by piece."""
        yield self.front()
        yield from self.chunks()
