"""Shares between 0 and 1 that know their exact value, so that counts of weights come out exact."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import torch

from sift_onnx.errors import UsageError
from sift_onnx.training.sparse.errors import WrongTypeError

__all__ = ["Share", "ShareLike"]

ShareLike = float | Fraction | str | torch.Tensor


class Share(float):
    """A number that is used as any float, and remembers the decimal or the ratio it stands for.

    ``0.09`` is nine hundredths, not the nearest binary fraction: of 500 weights, 455 stay (cstorch computes in single
    precision and keeps 454). A ``Fraction`` is taken as it is, so that ``1 - nnz / size`` gives ``nnz`` back.

    Attributes:
        exact: the value.
    """

    exact: Fraction

    def __new__(cls, value: ShareLike) -> Share:
        """A share.

        Args:
            value: a number, its decimal spelling, a fraction, or a tensor with one element. Floats stand for the
                shortest decimal that rounds to them, in their own precision.

        Raises:
            UsageError: not finite, or no number.
            WrongTypeError: of another type.
        """
        if isinstance(value, Share):
            return value
        exact = _exact(value)
        share = super().__new__(cls, float(exact))
        share.exact = exact
        return share

    def clamped(self) -> Share:
        """The nearest share within [0, 1]."""
        return self if 0 <= self.exact <= 1 else Share(Fraction(int(self.exact > 1)))

    def item(self) -> float:
        """A plain float; algorithms written for cstorch get their sparsity as a tensor and ask it for its item."""
        return float(self)


def _exact(value: Any) -> Fraction:
    if isinstance(value, torch.Tensor):
        value = np.float32(value.item()) if value.dtype == torch.float32 else value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Fraction, np.floating, np.integer)):
        raise WrongTypeError(f"{value!r} is not a number")
    try:
        return value if isinstance(value, Fraction) else Fraction(str(value))
    except (ValueError, ZeroDivisionError) as error:
        raise UsageError(f"{value!r} is not a finite number") from error
