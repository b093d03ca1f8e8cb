"""What ``check`` reports."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from sift_onnx.records.record import SCHEMA, Amount, Count, Record

__all__ = ["Check", "CheckReport"]


class Check(Record, frozen=True):
    """One check: whether it passed, and what it found; ``detail`` is one line."""

    name: str
    ok: bool
    detail: str


class CheckReport(Record, frozen=True, kw_only=True):
    """All checks, in the order they were made.

    Attributes:
        ok: whether all of them passed.
        checks: a check that could not be made counts as failed, and says so.
        max_abs_error: largest absolute difference from the reference's outputs; None without a reference, or where no
            two values could be compared.
        nominal: shapes of inputs of which a size was assumed, by name.
        assumed: what was assumed, one line each.
        model: the file.
        reference: the file it was compared with.
    """

    schema: int = SCHEMA
    ok: bool
    checks: tuple[Check, ...]
    max_abs_error: Amount | None
    nominal: dict[str, tuple[Count, ...]] | None = None
    assumed: tuple[str, ...] | None = None
    model: str | None = None
    reference: str | UnsetType | None = UNSET
