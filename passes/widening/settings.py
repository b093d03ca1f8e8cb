"""The settings of Sparse Wide."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from typing import Annotated, Literal

from sift_onnx.analysis.findings import AttentionGrowth
from sift_onnx.errors import UsageError
from sift_onnx.passes.masking import Masking
from sift_onnx.passes.settings import NEVER_NOTED, UNLESS_DEFAULT, Count, Globs
from sift_onnx.passes.sparsifying import SparsifyingPass
from sift_onnx.sparsity.budget import Distribution

__all__ = ["Budget", "Init", "WideSettings"]

Budget = Literal["model", "layer", "total"]
Init = Literal["random", "embed"]

# Beyond any width; the search for a width goes through as many.
_COARSEST = 1 << 16


@dataclass(frozen=True)
class WideSettings(SparsifyingPass):
    """The settings of Sparse Wide.

    A layer that the blocks of a pattern do not divide stays dense.

    Attributes:
        budget: what must cost the same as before: ``model``, each ``layer``, or ``total`` with activation products.
        round_to: prefer widths that are multiples of this.
        attention: what grows in attention: ``head-dim``, the number of ``heads``, or neither (``keep``).
        resize_output: globs over graph outputs that may change their size (hidden states, say).
        strict: refuse models with an operator that no rule covers.
        distribution: how layers share the budget, see :func:`~sift_onnx.sparsity.budget.shares`.
        init: how the wide model starts: from ``random`` draws, or with the original in it (``embed``): it computes what
            the original computes, with exactly the original's non-zeros in every layer, the first and the last
            included, so that of ``budget`` only ``total`` says anything: attention keeps its size, as its products cost
            what they did. See :mod:`sift_onnx.passes.widening.embedding`.
    """

    _: KW_ONLY
    budget: Annotated[Budget, "what keeps its MACs"] = "model"
    round_to: Annotated[Count, "prefer widths that are multiples of N"] = 1
    attention: Annotated[AttentionGrowth, "what grows in attention"] = "head-dim"
    resize_output: Annotated[Globs, "outputs that may change their size"] = ()
    strict: Annotated[bool, NEVER_NOTED, "refuse a model with an operator that no rule covers"] = False
    distribution: Annotated[Distribution, UNLESS_DEFAULT, "how layers share the non-zeros"] = "uniform"
    init: Annotated[Init, UNLESS_DEFAULT, "how new weights start"] = "random"

    def check_settings(self) -> None:
        """Refuse settings that contradict each other."""
        embeds = self.init == "embed"
        if embeds and self.resize_output:
            raise UsageError("`init='embed'` keeps what the outputs are, sizes included; drop `resize_output`")
        if not 1 <= self.round_to <= _COARSEST:
            raise UsageError(f"widths cannot be rounded to multiples of {self.round_to}; use 1 to {_COARSEST}")
        super().check_settings()
        if embeds and self.masking != Masking():
            raise UsageError(
                "`init='embed'` keeps the original's weights where they are; drop `pattern` and `distribution`"
            )
        if self.budget == "layer" and self.distribution != "uniform":
            raise UsageError(
                f"`budget='layer'` gives each layer its own budget, `distribution={self.distribution!r}` shares one "
                "among all; drop one of them"
            )

    @property
    def masking(self) -> Masking:
        """What masks look like, and how layers share the non-zeros."""
        return Masking.of(self.pattern, self.distribution)

    @property
    def factor_squared(self) -> Fraction:
        """``k ** 2 = 1 / (1 - s)``, exactly."""
        return 1 / (1 - self.share)
