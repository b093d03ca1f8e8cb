"""Masks of densely stored weights, as an entry of the model's metadata (docs/storage.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sift_onnx.errors import ModelReadError
from sift_onnx.weights.packed_mask import PackedMask
from sift_onnx.weights.sparse import SparseWeight, encode_positions

__all__ = ["MASKS_KEY", "MaskRecord", "MaskedTensor", "mask_records", "record_of", "text_of_masks", "text_of_records"]

# Entry of the model's metadata_props that lists the masked weights of dense storage.
MASKS_KEY = "sift_onnx.masks"
_VERSION = 2
# The metadata of a model with more masked weights has no bits of masks, since every reader would load them: the bits of
# this many weights take some 90 MB at 90 % sparsity.
_EXPLICIT_UP_TO = 1 << 30


@dataclass(frozen=True)
class MaskRecord:
    """The entry for the mask of one weight.

    Attributes:
        shape: of the weight; None in files of version 1.
        nnz: number of active weights; None in files of version 1.
        nonzeros: how many of them were not zero; None in files of version 1.
        bits: the mask, as :meth:`PackedMask.text` writes it, or None.
        digest: where there are no bits, :meth:`PackedMask.digest` of the non-zeros.
        active_zeros: where there are no bits, the encoded positions of active weights that were zero; empty if none.
    """

    shape: tuple[int, ...] | None = None
    nnz: int | None = None
    nonzeros: int | None = None
    bits: str | None = None
    digest: str | None = None
    active_zeros: str = ""


class MaskedTensor(Protocol):
    """A masked weight of which the shape is known and the rest is read when it is used."""

    @property
    def shape(self) -> Sequence[int]:
        """Of the dense tensor."""

    @property
    def weight(self) -> SparseWeight:
        """The weight with its mask."""


def record_of(weight: SparseWeight, explicit: bool = True) -> MaskRecord:
    """The entry for the mask of ``weight``, with its bits if ``explicit``."""
    counts = (weight.shape, weight.nnz, weight.nonzeros)
    if explicit:
        return MaskRecord(*counts, bits=PackedMask.of_weight(weight).text())
    zeros = weight.active_zeros()
    nonzeros = PackedMask.of_positions(weight.shape, weight.indices[weight.values != 0])
    return MaskRecord(*counts, digest=nonzeros.digest(), active_zeros=encode_positions(zeros) if zeros.size else "")


def text_of_masks(masked: Mapping[str, MaskedTensor]) -> str:
    """The metadata entry for the masked weights of a model."""
    explicit = sum(math.prod(tensor.shape) for tensor in masked.values()) <= _EXPLICIT_UP_TO
    return text_of_records({name: record_of(tensor.weight, explicit) for name, tensor in masked.items()})


def text_of_records(records: Mapping[str, MaskRecord]) -> str:
    """The metadata entry for these records."""
    fields = {name: {k: v for k, v in vars(record).items() if v not in (None, "")} for name, record in records.items()}
    return json.dumps({"version": _VERSION, "weights": fields})


def mask_records(text: str | None) -> dict[str, MaskRecord]:
    """The inverse of :func:`text_of_masks`: records by initializer name, of any version so far.

    Raises:
        ModelReadError: the text is damaged, or of a version to come.
    """
    if text is None:
        return {}
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(str(error)) from error
    if not isinstance(document, dict):
        raise _damaged("it is not a table of masks")
    version = document.get("version")
    if version is None or isinstance(version, str):  # a weight may have that name
        if not all(isinstance(zeros, str) for zeros in document.values()):
            raise _damaged("it is not a table of masks")
        return {name: MaskRecord(active_zeros=zeros) for name, zeros in document.items()}
    if version != _VERSION:
        raise ModelReadError(
            f"the metadata entry {MASKS_KEY!r} is of version {version!r}, and this package reads up to {_VERSION}; "
            "update it"
        )
    weights = document.get("weights")
    if not isinstance(weights, dict):
        raise _damaged("it is not a table of masks")
    return {name: _record(name, fields) for name, fields in weights.items()}


def _record(name: str, fields: Any) -> MaskRecord:
    if not isinstance(fields, dict):
        raise _damaged(f"its entry for {name!r} is not a table")
    shape = fields.get("shape")
    if shape is not None:
        if not isinstance(shape, list) or not all(_is_count(n) for n in shape):
            raise _damaged(f"the shape of {name!r} is {shape!r}")
        shape = tuple(shape)
    counts = {key: fields.get(key) for key in ("nnz", "nonzeros")}
    texts = {key: fields.get(key) for key in ("bits", "digest")}
    zeros = fields.get("active_zeros", "")
    if not all(n is None or _is_count(n) for n in counts.values()):
        raise _damaged(f"it counts {counts} of {name!r}")
    if not all(part is None or isinstance(part, str) for part in texts.values()) or not isinstance(zeros, str):
        raise _damaged(f"the mask of {name!r} is not text")
    return MaskRecord(shape, **counts, **texts, active_zeros=zeros)


def _is_count(n: Any) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**63


def _damaged(reason: str) -> ModelReadError:
    return ModelReadError(f"the metadata entry {MASKS_KEY!r} is damaged: {reason}")
