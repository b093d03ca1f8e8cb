"""What ``convert`` reports."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from sift_onnx.records.record import SCHEMA, Count, Record

__all__ = ["ConvertReport"]


class ConvertReport(Record, frozen=True, kw_only=True):
    """How a model was stored.

    Attributes:
        model: the file that was read.
        out: the file that was written.
        storage: of masked weights, ``dense`` or ``sparse``.
        data: the file next to ``out`` that holds weights; None where there is none.
        bytes: of both files.
        masked: number of masked weights.
        weights: their elements.
        nnz: how many of these are active.
        warnings: one line each.
    """

    schema: int = SCHEMA
    model: str
    out: str
    storage: str
    data: str | UnsetType | None = UNSET
    bytes: Count
    masked: Count
    weights: Count
    nnz: Count
    warnings: tuple[str, ...]
