"""What moves values to other places and computes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeGuard

from sift_onnx.backends.lowering.cut_sizes import sliced
from sift_onnx.backends.lowering.dims import Dim, bound, concrete, names_in
from sift_onnx.backends.lowering.specs.windows import Pair

__all__ = [
    "Joined",
    "Moving",
    "OpenJoined",
    "OpenRange",
    "OpenSliced",
    "Range",
    "Repeated",
    "Reshaped",
    "Sliced",
    "Transposed",
    "is_pair",
]


@dataclass(frozen=True)
class Reshaped:
    """The same values in the same order under other sizes.

    Attributes:
        axes: of the result: a size, -1 for what the others leave, (first, end) for the product of the operand's axes
            from first to before end, or what a run knows by its name. None keeps the operand's.
    """

    axes: tuple[Dim | Pair, ...] | None = None

    def names(self) -> set[str]:
        """Of the sizes that a run has to know."""
        return set(_names_of(self.axes or ()))

    def asked(self) -> tuple[Dim, ...]:
        """Those that a run has to know."""
        return tuple(axis for axis in self.axes or () if not is_pair(axis))

    def bound(self, known: Mapping[Dim, Dim]) -> Reshaped:
        """With the sizes that are ``known``."""
        if not self.axes or not _names_of(self.axes):
            return self
        return Reshaped(tuple(axis if is_pair(axis) else bound(axis, known) for axis in self.axes))


@dataclass(frozen=True)
class Transposed:
    """Axes in another order: axis i of the result is the operand's axis ``order[i]``."""

    order: tuple[int, ...]


@dataclass(frozen=True)
class Range:
    """Positions ``range(size)[start:stop:step]`` of an axis, forwards.

    Attributes:
        axis: that they lie along.
        start: see there.
        stop: see there.
        step: see there.
        of: size of the axis, where it is known before a run.
    """

    axis: int
    start: int
    stop: int | None
    step: int = 1
    of: int | None = None

    def places(self, size: int) -> range:
        """The positions of an axis of ``size``."""
        return range(size)[self.start : self.stop : self.step]

    @property
    def is_one(self) -> bool:
        """Whether it is one position of an axis that has it."""
        return self.start + 1 == (0 if self.stop is None else self.stop)

    def count(self, size: Dim) -> Dim:
        """How many positions those of an axis of ``size`` are."""
        if isinstance(size, int):
            return len(self.places(size))
        found = 1 if self.is_one else sliced(size, self.start, self.stop, self.step)
        assert found is not None, "the rule has asked"
        return found


@dataclass(frozen=True)
class Sliced:
    """Ranges of axes; ``drops`` leaves out an axis of which one position was taken."""

    ranges: tuple[Range, ...]
    drops: bool = False


@dataclass(frozen=True)
class OpenRange:
    """Positions ``range(size)[start:stop]`` of an axis, whose bounds only a run knows.

    Attributes:
        axis: that they lie along.
        start: see there.
        stop: see there; None goes to the end.
        count: how many they are, as far as it is known.
    """

    axis: int
    start: Dim
    stop: Dim | None
    count: Dim

    def names(self) -> set[str]:
        """Of the sizes that a run has to know."""
        return set().union(*map(names_in, self.asked()))

    def asked(self) -> tuple[Dim, ...]:
        """Those that a run has to know."""
        return (self.start,) if self.stop is None else (self.start, self.stop)

    def bound(self, known: Mapping[Dim, int]) -> Range:
        """With the sizes that are ``known``, all of which it has."""
        start, *ends = concrete(tuple(bound(size, known) for size in self.asked()))
        return Range(self.axis, start, ends[0] if ends else None)


@dataclass(frozen=True)
class OpenSliced:
    """Ranges of axes that only a run knows; then it is :class:`Sliced`."""

    ranges: tuple[OpenRange, ...]

    def names(self) -> set[str]:
        """Of the sizes that a run has to know."""
        return set().union(*(taken.names() for taken in self.ranges))

    def asked(self) -> tuple[Dim, ...]:
        """Those that a run has to know."""
        return tuple(size for taken in self.ranges for size in taken.asked())

    def bound(self, known: Mapping[Dim, int]) -> Sliced:
        """With the sizes that are ``known``, all of which it has."""
        return Sliced(tuple(taken.bound(known) for taken in self.ranges))


@dataclass(frozen=True)
class Repeated:
    """Axes of one position that have ``sizes`` of them in the result, by axis: all the same.

    A size may be what a run knows by its name.
    """

    sizes: tuple[tuple[int, Dim], ...]

    def names(self) -> set[str]:
        """Of the sizes that a run has to know."""
        return set().union(*map(names_in, self.asked()))

    def asked(self) -> tuple[Dim, ...]:
        """Those that a run has to know."""
        return tuple(size for _, size in self.sizes)

    def bound(self, known: Mapping[Dim, Dim]) -> Repeated:
        """With the sizes that are ``known``."""
        if not any(isinstance(size, (str, tuple)) for _, size in self.sizes):
            return self
        return Repeated(tuple((axis, bound(size, known)) for axis, size in self.sizes))


@dataclass(frozen=True)
class Joined:
    """Operands one after the other along an axis, of which the result has ``size`` positions.

    The first operand has the result's other sizes.

    Attributes:
        axis: along which they lie.
        starts: where each operand begins.
        size: of the result.
        repeated: which operands are repeated along the other axes of which they have one position, as a class token is.
    """

    axis: int
    starts: tuple[int, ...]
    size: int
    repeated: tuple[int, ...] = ()

    def count(self, operand: int) -> int:
        """Positions of one of the operands."""
        first = self.starts[operand]
        return min((start for start in self.starts if start > first), default=self.size) - first


@dataclass(frozen=True)
class OpenJoined:
    """Operands one after the other along an axis, of sizes that only a run knows; then it is :class:`Joined`.

    Attributes:
        axis: along which they lie.
        places: of each operand, in the order of the result.
        size: of the result, as far as it is known.
        repeated: as of :class:`Joined`.
    """

    axis: int
    places: tuple[int, ...]
    size: Dim
    repeated: tuple[int, ...] = ()


@lru_cache(maxsize=256)
def _names_of(axes: tuple[Dim | Pair, ...]) -> frozenset[str]:
    return frozenset().union(*(names_in(axis) for axis in axes if not is_pair(axis)))


Moving = Reshaped | Transposed | Sliced | OpenSliced | Repeated | Joined | OpenJoined


def is_pair(axis: Dim | Pair) -> TypeGuard[Pair]:
    """Whether an axis of :class:`Reshaped` is a range of the operand's axes."""
    return isinstance(axis, tuple) and isinstance(axis[0], int)
