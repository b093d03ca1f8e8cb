"""How many weights a sparsity leaves, and how many of them survive a drop: whole numbers, by one of three rules.

The rules differ by one weight here and there, which is all that decides whether two masks can be equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sift_onnx.errors import UsageError
from sift_onnx.training.sparse.schedules.share import Share

__all__ = ["CBSPARSE", "CSTORCH", "EXACT", "Compat", "CountRule", "count_rule"]

Compat = Literal["cstorch", "cbsparse"]


@dataclass(frozen=True)
class CountRule:
    """Counts of one implementation.

    Attributes:
        name: of the implementation.
        target: ``(numel, sparsity) -> nnz`` that an update aims for.
        initial: ``(numel, sparsity) -> nnz`` of a first mask by magnitude.
        keep: ``(nnz, drop fraction) -> nnz`` that survive a drop.
    """

    name: str
    target: Callable[[int, Share], int]
    initial: Callable[[int, Share], int]
    keep: Callable[[int, Share], int]


def _exact_target(numel: int, sparsity: Share) -> int:
    return math.floor((1 - sparsity.exact) * numel)


def _exact_keep(nnz: int, drop_fraction: Share) -> int:
    return nnz - math.floor(drop_fraction.exact * nnz)


def _cstorch_target(numel: int, sparsity: Share) -> int:
    return int((np.float32(1) - np.float32(sparsity)) * np.float32(numel))


def _cstorch_keep(nnz: int, drop_fraction: Share) -> int:
    return int((np.float32(1) - np.float32(drop_fraction)) * np.float32(nnz))


def _cbsparse_target(numel: int, sparsity: Share) -> int:
    return int((1 - float(sparsity)) * numel)


def _cbsparse_initial(numel: int, sparsity: Share) -> int:
    return numel - int(float(sparsity) * numel)


def _cbsparse_keep(nnz: int, drop_fraction: Share) -> int:
    return nnz - int(float(drop_fraction) * nnz)


#: Decimal arithmetic: ``floor((1 - s) * numel)`` and ``nnz - floor(d * nnz)``.
EXACT = CountRule("exact", _exact_target, _exact_target, _exact_keep)
#: Single precision, truncated, as cerebras.pytorch 2.10: what survives is rounded, not what is dropped.
CSTORCH = CountRule("cstorch", _cstorch_target, _cstorch_target, _cstorch_keep)
#: Double precision, truncated, as the code of the Sparse-IFT paper.
CBSPARSE = CountRule("cbsparse", _cbsparse_target, _cbsparse_initial, _cbsparse_keep)

_RULES = {None: EXACT, "cstorch": CSTORCH, "cbsparse": CBSPARSE}


def count_rule(compat: str | None) -> CountRule:
    """The rule of an implementation; exact counts if None.

    Raises:
        UsageError: there is no such implementation.
    """
    if compat not in _RULES:
        raise UsageError(f"compat {compat!r} is unknown; leave it out, or choose 'cstorch' or 'cbsparse'")
    return _RULES[compat]
