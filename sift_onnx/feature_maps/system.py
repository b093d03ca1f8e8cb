"""Where the features of a network lie in a wider one.

An axis of ``old`` features becomes one of ``new``. Its **placement** says at which of the new places each old feature
lies. It is a list of *cuts* ``(o, n)``: an axis is cut before its old feature ``o`` and before its new place ``n``, and
in the segment between two cuts the old features come first, in their order, and the added ones last. Without inner cuts
the old features are a prefix of the new axis; what cuts it are operators that join axes (a concatenation), part them
(a split, the groups of a convolution), or merge and split them (a reshape).

Each such operator is one relation: an axis is *composed* of pieces, each of which is another axis whose features are
``inner`` places wide. Cuts flow through relations in both directions until nothing changes, so that whatever joins an
axis further on cuts it where it is made. They only ever become more, and there are finitely many, so that this ends.

Nothing in this module knows ONNX.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["FeatureMapError", "FeatureMapSystem", "Piece"]

CauseT = TypeVar("CauseT")

Cut = tuple[int, int]


class FeatureMapError(ValueError):
    """No placement satisfies every relation.

    Attributes:
        cause: of the relation that found it out.
    """

    def __init__(self, cause: object, message: str) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True)
class Piece:
    """A part of a composed axis.

    Attributes:
        axis: whose features the piece consists of, as :meth:`FeatureMapSystem.axis` numbered it.
        old: where the piece starts among the old places of the composed axis.
        new: where it starts among the new ones.
        inner: places of the composed axis for each feature of ``axis``.
    """

    axis: int
    old: int
    new: int
    inner: int = 1


@dataclass(frozen=True)
class _Relation(Generic[CauseT]):
    whole: int
    pieces: tuple[Piece, ...]
    cause: CauseT


class FeatureMapSystem(Generic[CauseT]):
    """Axes, and relations between their placements.

    ``CauseT`` is what the caller gets back when relations contradict each other.
    """

    def __init__(self) -> None:
        self._sizes: list[Cut] = []
        self._cuts: list[list[Cut]] = []
        self._relations: list[_Relation[CauseT]] = []
        self._touching: list[list[int]] = []
        self._pending: dict[int, None] = {}

    def axis(self, old: int, new: int) -> int:
        """A new axis of ``old`` features that becomes one of ``new``; its number.

        Raises:
            ValueError: it becomes shorter.
        """
        if not 0 <= old <= new:
            raise ValueError(f"an axis of {old} cannot become one of {new}")
        self._sizes.append((old, new))
        self._cuts.append(sorted({(0, 0), (old, new)}))
        self._touching.append([])
        return len(self._sizes) - 1

    def composed(self, whole: int, pieces: Sequence[Piece], cause: CauseT) -> None:
        """State that ``whole`` consists of ``pieces`` one after another; what lies between them is free."""
        relation = _Relation(whole, tuple(pieces), cause)
        self._relations.append(relation)
        number = len(self._relations) - 1
        for axis in {whole, *(piece.axis for piece in pieces)}:
            self._touching[axis].append(number)
        self._pending[number] = None

    def settle(self) -> None:
        """Let cuts flow until every relation holds.

        Raises:
            FeatureMapError: there is no placement for which they all do.
        """
        while self._pending:
            number = next(iter(self._pending))
            del self._pending[number]
            relation = self._relations[number]
            self._flow_to_whole(relation)
            self._flow_to_pieces(relation)

    def positions(self, axis: int) -> npt.NDArray[np.int64]:
        """The new place of each old feature of ``axis``, ascending; only after :meth:`settle`."""
        places = np.arange(self._sizes[axis][0], dtype=np.int64)
        for (old, new), (end, _) in pairwise(self._cuts[axis]):
            places[old:end] += new - old
        return places

    def _flow_to_whole(self, relation: _Relation[CauseT]) -> None:
        cuts = [
            (piece.old + old * piece.inner, piece.new + new * piece.inner)
            for piece in relation.pieces
            for old, new in self._cuts[piece.axis]
        ]
        self._add(relation.whole, cuts, relation.cause)

    def _flow_to_pieces(self, relation: _Relation[CauseT]) -> None:
        # By now the ends of each piece are cuts of the whole, which ascend: a piece holds those between its ends.
        whole = self._cuts[relation.whole]
        for piece in relation.pieces:
            old, new = self._sizes[piece.axis]
            ends = (piece.old, piece.new), (piece.old + old * piece.inner, piece.new + new * piece.inner)
            inside = whole[bisect_left(whole, ends[0]) : bisect_right(whole, ends[1])]
            found = [
                cut for o, n in inside for cut in _cuts_of_features(o - piece.old, n - piece.new, piece.inner, relation)
            ]
            self._add(piece.axis, found, relation.cause)

    def _add(self, axis: int, cuts: Sequence[Cut], cause: CauseT) -> None:
        known = set(self._cuts[axis])
        if known.issuperset(cuts):
            return
        merged = sorted(known.union(cuts))
        for (old, new), (old_end, new_end) in pairwise(merged):
            if new_end - new < old_end - old:
                raise FeatureMapError(
                    cause,
                    f"{old_end - old} features of an axis of {self._sizes[axis][0]} would have to lie in "
                    f"{max(new_end - new, 0)} places",
                )
        self._cuts[axis] = merged
        self._pending.update(dict.fromkeys(self._touching[axis]))


def _cuts_of_features(old: int, new: int, inner: int, relation: _Relation[CauseT]) -> list[Cut]:
    """What a cut of an axis means for features that are ``inner`` places wide there."""
    (feature, rest), (place, new_rest) = divmod(old, inner), divmod(new, inner)
    if not rest:
        # Between features: the next one starts where a whole one can.
        return [(feature, place + bool(new_rest))]
    if rest != new_rest:
        raise FeatureMapError(relation.cause, f"it cuts an axis within one of the features that {inner} places make up")
    # Through a feature, which lies exactly there.
    return [(feature, place), (feature + 1, place + 1)]
