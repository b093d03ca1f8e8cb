"""Sparse Doped: a dense low-rank pair plus a sparse, non-linear matrix (paper, section 2.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.passes.base import register_pass
from sift_onnx.passes.local.factorization import grouped_product, low_rank_factors, relative_error
from sift_onnx.passes.local.linear_units import LinearUnit, Site
from sift_onnx.passes.local.member import LocalPass
from sift_onnx.passes.local.replacement import Part, Replacement
from sift_onnx.passes.local.workshop import Workshop

__all__ = ["Doped"]


@register_pass
class Doped(LocalPass):
    """Replace each layer by a dense low-rank pair and a sparse matrix of its own shape: ``y = V U x + f(S x)``.

    ``d_sd = s D_in D_out / (D_in + D_out)``, rounded down to a whole number (of features per group, in a grouped
    convolution); ``S`` gets exactly the weights that the pair leaves. ``U`` carries the kernel, strides, padding,
    dilation and groups of a convolution, ``V`` is a 1x1 convolution over all of them. The layer's bias is added to the
    low-rank part; where the layer has a BatchNormalization and the sum is not linear, each part gets its own.

    With ``init="svd"`` the pair starts as the truncated singular value decomposition of the trained weight, ``S`` as
    the largest entries of what that leaves.

    Requires: nothing; layers under a mask are left as they are. Ensures: inputs, outputs and all other tensors keep
    names, types and shapes; MACs stay exactly; a second run with the same settings changes nothing.
    """

    name: ClassVar[str] = "doped"
    inits: ClassVar[tuple[str, ...]] = ("random", "svd")

    def is_identity(self) -> bool:
        """Without sparsity no rank is left for the pair."""
        return not self.sparsity

    def fits(self, unit: LinearUnit) -> str:
        """The pair needs a rank, ``S`` a weight."""
        rank = self._rank(unit)
        if not rank:
            return f"{float(self.sparsity):.3g} of its {unit.size:,} weights do not pay for a rank of {unit.groups}"
        nnz = self._nnz(unit)
        return self.misfit(unit, unit.shape, nnz) if nnz else "the low-rank pair leaves no weight"

    def replace(self, workshop: Workshop) -> Replacement:
        """``U``, ``V`` and ``S``."""
        unit = workshop.unit
        rank, nnz = self._rank(unit), self._nnz(unit)
        error: float | None = None
        if self.init == "svd":
            u, v, s, error = self._from_trained(workshop)
        else:
            energy = workshop.energy(rectified=True)
            own_norm = workshop.non_linearity is not None and workshop.has_norm
            u = workshop.dense("U", unit.shape_for(rank), 1.0)
            pair_energy = energy * (1.0 if own_norm else self._pair_gain)
            v = workshop.dense("V", unit.projection_shape(rank), pair_energy)
            in_norm = workshop.non_linearity is not None and workshop.non_linearity.norm
            s = workshop.sparse("S", unit.shape, nnz, energy * (1.0 if in_norm else self._sparse_gain(workshop)))
        return Replacement((Part("U", u), Part("V", v), Part("sparse", s)), unit.size, error)

    def connect(self, workshop: Workshop, site: Site, parts: Sequence[Part]) -> gs.Variable:
        """``V U x + f(S x)``."""
        u, v, s = (part.constant for part in parts)
        unit, non_linearity = workshop.unit, workshop.non_linearity
        pair = workshop.projection(site, workshop.product(site, u, "U"), v, "V")
        if non_linearity is None:
            return workshop.finish(site, workshop.add(site, pair, workshop.product(site, s, "S"), "sum"))
        if workshop.has_norm:
            gain = self._pair_gain if workshop.fresh else 1.0
            pair = workshop.norm(site, pair, unit.features_out, "V", gain=gain)
        doped = workshop.product(site, s, "S", "none" if non_linearity.norm else "inner")
        gain = self._sparse_gain(workshop) if workshop.fresh else 1.0
        doped = workshop.activate(site, doped, unit.features_out, "S", gain=gain, like="scale")
        return workshop.add(site, pair, doped, "sum")

    @property
    def _pair_gain(self) -> float:
        """Both parts together have the second moment that the layer had, shared like their MACs."""
        return float(self.sparsity)

    def _sparse_gain(self, workshop: Workshop) -> float:
        # A ReLU halves the second moment of what it is given.
        return float(1 - self.sparsity) * (1.0 if workshop.non_linearity is None else 2.0)

    def _rank(self, unit: LinearUnit) -> int:
        both = unit.features_in + unit.features_out
        exact = self.sparsity * unit.size / (both * unit.groups)
        # Under N:M the sparse matrix cannot take what rounding down would leave to it.
        return (math.ceil(exact) if self.pattern.density < 1 else int(exact)) * unit.groups

    def _nnz(self, unit: LinearUnit) -> int:
        return self.masked_units(unit.size - self._rank(unit) * (unit.features_in + unit.features_out))

    def _from_trained(self, workshop: Workshop) -> tuple[gs.Constant, gs.Constant, gs.Constant, float]:
        unit = workshop.unit
        matrix, rank = unit.matrix(), self._rank(unit)
        u, v = low_rank_factors(matrix, rank, unit.groups)
        residual = matrix - grouped_product(v, u, unit.groups)
        left = np.ascontiguousarray(unit.from_matrix(residual, unit.shape))
        sparse = workshop.largest(left, self._nnz(unit))
        error = relative_error(sparse.to_dense(), left, reference=matrix)
        return (
            workshop.given("U", unit.from_matrix(u, unit.shape_for(rank))),
            workshop.given("V", unit.from_matrix(v, unit.projection_shape(rank))),
            workshop.given("S", sparse),
            error,
        )
