"""Families of models, and what a row of results says of a grown one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

__all__ = ["EXACT", "FAMILIES", "NOTABLE", "TOLERANCE", "Family", "Verdict", "verdict"]

Family = Literal["pre-norm", "per-channel", "other"]
# What a family is, for the page.
FAMILIES: Mapping[Family, str] = {
    "pre-norm": "LayerNorm or RMSNorm over features, before what it feeds",
    "per-channel": "BatchNorm, affine scales or nothing: each channel by itself",
    "other": "norms on the residual stream itself (BERT), groups, several kinds",
}

# How far outputs may be from the original's, relative to the largest of them and to what another input changes; and in
# double precision, where rounding in single precision moves the outputs of the original as far.
TOLERANCE, EXACT = 1e-4, 1e-9
# From which difference on it is of interest what rounding alone does to the original.
NOTABLE = 3e-6
# Where layers of less than this share of the multiply-accumulates grow, most of the model has kept its width.
_MOST = 0.5

Verdict = Literal["grown", "in part", "refused", "wrong"]


def verdict(row: Mapping[str, Any]) -> Verdict:
    """Whether a model has grown, most of it, and computes what it did at the same cost."""
    if "refused" in row:
        return "refused"
    if "defect" in row or row["macs"] != row["macs_after"]:
        return "wrong"
    # An output that hardly depends on the input would agree whatever became of the model.
    scale = min(1.0, row["moves"])
    if not (row["error"] <= TOLERANCE * scale or row.get("error64", 1.0) <= EXACT * scale) or not scale:
        return "wrong"
    return "grown" if row["share"] >= _MOST else "in part"
