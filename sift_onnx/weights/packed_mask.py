"""Masks as bits, which are stored apart from the values."""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.weights.sparse import SparseWeight

__all__ = ["PackedMask"]

Array = npt.NDArray[Any]
Bits = npt.NDArray[np.uint8]

_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)
# Positions that are unpacked at a time; a multiple of 8.
_PIECE = 1 << 22
# Hexadecimal digits of a SHA-256: 128 bits, enough that two masks do not share a digest by chance.
_DIGEST = 32
_STRATEGIES = (zlib.Z_HUFFMAN_ONLY, zlib.Z_DEFAULT_STRATEGY)
_SAMPLE = 1 << 16


@dataclass(frozen=True, eq=False)
class PackedMask:
    """A mask, one bit per weight.

    Attributes:
        shape: of the weight.
        bits: the weight at flat position ``i`` (row-major) is active if bit ``i % 8``, counted from the least
            significant one, of byte ``i // 8`` is set; the last byte is padded with zeros.
    """

    shape: tuple[int, ...]
    bits: Bits

    def __post_init__(self) -> None:
        if self.bits.shape != (-(-self.size // 8),):
            raise ValueError(f"{self.bits.size} bytes are not a mask of {self.size} weights")
        if self.size % 8 and self.bits[-1] >> (self.size % 8):
            raise ValueError("a mask has bits past its end")

    @property
    def size(self) -> int:
        """Number of weights, active or not."""
        return math.prod(self.shape)

    @property
    def nnz(self) -> int:
        """Number of active weights."""
        return sum(int(_ONES[self.bits[i : i + _PIECE]].sum(dtype=np.int64)) for i in range(0, self.bits.size, _PIECE))

    @classmethod
    def of_positions(cls, shape: Sequence[int], positions: Array) -> PackedMask:
        """The mask with exactly the flat ``positions`` active, which ascend."""
        size = math.prod(shape)
        edges = np.searchsorted(positions, np.arange(0, size + _PIECE, _PIECE))
        parts: list[Bits] = []
        for i, start in enumerate(range(0, size, _PIECE)):
            active = np.zeros(min(_PIECE, size - start), np.bool_)
            active[positions[edges[i] : edges[i + 1]] - start] = True
            parts.append(np.packbits(active, bitorder="little"))
        return cls(tuple(shape), np.concatenate(parts) if parts else np.zeros(0, np.uint8))

    @classmethod
    def of_weight(cls, weight: SparseWeight) -> PackedMask:
        """The mask of ``weight``."""
        return cls.of_positions(weight.shape, weight.indices)

    @classmethod
    def of_non_zeros(cls, shape: Sequence[int], pieces: Iterable[Array]) -> PackedMask:
        """The non-zeros of a tensor that comes in flat pieces; the length of each but the last is a multiple of 8."""
        parts = [np.packbits(piece != 0, bitorder="little") for piece in pieces]
        return cls(tuple(shape), np.concatenate(parts) if parts else np.zeros(0, np.uint8))

    def positions(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.int64]:
        """Flat positions of the active weights from ``start``, a multiple of 8, to before ``stop``, ascending."""
        stop = self.size if stop is None else stop
        active = np.unpackbits(self.bits[start // 8 : -(-stop // 8)], count=max(0, stop - start), bitorder="little")
        return np.flatnonzero(active) + start

    def admits(self, other: PackedMask) -> bool:
        """Whether this mask covers ``other``, a mask of the same size: all that is active there is active here."""
        return not np.any(other.bits & ~self.bits)

    def joined(self, other: PackedMask) -> PackedMask:
        """The union with ``other``, a mask of the same size."""
        return PackedMask(self.shape, self.bits | other.bits)

    def transposed(self, axes: Sequence[int]) -> PackedMask:
        """The mask of ``weight.transpose(axes)``."""
        active = np.unpackbits(self.bits, count=self.size, bitorder="little").reshape(self.shape).transpose(axes)
        return PackedMask(active.shape, np.packbits(active.reshape(-1), bitorder="little"))

    def reshaped(self, shape: Sequence[int]) -> PackedMask:
        """The same weights in the same order in another ``shape``."""
        return PackedMask(tuple(shape), self.bits)

    def digest(self) -> str:
        """A hash of the bits, which does not depend on the shape: 32 hexadecimal digits."""
        return hashlib.sha256(self.bits.tobytes()).hexdigest()[:_DIGEST]

    def text(self) -> str:
        """The bits as printable text: compressed by zlib, in base 64."""
        raw = self.bits.tobytes()
        # Masks that were drawn have no repeats to look for, those of blocks and groups have nothing else.
        sample = raw[:_SAMPLE]
        strategy = min(_STRATEGIES, key=lambda strategy: len(_compress(sample, strategy)))
        return base64.b64encode(_compress(raw, strategy)).decode("ascii")

    @classmethod
    def parse(cls, text: str, shape: Sequence[int]) -> PackedMask:
        """The inverse of :meth:`text`.

        Args:
            text: what :meth:`text` gave.
            shape: of the weight; bounds what is unpacked, whatever the text says.

        Raises:
            ValueError: the text is damaged, or is not a mask of that shape.
        """
        wanted = -(-math.prod(shape) // 8)
        try:
            unpacker = zlib.decompressobj()
            raw = unpacker.decompress(base64.b64decode(text.encode("ascii"), validate=True), wanted + 1)
        except (binascii.Error, zlib.error, UnicodeEncodeError) as error:
            raise ValueError(f"damaged bits of a mask: {error}") from error
        if len(raw) != wanted or not unpacker.eof:
            raise ValueError(f"damaged bits of a mask: {len(raw)} bytes where its shape {list(shape)} takes {wanted}")
        return cls(tuple(shape), np.frombuffer(raw, np.uint8))


def _compress(raw: bytes, strategy: int) -> bytes:
    compressor = zlib.compressobj(1, zlib.DEFLATED, 15, 9, strategy)
    return compressor.compress(raw) + compressor.flush()
