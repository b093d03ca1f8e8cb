"""Tables of rotary position embeddings: recognised, and recomputed at another head size.

A head of size ``d`` is rotated by the angles ``t * base ** (-2 i / d)`` for position ``t`` and pair ``i``. Exporters
leave either the frequencies ``base ** (-2 i / d)`` in the graph or whole tables of cosines and sines, over half the
head, over the head with the half repeated (GPT-NeoX, Llama), or with each frequency twice in a row (GPT-J).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["RotaryTable", "recognise_rotary"]

Array = npt.NDArray[Any]

Layout = Literal["plain", "repeated", "interleaved"]

# Angles grow with the position, and single-precision exporters round them.
_TOLERANCE = 2e-3

# A sine or cosine tells its angle where its slope is at least this.
_STEEP = 0.3

_LAYOUTS: tuple[Layout, ...] = ("plain", "repeated", "interleaved")
_FUNCTIONS: tuple[Literal["cos", "sin"], ...] = ("cos", "sin")

# Positions of a table that choose its base, and the power of ten that no base reaches.
_SAMPLE = 32
_LARGEST_BASE = 12

# Half precision holds numbers of at least this with all their digits.
_SMALL = 1e-4


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
    table = values.reshape(-1, values.shape[-1])
    if table.shape[0] < 2 or table.shape[1] < 2:
        return None
    for function in _FUNCTIONS:
        # Most constants are not tables: their first row tells, before all of them is read.
        if not np.allclose(table[0], 1.0 if function == "cos" else 0.0, atol=1e-6):
            continue
        for layout in _LAYOUTS:
            base = _base_of_table(table.astype(np.float64), function, layout)
            if base is not None:
                return RotaryTable(function, layout, base, values.ndim - 1)
    return None


def _base_of_table(table: Array, function: Literal["cos", "sin"], layout: Layout) -> float | None:
    """The base of ``table [positions, features]``, if it has this layout."""
    single = _single(table, layout)
    if single is None or single.shape[1] < 2:
        return None
    angle = _angle(single[:, 1], function)
    estimate = None if angle is None else _power(angle, -single.shape[1])
    if estimate is None:
        return None
    # A sample of the positions chooses the base; then all of them must agree.
    rows = np.unique(np.geomspace(1, len(table) - 1, _SAMPLE).round().astype(int))
    base = _best(_bases(estimate), lambda base: _waves(rows, base, single.shape[1], function) - single[rows])
    every = np.arange(len(table))
    return base if np.allclose(_waves(every, base, single.shape[1], function), single, atol=_TOLERANCE) else None


def _single(values: Array, layout: Layout) -> Array | None:
    """Each frequency once, if the last axis has this layout."""
    length = values.shape[-1]
    if layout == "plain":
        return values
    if length % 2:
        return None
    repeated = layout == "repeated"
    first = values[..., : length // 2] if repeated else values[..., ::2]
    second = values[..., length // 2 :] if repeated else values[..., 1::2]
    return first if np.allclose(first, second, rtol=1e-4, atol=1e-6) else None


def _waves(positions: Array, base: float, pairs: int, function: Literal["cos", "sin"]) -> Array:
    angles: Array = positions[:, None] * _frequencies(base, pairs, "plain")
    waves: Array = np.cos(angles) if function == "cos" else np.sin(angles)
    return waves


def _angle(column: Array, function: Literal["cos", "sin"]) -> float | None:
    """The angle between neighbouring positions in a column of cosines or sines, if it is less than 1.

    The second column is taken for it: its angle is the least rounded that tells the base. Later positions hold
    multiples of the angle, which tell it ever more exactly.
    """
    inverse = np.arccos if function == "cos" else np.arcsin
    angle = float(inverse(np.clip(column[1], -1, 1)))
    position = 2
    while 0 < angle < 1 and position < len(column):
        principal = float(inverse(np.clip(column[position], -1, 1)))
        turned = angle * position
        # All angles of this cosine or sine; the one that the estimate so far is nearest to.
        mirrored = -principal if function == "cos" else np.pi - principal
        candidates = [a + 2 * np.pi * round((turned - a) / (2 * np.pi)) for a in (principal, mirrored)]
        nearest = min(candidates, key=lambda a: abs(a - turned))
        # Where the curve is flat, rounding of its values is magnified.
        if abs(math.sin(principal) if function == "cos" else math.cos(principal)) > _STEEP:
            angle = nearest / position
        position *= 2
    return angle if 0 < angle < 1 else None


def _power(base: float, exponent: float) -> float | None:
    """``base ** exponent``, if that can be the base of a table."""
    logarithm = exponent * math.log10(base)
    return 10.0**logarithm if 0 < logarithm < _LARGEST_BASE else None


def _bases(estimate: float) -> list[float]:
    """The estimate, and numbers of two digits and zeros within a tenth of it: 10000, 500000, ..."""
    exponent = 10.0 ** (math.floor(math.log10(estimate)) - 1)
    first, last = math.ceil(0.9 * estimate / exponent), math.floor(1.1 * estimate / exponent)
    return [estimate, *(digits * exponent for digits in range(first, last + 1))]


def _best(bases: list[float], deviation: Callable[[float], Array]) -> float:
    """The round base that deviates least, if it does not deviate much more than the estimate, which comes first."""
    deviations = {base: float(np.max(np.abs(deviation(base)))) for base in bases}
    estimate, nearest = bases[0], min(bases[1:], key=deviations.__getitem__, default=bases[0])
    return nearest if deviations[nearest] <= 2 * deviations[estimate] + 1e-5 else estimate


def _recognise_frequencies(values: Array, axis: int) -> RotaryTable | None:
    flat = values.reshape(-1).astype(np.float64)
    for layout in _LAYOUTS:
        single = _single(flat, layout)
        base = None if single is None else _base_of_frequencies(single)
        if base is not None:
            return RotaryTable("none", layout, base, axis)
    return None


def _base_of_frequencies(frequencies: Array) -> float | None:
    """The base of ``base ** (-i / pairs)``, if the frequencies are such a sequence."""
    pairs = frequencies.size
    if pairs < 2 or not np.isclose(frequencies[0], 1, atol=1e-5) or np.any(frequencies <= 0):
        return None
    # Later frequencies are powers of the ratio, and tell it more exactly until they are lost in rounding.
    last = max(1, int(np.flatnonzero(frequencies > _SMALL)[-1]))
    estimate = _power(float(frequencies[last]), -pairs / last)
    if estimate is None:
        return None
    logarithms = np.log(frequencies[: last + 1])
    base = _best(_bases(estimate), lambda base: logarithms + np.arange(last + 1) / pairs * math.log(base))
    return base if np.allclose(_frequencies(base, pairs, "plain"), frequencies, rtol=2e-3, atol=1e-6) else None
