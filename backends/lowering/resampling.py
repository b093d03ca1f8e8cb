"""Which pixels of an axis a result is made from: enlargement, padding, cropping.

Coordinates are those of ONNX's Resize, in float32 as onnxruntime computes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sift_onnx.backends.lowering.cut_sizes import sliced
from sift_onnx.backends.lowering.dims import Dim, added, bound, concrete, names_in, product, window

__all__ = [
    "COORDINATES",
    "NEAREST",
    "AxisMap",
    "OpenPadding",
    "OpenSampling",
    "OpenSlicing",
    "Padding",
    "Sampling",
    "Slicing",
]

# The end of a slice that has none.
_OPEN = 1 << 31


@dataclass(frozen=True)
class Sampling:
    """Samples of an axis, evenly spaced.

    Attributes:
        scale: of the result's size to the operand's; a whole number where the operand's is not known. 0 is that of the
            sizes of a run.
        size: of the result; None where it follows from the scale.
        coordinates: where samples lie, a key of :data:`COORDINATES`.
        nearest: which pixel is taken, a key of :data:`NEAREST`; of no meaning between two pixels.
    """

    scale: float
    size: int | None
    coordinates: str
    nearest: str = "floor"

    def size_of(self, operand: Dim) -> Dim:
        """Size of the result."""
        if self.size is not None:
            return self.size
        if not isinstance(operand, int):
            return product((int(self.scale), operand))
        # In float32, as shape inference has it: 10 times 0.7 is 7, and less than that in double precision.
        return math.floor(np.float32(operand) * np.float32(self.scale))

    def sources(self, operand: int) -> list[int]:
        """The pixel that each one of the result is, for an operand of this size."""
        at = NEAREST[self.nearest](self._coordinates(operand))
        return [int(place) for place in np.clip(at, 0, operand - 1)]

    def neighbours(self, operand: int) -> list[tuple[int, int, float]]:
        """The two pixels that each one of the result lies between, and the share of the second."""
        at = np.clip(self._coordinates(operand), 0, operand - 1)
        return [(int(x), min(int(x) + 1, operand - 1), float(x - np.floor(x))) for x in at]

    def cubic_weights(
        self, operand: int, a: float, excludes: bool
    ) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        """What each pixel counts in each one of the result, [size, operand], by cubic convolution.

        R. G. Keys, Cubic convolution interpolation for digital image processing, 1981. Two pixels on either side count,
        those beyond an end as the last one.

        Args:
            operand: its size.
            a: slope of the weights at one pixel's distance.
            excludes: whether pixels beyond an end count nothing, and the others more.
        """
        at = self._coordinates(operand)
        weights = np.zeros((at.size, operand), np.float32)
        for step in (-1, 0, 1, 2):
            pixels = np.floor(at) + step
            far = np.abs(at - pixels)
            near = ((a + 2) * far - (a + 3)) * far * far + 1
            beyond = ((a * far - 5 * a) * far + 8 * a) * far - 4 * a
            share = np.where(far <= 1, near, beyond)
            if excludes:
                share = np.where((pixels >= 0) & (pixels < operand), share, 0)
            np.add.at(weights, (np.arange(at.size), np.clip(pixels, 0, operand - 1).astype(np.int64)), share)
        return weights / weights.sum(axis=1, keepdims=True) if excludes else weights

    def _coordinates(self, operand: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        size = self.size_of(operand)
        assert isinstance(size, int)
        places = np.arange(size, dtype=np.float32)
        return COORDINATES[self.coordinates](places, np.float32(self.scale or size / max(operand, 1)), operand, size)


_Floats = np.ndarray[tuple[int], np.dtype[np.float32]]
_HALF = np.float32(0.5)


def _align_corners(x: _Floats, _scale: np.float32, operand: int, size: int) -> _Floats:
    return x * np.float32(operand - 1) / np.float32(size - 1) if size > 1 else x * np.float32(0)


def _half_pixel(x: _Floats, scale: np.float32, _operand: int, _size: int) -> _Floats:
    return (x + _HALF) / scale - _HALF


def _pytorch_half_pixel(x: _Floats, scale: np.float32, operand: int, size: int) -> _Floats:
    return _half_pixel(x, scale, operand, size) if size > 1 else x * np.float32(0)


def _asymmetric(x: _Floats, scale: np.float32, _operand: int, _size: int) -> _Floats:
    return x / scale


# Coordinates of the result's pixels in the operand, given these, the scale and both sizes.
COORDINATES: dict[str, Callable[[_Floats, np.float32, int, int], _Floats]] = {
    "align_corners": _align_corners,
    "asymmetric": _asymmetric,
    "half_pixel": _half_pixel,
    "pytorch_half_pixel": _pytorch_half_pixel,
}
NEAREST: dict[str, Callable[[_Floats], _Floats]] = {
    "ceil": np.ceil,
    "floor": np.floor,
    "round_prefer_ceil": lambda x: np.floor(x + _HALF),
    "round_prefer_floor": lambda x: np.ceil(x - _HALF),
}


@dataclass(frozen=True)
class Padding:
    """Pixels before and after an axis; of the mode ``constant``, they come from no pixel: -1."""

    before: int = 0
    after: int = 0
    mode: Literal["constant", "edge", "reflect"] = "constant"

    def size_of(self, operand: Dim) -> Dim:
        """Size of the result."""
        return window(operand, 1, 1, 1, (self.before, self.after))

    def fits(self, operand: int) -> bool:
        """Whether an operand of this size has as many pixels as are reflected."""
        return self.mode != "reflect" or max(self.before, self.after) < operand or (self.before, self.after) == (0, 0)

    def sources(self, operand: int) -> list[int]:
        """The pixel that each one of the result is, for an operand of this size."""
        places = range(-self.before, operand + self.after)
        last = operand - 1
        match self.mode:
            case "constant":
                return [place if 0 <= place <= last else -1 for place in places]
            case "edge":
                return [min(max(place, 0), last) for place in places]
        period = max(2 * last, 1)
        return [min(place % period, period - place % period) if last else 0 for place in places]


@dataclass(frozen=True)
class Slicing:
    """Every ``step``-th pixel from ``start`` to before ``stop``, as Python slices; None goes to the end."""

    start: int
    stop: int | None
    step: int

    def size_of(self, operand: Dim) -> Dim:
        """Size of the result."""
        if isinstance(operand, int):
            return len(self.sources(operand))
        found = sliced(operand, self.start, self.stop, self.step)
        assert found is not None, "the rule has asked"
        return found

    def sources(self, operand: int) -> list[int]:
        """The pixel that each one of the result is, for an operand of this size."""
        return list(range(operand)[self.start : self.stop : self.step])


@dataclass(frozen=True)
class OpenSampling:
    """:class:`Sampling` of as many pixels as only a run knows, evenly from the first to the last; or by a ``scale``."""

    size: Dim
    coordinates: str
    nearest: str = "floor"
    scale: float = 0.0

    def size_of(self, operand: Dim) -> Dim:
        """Size of the result."""
        return self.size

    def names(self) -> set[str]:
        """Of the sizes that a run has to know."""
        return names_in(self.size)

    def asked(self) -> tuple[Dim, ...]:
        """Those that a run has to know."""
        return (self.size,)

    def bound(self, known: Mapping[Dim, int]) -> Sampling:
        """With the sizes that are ``known``, all of which it has."""
        size = bound(self.size, known)
        assert isinstance(size, int), "the plan has asked"
        return Sampling(self.scale, size, self.coordinates, self.nearest)

    def sources(self, operand: int) -> list[int]:
        """The pixel that each one of the result is, for an operand of this size, where all bounds are numbers."""
        return self.bound({}).sources(operand)

    def neighbours(self, operand: int) -> list[tuple[int, int, float]]:
        """The two pixels that each one of the result lies between, where all bounds are numbers."""
        return self.bound({}).neighbours(operand)


@dataclass(frozen=True)
class OpenPadding:
    """:class:`Padding` by as many pixels as only a run knows, and no negative number."""

    before: Dim
    after: Dim
    mode: Literal["constant", "edge", "reflect"] = "constant"

    def size_of(self, operand: Dim) -> Dim:
        """Size of the result."""
        return added((self.before, operand, self.after))

    def sources(self, operand: int) -> list[int]:
        """The pixel that each one of the result is, for an operand of this size, where all bounds are numbers."""
        return self.bound({}).sources(operand)

    def names(self) -> set[str]:
        """Of the sizes that a run has to know."""
        return names_in(self.before) | names_in(self.after)

    def asked(self) -> tuple[Dim, ...]:
        """Those that a run has to know."""
        return self.before, self.after

    def bound(self, known: Mapping[Dim, int]) -> Padding:
        """With the sizes that are ``known``, all of which it has."""
        before, after = bound(self.before, known), bound(self.after, known)
        assert isinstance(before, int) and isinstance(after, int), "the plan has asked"
        return Padding(before, after, self.mode)


@dataclass(frozen=True)
class OpenSlicing:
    """:class:`Slicing` of neighbouring pixels, whose bounds only a run knows; ``count`` is as far as it is known."""

    start: Dim
    stop: Dim | None
    count: Dim

    def size_of(self, operand: Dim) -> Dim:
        """Size of the result."""
        return self.count

    def sources(self, operand: int) -> list[int]:
        """The pixel that each one of the result is, for an operand of this size, where all bounds are numbers."""
        return self.bound({}).sources(operand)

    def names(self) -> set[str]:
        """Of the sizes that a run has to know."""
        return set().union(*map(names_in, self.asked()))

    def asked(self) -> tuple[Dim, ...]:
        """Those that a run has to know."""
        return (self.start,) if self.stop is None else (self.start, self.stop)

    def bound(self, known: Mapping[Dim, int]) -> Slicing:
        """With the sizes that are ``known``, all of which it has."""
        start, *ends = concrete(tuple(bound(size, known) for size in self.asked()))
        return Slicing(start, ends[0] if ends else None, 1)


AxisMap = Sampling | Padding | Slicing | OpenPadding | OpenSampling | OpenSlicing
