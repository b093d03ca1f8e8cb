"""Padding of windows that slide over spatial axes, as convolutions and pools declare it."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["explicit_pads"]


def explicit_pads(
    auto_pad: str,
    pads: Sequence[int],
    sizes: Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[int, ...]:
    """Padding before and after each spatial axis, all begins first, in elements.

    ``SAME_UPPER`` and ``SAME_LOWER`` ask for ``ceil(size / stride)`` outputs, the odd element of padding going to the
    end or the beginning.
    """
    if auto_pad == "VALID" or (auto_pad == "NOTSET" and not pads):
        return (0,) * (2 * len(sizes))
    if auto_pad == "NOTSET":
        return tuple(pads)
    totals = [
        max((-(-size // stride) - 1) * stride + (extent - 1) * dilation + 1 - size, 0)
        for size, extent, stride, dilation in zip(sizes, window, strides, dilations, strict=True)
    ]
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return (*small, *large) if auto_pad == "SAME_UPPER" else (*large, *small)
