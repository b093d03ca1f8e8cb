"""Sparse Factorized: two sparse factors with a non-linearity between them (paper, section 2.4 and appendix A.1).

A layer ``y = W x`` with ``W`` of ``[D_out, D_in]`` becomes ``y = V f(U x)`` at a sparsity of ``s``:

    features between the factors    d_sf = ceil(D_in D_out / ((D_in + D_out) (1 - s)))
    active weights, together        nnz(U) + nnz(V) = D_in D_out
    U of [d_sf, D_in]               nnz(U) = D_in D_out - nnz(V)
    V of [D_out, d_sf]              nnz(V) = round(D_in D_out * D_out / (D_in + D_out))

Both factors have the same sparsity but for rounding, since each has its share of the active weights in proportion to
its size. Of a convolution, ``D_in`` is the weights of an output feature; ``d_sf`` is a multiple of its groups. With a
pattern of N:M or of blocks, ``d_sf`` is a multiple of its width, and both counts are rounded down to its unit.
"""

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
from sift_onnx.weights.sparse import generator

__all__ = ["Factorized"]


@dataclass(frozen=True)
class _Sizes:
    """Of the factors of one layer.

    Attributes:
        rank: ``d_sf``.
        nnz_u: active weights of ``U``.
        nnz_v: active weights of ``V``.
    """

    rank: int
    nnz_u: int
    nnz_v: int


@dataclass(frozen=True)
class Factorized(LayerwisePass):
    """Replace each layer by two sparse factors: ``y = V f(U x)``, with ``d_sf`` features between them.

    Both factors together hold exactly as many active weights as the layer had weights. ``U`` carries the kernel,
    strides, padding, dilation and groups of a convolution, ``V`` is a 1x1 convolution over all of its features. The
    layer's bias and BatchNormalization follow ``V``.

    With ``init="svd"`` the factors start as the truncated singular value decomposition of the trained weight, pruned to
    their largest entries; at least one weight of each row of ``U`` stays, so that training reaches every feature.

    Requires: nothing; layers under a mask are left as they are. Ensures: inputs, outputs and all other tensors keep
    names, types and shapes; MACs stay exactly; a second run with the same settings changes nothing.
    """

    name: ClassVar[str] = "factorized"

    _: KW_ONLY
    init: Annotated[Literal["random", "svd"], OF_FAMILY, "how new weights start"] = "random"

    def is_identity(self) -> bool:
        """Never: at a sparsity of 0 it is a non-linear low-rank factorization (paper, section 2.4)."""
        return False

    def fits(self, layer: LinearLayer) -> str:
        """Each feature between the factors needs a weight on either side."""
        sizes = self._sizes(layer)
        if min(sizes.nnz_u, sizes.nnz_v) < sizes.rank:
            return f"{layer.size:,} weights are too few for two factors over {sizes.rank} features"
        shapes = layer.shape_for(sizes.rank), layer.projection_shape(sizes.rank)
        return self.misfit(layer, shapes[0], sizes.nnz_u) or self.misfit(layer, shapes[1], sizes.nnz_v)

    def replace(self, builder: ReplacementBuilder) -> Replacement:
        """``U`` and ``V``."""
        layer = builder.layer
        sizes = self._sizes(layer)
        error: float | None = None
        if self.init == "svd":
            u, v, error = self._from_trained(builder, sizes)
        else:
            # A ReLU halves the second moment of what it is given; after a normalization nothing depends on it.
            energy = 1.0 if builder.non_linearity is None else 2.0
            u = builder.sparse("U", layer.shape_for(sizes.rank), sizes.nnz_u, energy)
            v = builder.sparse("V", layer.projection_shape(sizes.rank), sizes.nnz_v, builder.energy(rectified=False))
        search_space = sizes.rank * (layer.features_in + layer.features_out)
        return Replacement((Part("U", u), Part("V", v)), search_space, error)

    def connect(self, builder: ReplacementBuilder, occurrence: Occurrence, parts: Sequence[Part]) -> gs.Variable:
        """``V f(U x)``."""
        u, v = (part.constant for part in parts)
        return builder.factors(occurrence, u, v)

    def _sizes(self, layer: LinearLayer) -> _Sizes:
        both = layer.features_in + layer.features_out
        step = math.lcm(layer.groups, self.mask_pattern.width_multiple)
        rank = math.ceil(layer.size / (both * (1 - self.share)) / step) * step
        nnz_v = self.whole_blocks(round(layer.size * layer.features_out / both))
        return _Sizes(rank, self.whole_blocks(layer.size - nnz_v), nnz_v)

    def _from_trained(self, builder: ReplacementBuilder, sizes: _Sizes) -> tuple[gs.Constant, gs.Constant, float]:
        layer = builder.layer
        matrix = layer.matrix()
        u, v = low_rank_factors(matrix, sizes.rank, layer.groups)
        rng = generator(builder.seed, layer.name, "spare features")
        squares = u**2
        for row in np.flatnonzero(~u.any(axis=1)):
            # A feature beyond the rank of the weight: V does not read it yet, but its gradient does.
            column = rng.integers(layer.features_in)
            u[row, column] = np.sqrt(np.mean(squares) or 1.0)
            squares[row, column] = u[row, column] ** 2
        dense_u = np.ascontiguousarray(layer.from_matrix(u, layer.shape_for(sizes.rank)))
        dense_v = np.ascontiguousarray(layer.from_matrix(v, layer.projection_shape(sizes.rank)))
        # The largest weight of each row of U: a feature that nothing enters or leaves would have no gradient.
        strongest = np.zeros_like(u)
        strongest[np.arange(sizes.rank), np.abs(u).argmax(axis=1)] = 1
        kept = np.flatnonzero(layer.from_matrix(strongest, layer.shape_for(sizes.rank)))
        masked_u = builder.largest(dense_u, sizes.nnz_u, kept)
        masked_v = builder.largest(dense_v, sizes.nnz_v)
        product = grouped_product(
            layer.to_matrix(masked_v.to_dense()), layer.to_matrix(masked_u.to_dense()), layer.groups
        )
        return builder.given("U", masked_u), builder.given("V", masked_v), relative_error(product, matrix)
