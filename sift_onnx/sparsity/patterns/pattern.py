"""What a mask may look like, from the spelling of the command line to the draw of its positions."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sift_onnx.errors import UsageError
from sift_onnx.sparsity.patterns import blocks, groups, transposable
from sift_onnx.sparsity.patterns.ranking import FORBIDDEN, comparable, largest
from sift_onnx.sparsity.patterns.weight_matrix import Positions, WeightMatrix, ascending
from sift_onnx.weights.sparse import sample_positions

__all__ = ["UNSTRUCTURED", "Kind", "Pattern"]

Kind = Literal["unstructured", "n:m", "n:m-transposable", "block"]

_SPELLING = re.compile(
    r"(?P<unstructured>unstructured)"
    r"|(?P<n>\d{1,4}):(?P<m>\d{1,4})(?P<transposable>-transposable)?"
    r"|block:(?P<rows>\d{1,4})x(?P<columns>\d{1,4})"
)
_SPELLINGS = "unstructured, N:M (2:4), N:M-transposable (4:8-transposable) or block:RxC (block:4x4)"
# An entry of a group is chosen by a 16-bit draw, an M x M block by M * M steps.
_LONGEST_GROUP = {"n:m": 1024, "n:m-transposable": 64}


@dataclass(frozen=True)
class Pattern:
    """A constraint on which weights of a layer are active together.

    * ``unstructured``: none.
    * ``N:M``: at most N of M consecutive input features of an output feature (of each kernel position). Groups start at
      the first feature; a last group that is shorter holds at most N, too.
    * ``N:M-transposable``: in every M x M block of output and input features at most N in each row and in each column.
      At the edges blocks may be smaller.
    * ``block:RxC``: R output features by C input features are active together, or not at all. Only for layers whose
      sizes R and C divide.

    A mask has *at most* N of M, which is what hardware needs, and an exact number of non-zeros in all, so that a budget
    of multiply-accumulates is met as exactly as without a pattern. The matrices that these are stated on are those of
    :class:`WeightMatrix`. Paper: appendix B.3.2 uses 4:8, 2:8 and 1:8, transposable.

    Attributes:
        kind: which of the four.
        first: N, or R; 0 if unstructured.
        second: M, or C; 0 if unstructured.
    """

    kind: Kind = "unstructured"
    first: int = 0
    second: int = 0

    @classmethod
    def parse(cls, text: str | Pattern) -> Pattern:
        """The pattern that is spelled ``text``; a pattern is handed back.

        Raises:
            UsageError: there is no such pattern.
        """
        if isinstance(text, Pattern):
            return text
        match = _SPELLING.fullmatch(text)
        if match is None:
            raise UsageError(f"pattern {text!r} is unknown; use {_SPELLINGS}")
        if match["unstructured"]:
            return cls()
        if match["rows"]:
            if not int(match["rows"]) or not int(match["columns"]):
                raise UsageError(f"pattern {text!r} has empty blocks; use 1 or more rows and columns")
            return cls("block", int(match["rows"]), int(match["columns"]))
        kind: Kind = "n:m-transposable" if match["transposable"] else "n:m"
        n, m = int(match["n"]), int(match["m"])
        if not 0 < n < m:
            raise UsageError(f"pattern {text!r} leaves {n} of {m} weights; N must be at least 1 and less than M")
        if m > _LONGEST_GROUP[kind]:
            raise UsageError(f"pattern {text!r} has groups of {m}; use {_LONGEST_GROUP[kind]} or less")
        return cls(kind, n, m)

    def __str__(self) -> str:
        if self.kind == "unstructured":
            return self.kind
        if self.kind == "block":
            return f"block:{self.first}x{self.second}"
        return f"{self.first}:{self.second}" + "-transposable" * (self.kind == "n:m-transposable")

    @property
    def density(self) -> Fraction:
        """The largest share of weights that can be active in a layer whose sizes the groups divide."""
        return Fraction(self.first, self.second) if self.kind.startswith("n:m") else Fraction(1)

    @property
    def width_multiple(self) -> int:
        """What widths had better be multiples of, since a width is the output of one layer and the input of another."""
        if self.kind == "block":
            return math.lcm(self.first, self.second)
        return self.second or 1

    @property
    def unit(self) -> int:
        """Number of weights that are active together: masks have multiples of it."""
        return self.first * self.second if self.kind == "block" else 1

    def misfit(self, matrix: WeightMatrix) -> str | None:
        """Why no mask of this pattern is possible on ``matrix``, or None."""
        if self.kind == "block" and (matrix.outputs % self.first or matrix.inputs % self.second):
            return f"{self.first}x{self.second} blocks do not divide its {matrix.outputs}x{matrix.inputs} features"
        return None

    def capacity(self, matrix: WeightMatrix, allowed: Positions | None = None) -> int:
        """The most non-zeros of a mask on ``matrix``.

        Args:
            matrix: of the weight.
            allowed: flat positions of the weights that may be active, ascending; all of them if None.
        """
        if self.misfit(matrix):
            return 0
        if self.kind == "n:m":
            return groups.capacity(matrix, self.first, self.second, allowed)
        if self.kind == "n:m-transposable":
            if allowed is None:
                return transposable.capacity(matrix, self.first, self.second)
            same = comparable(np.zeros(matrix.shape, dtype=np.float32), allowed)
            return int(transposable.strongest(matrix, self.first, self.second, same).size)
        if self.kind == "block" and allowed is not None:
            return self.unit * blocks.whole_blocks(matrix, self.first, self.second, allowed)
        return matrix.size if allowed is None else int(allowed.size)

    def draw(self, matrix: WeightMatrix, count: int, rng: np.random.Generator) -> Positions:
        """A random mask.

        Groups of N:M are filled as evenly as ``count`` allows; everything else is left to chance.

        Args:
            matrix: of the weight.
            count: number of non-zeros, a multiple of :attr:`unit`.
            rng: see :func:`sift_onnx.weights.sparse.generator`.

        Returns:
            ``count`` flat positions, ascending; int32, or int64 from 2**31 weights on.

        Raises:
            ValueError: there is no mask with that many non-zeros.
        """
        self._require_fit(matrix)
        if self.kind == "n:m":
            return groups.draw(matrix, self.first, self.second, count, rng)
        if self.kind == "n:m-transposable":
            return transposable.draw(matrix, self.first, self.second, count, rng)
        if self.kind == "block":
            return blocks.draw(matrix, self.first, self.second, count, rng)
        return sample_positions(matrix.size, count, rng)

    def choose(
        self, matrix: WeightMatrix, count: int, scores: npt.NDArray[Any], allowed: Positions | None = None
    ) -> Positions:
        """The mask of the highest scores.

        Unstructured and N:M masks have the highest sum of scores that is possible; so have block masks. A transposable
        mask takes the best of a full one that a greedy choice finds. Of equal scores the lower flat position wins; NaN
        counts as the lowest score.

        Args:
            matrix: of the weight.
            count: number of non-zeros, a multiple of :attr:`unit`.
            scores: one per weight, in the weight's shape; magnitudes, say.
            allowed: flat positions of the weights that may be active, ascending; all of them if None.

        Returns:
            ``count`` flat positions, ascending; int32, or int64 from 2**31 weights on.

        Raises:
            ValueError: there is no mask with that many non-zeros, or the scores have another shape.
        """
        self._require_fit(matrix)
        if scores.shape != matrix.shape:
            raise ValueError(f"scores of shape {scores.shape} for a weight of shape {matrix.shape}")
        usable = comparable(scores, allowed)
        if self.kind == "block":
            return blocks.choose(matrix, self.first, self.second, count, usable)
        if self.kind == "unstructured":
            candidates = np.flatnonzero(usable.reshape(-1) > FORBIDDEN)
        else:
            rule = groups if self.kind == "n:m" else transposable
            candidates = rule.strongest(matrix, self.first, self.second, usable)
        best = largest(usable.reshape(-1)[candidates], count)
        return ascending([candidates[best]], matrix.size)

    def _require_fit(self, matrix: WeightMatrix) -> None:
        reason = self.misfit(matrix)
        if reason is not None:
            raise ValueError(f"{self}: {reason}")


UNSTRUCTURED = Pattern()
