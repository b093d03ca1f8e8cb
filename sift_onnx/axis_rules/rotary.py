"""Tables of rotary position embeddings: recognised, and computed anew at another head size.

A head of size ``d`` is rotated by the angles ``t * base ** (-2 i / d)`` for position ``t`` and pair ``i``. Exporters
leave either the frequencies ``base ** (-2 i / d)`` in the graph or whole tables of cosines and sines, over half the
head, over the head with the half repeated (GPT-NeoX, Llama), or with each frequency twice in a row (GPT-J).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["RotaryTable", "recognise_rotary"]

Array = npt.NDArray[Any]

Layout = Literal["plain", "repeated", "interleaved"]

# Angles grow with the position, and single-precision exporters round them.
_TOLERANCE = 2e-3


@dataclass(frozen=True)
class RotaryTable:
    """How a table was made.

    Attributes:
        function: of the angle; ``none`` for a table of frequencies.
        layout: how the frequencies fill the last axis.
        base: of the geometric sequence (10000 in most models).
        axis: the axis that grows.
    """

    function: Literal["cos", "sin", "none"]
    layout: Layout
    base: float
    axis: int

    def values(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """The table at ``shape``, whose growing axis may differ from that of the original."""
        frequencies = _fill(_frequencies(self.base, shape[self.axis], self.layout), self.layout)
        if self.function == "none":
            expanded = [1] * len(shape)
            expanded[self.axis] = shape[self.axis]
            return np.broadcast_to(frequencies.reshape(expanded), shape).astype(dtype)
        rows = math.prod(shape) // shape[self.axis]
        angles = np.arange(rows)[:, None] * frequencies
        return (np.cos(angles) if self.function == "cos" else np.sin(angles)).reshape(shape).astype(dtype)


def _frequencies(base: float, length: int, layout: Layout) -> Array:
    pairs = length if layout == "plain" else length // 2
    return base ** (-np.arange(pairs, dtype=np.float64) / pairs)


def _fill(frequencies: Array, layout: Layout) -> Array:
    if layout == "repeated":
        return np.concatenate([frequencies, frequencies])
    return np.repeat(frequencies, 2) if layout == "interleaved" else frequencies


def recognise_rotary(values: Array) -> RotaryTable | None:
    """The recipe of a rotary table, or None.

    Args:
        values: the constant; the growing axis is its longest one for frequencies, the last one for tables, with one row
            per position from 0 on.
    """
    if values.dtype.kind != "f" or values.size < 4:
        return None
    widest = int(np.argmax(values.shape))
    if values.shape[widest] == values.size:
        return _recognise_frequencies(values, widest)
    table = values.reshape(-1, values.shape[-1]).astype(np.float64)
    if table.shape[0] < 2 or table.shape[1] < 2:
        return None
    for function in ("cos", "sin"):
        if not np.allclose(table[0], 1.0 if function == "cos" else 0.0, atol=1e-6):
            continue
        for layout in _LAYOUTS:
            recipe = _recognise_table(table, function, layout, values.ndim - 1)
            if recipe is not None:
                return recipe
    return None


def _recognise_table(table: Array, function: Literal["cos", "sin"], layout: Layout, axis: int) -> RotaryTable | None:
    """The recipe of ``table [positions, features]``, if it has this layout."""
    pairs = table.shape[1] if layout == "plain" else table.shape[1] // 2
    second = 2 if layout == "interleaved" else 1
    if pairs < 2 or (layout != "plain" and table.shape[1] % 2):
        return None
    # Small angles are lost in the rounding of a cosine; the second frequency is the least rounded that tells the base.
    angle = float(np.arccos(np.clip(table[1, second], -1, 1)))
    if function == "sin":
        angle = float(np.arcsin(np.clip(table[1, second], -1, 1)))
    if not 0 < angle < 1:
        return None
    base = angle ** (-pairs)
    for candidate in (_nice(base), base):
        recipe = RotaryTable(function, layout, candidate, axis)
        rebuilt = RotaryTable(function, layout, candidate, 1).values(table.shape, np.dtype(np.float64))
        if np.allclose(rebuilt, table, atol=_TOLERANCE):
            return recipe
    return None


_LAYOUTS: tuple[Layout, ...] = ("plain", "repeated", "interleaved")


def _recognise_frequencies(values: Array, axis: int) -> RotaryTable | None:
    flat = values.reshape(-1).astype(np.float64)
    for layout in _LAYOUTS:
        base = _base_of(flat, layout)
        if base is not None:
            return RotaryTable("none", layout, base, axis)
    return None


def _base_of(frequencies: Array, layout: Layout) -> float | None:
    """The base of ``base ** (-i / pairs)``, if the frequencies are such a sequence."""
    length = frequencies.size
    if layout != "plain":
        if length % 2:
            return None
        half = frequencies[: length // 2] if layout == "repeated" else frequencies[::2]
        if not np.allclose(_fill(half, layout), frequencies, rtol=1e-4):
            return None
        frequencies = half
    if frequencies.size < 2 or not np.isclose(frequencies[0], 1, atol=1e-5) or np.any(frequencies <= 0):
        return None
    # The second frequency is the least rounded one that tells the ratio.
    ratio = float(frequencies[1])
    if ratio >= 1:
        return None
    base = ratio ** (-frequencies.size)
    for candidate in (_nice(base), base):
        if np.allclose(
            candidate ** (-np.arange(frequencies.size) / frequencies.size), frequencies, rtol=2e-3, atol=1e-6
        ):
            return candidate
    return None


def _nice(base: float) -> float:
    """The nearest number of two digits and zeros: 10000, 500000, ..."""
    exponent = 10.0 ** (math.floor(math.log10(base)) - 1)
    return round(base / exponent) * exponent
