"""Quads: four weights of one output along its input features, the unit that int8 kernels skip."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["QUAD", "live_quads", "quads_of"]

# An instruction multiplies four bytes with four bytes, and adds up the products.
QUAD = 4


def quads_of(rows: int, channels: int, taps: int = 1) -> int:
    """Quads of a weight; the last one of a row's tap may be a part of one."""
    return rows * taps * -(-channels // QUAD)


def live_quads(active: npt.NDArray[Any]) -> int:
    """Quads that hold an active weight.

    Args:
        active: which weights are, [rows][channels][taps]: input channels, each with the weights of a window.
    """
    rows, channels, taps = active.shape
    whole = channels // QUAD
    quads = active[:, : whole * QUAD].reshape(rows, whole, QUAD, taps)
    live = quads[:, :, 0] | quads[:, :, 1] | quads[:, :, 2] | quads[:, :, 3]
    rest = active[:, whole * QUAD :].any(axis=1)
    return int(np.count_nonzero(live)) + int(np.count_nonzero(rest))
