"""What the passes that leave out a share of the weights have in common."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from fractions import Fraction
from typing import Annotated

from sift_onnx.passes.base import Pass
from sift_onnx.passes.masking import Masking
from sift_onnx.passes.selection import Selection
from sift_onnx.passes.settings import Count, Globs, InputShapes, MaskPattern, Sparsity, exact_sparsity

__all__ = ["SparsifyingPass"]


@dataclass(frozen=True)
class SparsifyingPass(Pass):
    """A pass that gives weights masks.

    Settings are held in the form that the pass works with: a sparsity as an exact fraction, globs as tuples.

    Attributes:
        sparsity: share ``s`` of weights to leave out, ``0 <= s < 1``; decimal, so that 0.9 is nine tenths.
        pattern: which weights may be active together: ``unstructured``, ``2:4``, ``4:8-transposable``, ``block:4x4``;
            see :class:`~sift_onnx.sparsity.patterns.pattern.Pattern`.
        seed: of masks and values.
        only: globs over initializer names; only matching weights become sparse.
        keep_dense: globs over initializer names; matching weights stay dense.
        input_shapes: sizes of dynamic axes.
    """

    is_noted = True

    sparsity: Annotated[Sparsity, "share of the weights to leave out, 0 <= S < 1"]
    _: KW_ONLY
    pattern: Annotated[MaskPattern, "which weights may be active together"] = "unstructured"
    seed: Annotated[Count, "seed of every random draw"] = 0
    only: Annotated[Globs, "only these weights become sparse, by initializer name"] = ()
    keep_dense: Annotated[Globs, "weights that stay dense, by initializer name"] = ()
    input_shapes: Annotated[InputShapes, "shape of an input with dynamic axes"] = field(default=None, hash=False)

    def check_settings(self) -> None:
        """Refuse a sparsity at which the pattern would have to keep more than it can."""
        self.masking.check_sparsity(self.share)

    @property
    def share(self) -> Fraction:
        """``s``."""
        return exact_sparsity(self.sparsity)

    @property
    def masking(self) -> Masking:
        """What masks look like."""
        return Masking.of(self.pattern)

    @property
    def selection(self) -> Selection:
        """Which layers stay dense."""
        return Selection(tuple(self.only), tuple(self.keep_dense))
