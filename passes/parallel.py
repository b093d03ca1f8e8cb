"""Sparse Parallel: a sum of sparse, non-linear branches (paper, section 2.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from typing import Annotated, ClassVar, Literal

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.errors import UsageError
from sift_onnx.passes.layerwise.activations import second_moment
from sift_onnx.passes.layerwise.base import LayerwisePass
from sift_onnx.passes.layerwise.linear_layers import LinearLayer, Occurrence
from sift_onnx.passes.layerwise.replacement import Part, Replacement
from sift_onnx.passes.layerwise.replacement_builder import ReplacementBuilder
from sift_onnx.passes.settings import OF_FAMILY
from sift_onnx.sparsity.patterns.pattern import UNSTRUCTURED
from sift_onnx.weights.sparse import SparseWeight, generator, index_dtype

__all__ = ["Parallel"]


@dataclass(frozen=True)
class Parallel(LayerwisePass):
    """Replace each layer by ``k = 1 / (1 - s)`` sparse branches: ``y = sum_j f(W_j x)``.

    ``k`` is rounded to the nearest integer, half to even, and the sparsity of a branch is ``1 - 1/k``: together the
    branches hold exactly as many active weights as the layer had weights. The report's ``sparsity`` is that of the
    branches, ``sparsity_requested`` is ``s``. Each branch has its own BatchNormalization where the layer had one or
    where ``activation`` inserts one, and its own bias.

    With ``init="embed"`` and ``activation="none"`` the original's weights are dealt out over the branches at random, so
    that the model computes what it computed.

    Requires: nothing; layers under a mask are left as they are. Ensures: inputs, outputs and all other tensors keep
    names, types and shapes; MACs stay exactly; a second run with the same settings changes nothing.
    """

    name: ClassVar[str] = "parallel"

    _: KW_ONLY
    init: Annotated[Literal["random", "embed"], OF_FAMILY, "how new weights start"] = "random"

    @property
    def branches(self) -> int:
        """``k``."""
        return round(1 / (1 - self.share))

    @property
    def made_sparsity(self) -> Fraction:
        """``1 - 1 / k``."""
        return 1 - Fraction(1, self.branches)

    def notes(self) -> Sequence[str]:
        """The sparsity that was made, where it is not the one that was asked for."""
        if self.made_sparsity == self.share:
            return ()
        return (
            f"a sparsity of {float(self.share):g} asks for {float(1 / (1 - self.share)):.4g} branches; there are "
            f"{self.branches}, which have a sparsity of {float(self.made_sparsity):.4g}",
        )

    def check_settings(self) -> None:
        """Refuse an ``embed`` that would not keep what the model computes."""
        super().check_settings()
        if self.init == "embed" and self.activation != "none":
            raise UsageError(
                "`init='embed'` keeps what the model computes, which a non-linearity in the branches would change; "
                "add `activation='none'`"
            )
        if self.init == "embed" and self.pattern != UNSTRUCTURED:
            raise UsageError("`init='embed'` keeps the original's weights where they are; drop `pattern`")

    def is_identity(self) -> bool:
        """One branch is the layer itself."""
        return self.branches == 1

    def why_identity(self) -> str:
        """How much makes a second branch."""
        enough = ": it makes one branch, which is the layer, and 1/3 makes two" if self.share else ""
        return super().why_identity() + enough

    def fits(self, layer: LinearLayer) -> str:
        """Each branch needs a weight."""
        if layer.size < self.branches:
            return f"it has fewer weights than {self.branches} branches"
        return self.misfit(layer, layer.shape, max(self._counts(layer)))

    def replace(self, builder: ReplacementBuilder) -> Replacement:
        """The branches' weights."""
        layer = builder.layer
        counts = self._counts(layer)
        if self.init == "embed":
            constants = _deal(builder, counts)
        else:
            energy = builder.energy(rectified=True) * self._gain(builder, inside_norm=False)
            constants = [builder.sparse(f"branch{j}", layer.shape, nnz, energy) for j, nnz in enumerate(counts)]
        return Replacement(tuple(Part("branch", constant) for constant in constants), self.branches * layer.size)

    def _counts(self, layer: LinearLayer) -> list[int]:
        """Active weights of each branch: the same, but for what the division leaves."""
        blocks = layer.size // self.mask_pattern.unit
        return [self.mask_pattern.unit * ((blocks + j) // self.branches) for j in range(self.branches)][::-1]

    def connect(self, builder: ReplacementBuilder, occurrence: Occurrence, parts: Sequence[Part]) -> gs.Variable:
        """``f(W_0 x) + f(W_1 x) + ...``."""
        total: gs.Variable | None = None
        gain = self._gain(builder, inside_norm=True)
        non_linearity = builder.non_linearity
        for j, part in enumerate(parts):
            name = f"branch{j}"
            if non_linearity is None:
                # One bias is enough for a linear sum.
                y = builder.product(occurrence, part.constant, name, "outer" if j == 0 else "none")
            else:
                y = builder.product(occurrence, part.constant, name, "none" if non_linearity.norm else "inner")
                y = builder.activate(occurrence, y, builder.layer.features_out, name, gain=gain)
            total = y if total is None else builder.add(occurrence, total, y, f"sum{j}")
        assert total is not None
        return builder.finish(occurrence, total) if non_linearity is None else total

    def _gain(self, builder: ReplacementBuilder, *, inside_norm: bool) -> float:
        """What keeps the second moment of the layer's output: it scales the normalization, or else the weights."""
        if builder.non_linearity is None:
            return 1 / self.branches
        if builder.non_linearity.norm != inside_norm:
            return 1.0
        return 1 / second_moment(self.branches)


def _deal(builder: ReplacementBuilder, counts: Sequence[int]) -> list[gs.Constant]:
    """The layer's weights dealt out at random, ``counts`` of them to each branch."""
    layer = builder.layer
    values = np.ascontiguousarray(layer.values()).reshape(-1)
    order = generator(builder.seed, layer.name, "deal").permutation(layer.size)
    dealt: list[gs.Constant] = []
    for j, hand in enumerate(np.split(order, np.cumsum(counts)[:-1])):
        indices = np.sort(hand).astype(index_dtype(layer.size))
        dealt.append(builder.given(f"branch{j}", SparseWeight(layer.shape, indices, values[indices])))
    return dealt
