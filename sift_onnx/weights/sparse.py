"""Masked weights: the explicit mask, its values, and how a mask is drawn.

A mask says which weights are active. It is not the same as being non-zero: a weight that a training step has just
grown is active and zero. :class:`SparseWeight` keeps the active positions explicitly, and the few active zeros survive
dense storage as a short list in the metadata (:func:`encode_positions`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "SparseWeight",
    "decode_positions",
    "encode_positions",
    "generator",
    "index_dtype",
    "sample_positions",
]

Array = npt.NDArray[Any]

# Positions are drawn block by block, so that a layer's mask needs one block of scratch memory whatever its size.
_BLOCK = 1 << 24
# numpy's hypergeometric generators take populations below 10**9.
_POPULATION_LIMIT = 1_000_000_000
# Distances between positions are stored in the fewest of these bytes that hold the largest one.
_GAP_BYTES = (1, 2, 8)


@dataclass(frozen=True, eq=False)
class SparseWeight:
    """A weight under a mask.

    Attributes:
        shape: of the dense tensor.
        indices: flat positions of the active weights in row-major order, ascending, of :func:`index_dtype`.
        values: the active weights, one per index, in the tensor's own dtype.
    """

    shape: tuple[int, ...]
    indices: Array
    values: Array

    def __post_init__(self) -> None:
        if self.indices.ndim != 1 or self.indices.shape != self.values.shape:
            raise ValueError("indices and values must be vectors of one length")
        if self.nnz and (self.indices[0] < 0 or self.indices[-1] >= self.size or np.any(np.diff(self.indices) <= 0)):
            raise ValueError(f"indices must ascend within a tensor of {self.size} elements")

    @property
    def size(self) -> int:
        """Number of weights, active or not."""
        return math.prod(self.shape)

    @property
    def nnz(self) -> int:
        """Number of active weights; active zeros count."""
        return int(self.indices.size)

    @property
    def nonzeros(self) -> int:
        """Number of active weights that are not zero."""
        return int(np.count_nonzero(self.values))

    @property
    def sparsity(self) -> float:
        """Share of weights that are not active, between 0 and 1."""
        return 1 - self.nnz / self.size if self.size else 0.0

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        return self.values.dtype

    @classmethod
    def from_dense(cls, dense: Array, active_zeros: Array | None = None) -> SparseWeight:
        """The non-zeros of ``dense``, and the zeros at the flat positions ``active_zeros``.

        Positions in ``active_zeros`` that hold something else than zero by now are harmless.
        """
        flat = np.ascontiguousarray(dense).reshape(-1)
        active = flat != 0
        if active_zeros is not None:
            active[active_zeros] = True
        indices = np.flatnonzero(active).astype(index_dtype(flat.size), copy=False)
        return cls(tuple(dense.shape), indices, flat[indices])

    def to_dense(self) -> Array:
        """The tensor with zeros where the mask is off; an array of ``shape``."""
        flat = np.zeros(self.size, dtype=self.values.dtype)
        flat[self.indices] = self.values
        return flat.reshape(self.shape)

    def mask(self) -> npt.NDArray[np.bool_]:
        """The mask as a boolean array of ``shape``."""
        flat = np.zeros(self.size, dtype=np.bool_)
        flat[self.indices] = True
        return flat.reshape(self.shape)

    def active_zeros(self) -> Array:
        """Flat positions of active weights that are 0.0 (or -0.0)."""
        zeros: Array = self.indices[self.values == 0]
        return zeros

    def counts_along(self, axis: int) -> npt.NDArray[np.int64]:
        """Number of active weights at each position of ``axis``; a vector of that axis' length.

        Raises:
            ValueError: the weight has no such axis.
        """
        if not -len(self.shape) <= axis < len(self.shape):
            raise ValueError(f"a weight of shape {self.shape} has no axis {axis}")
        axis %= len(self.shape)
        inner = math.prod(self.shape[axis + 1 :])
        length = self.shape[axis]
        if axis == 0:
            edges: Array = np.searchsorted(self.indices, np.arange(length + 1, dtype=np.int64) * inner)
            return np.diff(edges).astype(np.int64)
        return np.bincount((self.indices // inner) % length, minlength=length).astype(np.int64)


def index_dtype(size: int) -> type[np.signedinteger[Any]]:
    """The type of flat positions in a tensor of ``size`` elements: int32 where that holds them, else int64."""
    return np.int32 if size < 2**31 else np.int64


def generator(seed: int, *key: str | int) -> np.random.Generator:
    """A random generator that depends on ``seed`` and ``key`` alone, e.g. ``(seed, initializer name, step)``.

    Streams of different keys are independent, so that the order in which layers are drawn does not matter.
    """
    text = "\0".join(str(part) for part in (seed, *key))
    words = np.frombuffer(hashlib.sha256(text.encode()).digest(), dtype="<u4")
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([int(word) for word in words])))


def sample_positions(size: int, count: int, rng: np.random.Generator) -> Array:
    """``count`` distinct positions below ``size``, ascending, every subset equally likely.

    Blocks of 2**24 positions get their share by the multivariate hypergeometric law; within a block, positions are
    drawn with replacement and repeats drawn again. No permutation of the tensor is built. Beyond 10**9 positions the
    tensor is cut into equal strata whose shares are fixed to within one.

    Raises:
        ValueError: ``count`` is negative or above ``size``.
    """
    if not 0 <= count <= size:
        raise ValueError(f"cannot choose {count} of {size} positions")
    dtype = index_dtype(size)
    parts: list[Array] = []
    for start, length, share in _strata(size, count):
        blocks = [min(_BLOCK, length - i) for i in range(0, length, _BLOCK)]
        shares = rng.multivariate_hypergeometric(blocks, share, method="marginals") if len(blocks) > 1 else [share]
        for block, block_share in zip(blocks, shares, strict=True):
            positions = _sample_block(block, int(block_share), rng).astype(dtype)
            positions += dtype(start)
            parts.append(positions)
            start += block
    return np.concatenate(parts) if parts else np.empty(0, dtype=dtype)


def _strata(size: int, count: int) -> list[tuple[int, int, int]]:
    pieces = -(-size // (_POPULATION_LIMIT - 1))
    edges = [size * i // pieces for i in range(pieces + 1)] if pieces else []
    shares = [count * edge // size for edge in edges]
    return [(edges[i], edges[i + 1] - edges[i], shares[i + 1] - shares[i]) for i in range(pieces)]


def _sample_block(size: int, count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    # Above one half it is cheaper to draw what stays out.
    inverted = count > size // 2
    wanted = size - count if inverted else count
    drawn = np.zeros(size, dtype=np.bool_)
    missing = wanted
    while missing:
        # At most `missing` new positions come out of `missing` draws, so the loop ends at exactly `wanted`.
        drawn[rng.integers(0, size, size=missing, dtype=np.uint32)] = True
        missing = wanted - int(np.count_nonzero(drawn))
    return np.flatnonzero(~drawn if inverted else drawn)


def encode_positions(positions: Sequence[int] | Array) -> str:
    """Ascending positions as printable text: differences, compressed, in base 64.

    Raises:
        ValueError: they do not ascend from 0 or more.
    """
    gaps = np.diff(np.asarray(positions, dtype=np.int64), prepend=np.int64(0))
    if gaps.size and (gaps[0] < 0 or np.any(gaps[1:] <= 0)):
        raise ValueError("positions must ascend")
    width = next(w for w in _GAP_BYTES if not gaps.size or int(gaps.max()) < 2 ** (8 * w))
    packed = zlib.compress(gaps.astype(f"<u{width}").tobytes(), 6)
    return f"u{width}:{base64.b64encode(packed).decode('ascii')}"


def decode_positions(text: str, size: int) -> npt.NDArray[np.int64]:
    """The inverse of :func:`encode_positions`.

    Args:
        text: what :func:`encode_positions` gave.
        size: number of elements of the tensor; bounds what is unpacked, whatever the text says.

    Raises:
        ValueError: the text is damaged, or names a position outside the tensor.
    """
    kind, _, body = text.partition(":")
    width = {f"u{w}": w for w in _GAP_BYTES}.get(kind)
    if width is None:
        raise ValueError(f"unknown encoding of positions {kind!r}")
    try:
        packed = base64.b64decode(body.encode("ascii"), validate=True)
        unpacker = zlib.decompressobj()
        raw = unpacker.decompress(packed, width * size + 1)
    except (binascii.Error, zlib.error, UnicodeEncodeError) as error:
        raise ValueError(f"damaged list of positions: {error}") from error
    if len(raw) % width or len(raw) > width * size or unpacker.unconsumed_tail or not unpacker.eof:
        raise ValueError("damaged list of positions: wrong length")
    positions = np.cumsum(np.frombuffer(raw, dtype=f"<u{width}").astype(np.int64))
    # Each of them is looked at: a sum that runs over can come back into the tensor.
    if np.any((positions < 0) | (positions >= size)) or np.any(np.diff(positions) <= 0):
        raise ValueError(f"damaged list of positions: outside a tensor of {size} elements")
    return positions
