"""Sizes of layers: their range, and what a factor on them makes of them."""

from __future__ import annotations

import math

from sift_onnx.errors import UsageError

__all__ = ["check_size", "scaled"]

# Far beyond what fits anywhere; below it, sizes of tensors do not overflow.
MAX_SIZE = 1 << 20


def check_size(name: str, size: int) -> None:
    """Refuse a size that no layer can have.

    Raises:
        UsageError: ``size``, which the caller knows as ``name``, is out of range.
    """
    if not 1 <= size <= MAX_SIZE:
        raise UsageError(f"{name} must be 1 to {MAX_SIZE}, not {size}")


def scaled(size: int, width: float, what: str) -> int:
    """``size`` times ``width``, rounded.

    Args:
        size: of the published model.
        width: factor on it.
        what: the size's name, for the message of the error.

    Raises:
        UsageError: the product is out of range, or no number.
    """
    product = round(size * width) if math.isfinite(width) else 0
    if not 1 <= product <= MAX_SIZE:
        raise UsageError(f"width {width} is out of range; it multiplies the {size} {what}")
    return product
