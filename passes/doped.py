"""Sparse Doped: a dense low-rank pair plus a sparse, non-linear matrix (paper, section 2.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.passes.layerwise.base import LayerwisePass
from sift_onnx.passes.layerwise.factorization import grouped_product, low_rank_factors, relative_error
from sift_onnx.passes.layerwise.linear_layers import LinearLayer, Occurrence
from sift_onnx.passes.layerwise.replacement import Part, Replacement
from sift_onnx.passes.layerwise.replacement_builder import ReplacementBuilder
from sift_onnx.passes.settings import OF_FAMILY

__all__ = ["Doped"]


@dataclass(frozen=True)
class Doped(LayerwisePass):
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

    _: KW_ONLY
    init: Annotated[Literal["random", "svd"], OF_FAMILY, "how new weights start"] = "random"

    def is_identity(self) -> bool:
        """Without sparsity no rank is left for the pair."""
        return not self.share

    def fits(self, layer: LinearLayer) -> str:
        """The pair needs a rank, ``S`` a weight."""
        rank = self._rank(layer)
        if not rank:
            return f"{float(self.share):.3g} of its {layer.size:,} weights do not pay for a rank of {layer.groups}"
        nnz = self._nnz(layer)
        return self.misfit(layer, layer.shape, nnz) if nnz else "the low-rank pair leaves no weight"

    def replace(self, builder: ReplacementBuilder) -> Replacement:
        """``U``, ``V`` and ``S``."""
        layer = builder.layer
        rank, nnz = self._rank(layer), self._nnz(layer)
        error: float | None = None
        if self.init == "svd":
            u, v, s, error = self._from_trained(builder)
        else:
            energy = builder.energy(rectified=True)
            own_norm = builder.non_linearity is not None and builder.has_norm
            u = builder.dense("U", layer.shape_for(rank), 1.0)
            pair_energy = energy * (1.0 if own_norm else self._pair_gain)
            v = builder.dense("V", layer.projection_shape(rank), pair_energy)
            in_norm = builder.non_linearity is not None and builder.non_linearity.norm
            s = builder.sparse("S", layer.shape, nnz, energy * (1.0 if in_norm else self._sparse_gain(builder)))
        return Replacement((Part("U", u), Part("V", v), Part("sparse", s)), layer.size, error)

    def connect(self, builder: ReplacementBuilder, occurrence: Occurrence, parts: Sequence[Part]) -> gs.Variable:
        """``V U x + f(S x)``."""
        u, v, s = (part.constant for part in parts)
        layer, non_linearity = builder.layer, builder.non_linearity
        pair = builder.projection(occurrence, builder.product(occurrence, u, "U"), v, "V")
        if non_linearity is None:
            return builder.finish(occurrence, builder.add(occurrence, pair, builder.product(occurrence, s, "S"), "sum"))
        if builder.has_norm:
            gain = self._pair_gain if builder.fresh else 1.0
            pair = builder.norm(occurrence, pair, layer.features_out, "V", gain=gain)
        doped = builder.product(occurrence, s, "S", "none" if non_linearity.norm else "inner")
        gain = self._sparse_gain(builder) if builder.fresh else 1.0
        doped = builder.activate(occurrence, doped, layer.features_out, "S", gain=gain, like="scale")
        return builder.add(occurrence, pair, doped, "sum")

    @property
    def _pair_gain(self) -> float:
        """Both parts together have the second moment that the layer had, shared like their MACs."""
        return float(self.share)

    def _sparse_gain(self, builder: ReplacementBuilder) -> float:
        # A ReLU halves the second moment of what it is given.
        return float(1 - self.share) * (1.0 if builder.non_linearity is None else 2.0)

    def _rank(self, layer: LinearLayer) -> int:
        both = layer.features_in + layer.features_out
        exact = self.share * layer.size / (both * layer.groups)
        # Under N:M the sparse matrix cannot take what rounding down would leave to it.
        return (math.ceil(exact) if self.mask_pattern.density < 1 else int(exact)) * layer.groups

    def _nnz(self, layer: LinearLayer) -> int:
        return self.whole_blocks(layer.size - self._rank(layer) * (layer.features_in + layer.features_out))

    def _from_trained(self, builder: ReplacementBuilder) -> tuple[gs.Constant, gs.Constant, gs.Constant, float]:
        layer = builder.layer
        matrix, rank = layer.matrix(), self._rank(layer)
        u, v = low_rank_factors(matrix, rank, layer.groups)
        residual = matrix - grouped_product(v, u, layer.groups)
        left = np.ascontiguousarray(layer.from_matrix(residual, layer.shape))
        sparse = builder.largest(left, self._nnz(layer))
        error = relative_error(sparse.to_dense(), left, reference=matrix)
        return (
            builder.given("U", layer.from_matrix(u, layer.shape_for(rank))),
            builder.given("V", layer.from_matrix(v, layer.projection_shape(rank))),
            builder.given("S", sparse),
            error,
        )
