"""Constant weights on their way from the model to the kernels: a matrix, a row per output channel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.backends.cpu import _kernels
from sift_onnx.constants import MaskedValues, array_of

__all__ = ["Floats", "WeightMatrix"]

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class WeightMatrix:
    """Weights as they lie in the model, and what is to be multiplied into them.

    Attributes:
        constant: of the model; its values are read when the matrix is packed, and not kept.
        rows: output channels.
        columns: weights per output channel.
        transposed: the constant is [columns][rows], as MatMul has it.
        scale: factor per row, [rows]; a normalization that was folded in. None is 1.
        counted: number of weights that are not zero, where it is known without looking.
    """

    constant: gs.Constant
    rows: int
    columns: int
    transposed: bool = False
    scale: Floats | None = None
    counted: int | None = None

    @property
    def name(self) -> str:
        """Of the initializer."""
        return str(self.constant.name)

    @property
    def size(self) -> int:
        """Number of weights."""
        return self.rows * self.columns

    @cached_property
    def nnz(self) -> int:
        """Number of weights that are not zero."""
        return int(np.count_nonzero(self._stored())) if self.counted is None else self.counted

    @property
    def density(self) -> float:
        """Share of weights that are not zero."""
        return self.nnz / self.size if self.size else 1.0

    @cached_property
    def is_finite(self) -> bool:
        """Whether no weight is infinite or NaN."""
        # A finite sum has finite terms; where large ones overflow, each is looked at.
        with np.errstate(all="ignore"):
            values = self._stored()
            return bool(np.isfinite(values.sum(dtype=np.float64))) or bool(np.isfinite(values).all())

    def _stored(self) -> npt.NDArray[Any]:
        values = self.constant._values
        if isinstance(values, MaskedValues) and values.stored is None:
            return values.weight.values
        return array_of(self.constant)

    def scaled(self, factor: Floats) -> WeightMatrix:
        """With row r multiplied by ``factor[r]``."""
        return replace(self, scale=factor if self.scale is None else self.scale * factor)

    def released(self) -> WeightMatrix:
        """Without the values: only what tells about them. A constant may hold the whole file that it is a part of."""
        nothing = gs.Constant(self.name, np.empty(0, np.float32))
        return replace(self, constant=nothing, scale=None, counted=self.nnz)

    def copied(self) -> WeightMatrix:
        """The same weights in memory of their own."""
        own = gs.Constant(self.name, self.dense().copy())
        return replace(self, constant=own, transposed=False, scale=None, counted=self.nnz)

    def dense(self) -> Floats:
        """All weights, [rows][columns]."""
        values = np.asarray(array_of(self.constant), np.float32)
        matrix = values.reshape(self.columns, self.rows).T if self.transposed else values.reshape(self.rows, -1)
        if self.scale is not None:
            matrix = matrix * self.scale[:, None]
        return np.ascontiguousarray(matrix)

    def packed(self) -> _kernels.SparseWeights:
        """The non-zeros, as the kernels take them."""
        values = self.constant._values
        if not isinstance(values, MaskedValues) or values.stored is not None:
            return _kernels.SparseWeights.from_dense(self.rows, self.columns, self.dense())
        weight = values.weight
        indices, active = weight.indices.astype(np.int64), np.asarray(weight.values, np.float32)
        if self.transposed:
            columns, rows = np.divmod(indices, self.rows)
            # 16 bits are sorted by their digits, in a tenth of the time.
            order = np.argsort(rows.astype(np.uint16) if self.rows <= 1 << 16 else rows, kind="stable")
            indices, active = (rows * self.columns + columns)[order], active[order]
        if self.scale is not None:
            active = active * self.scale[indices // self.columns]
        return _kernels.SparseWeights.from_indices(self.rows, self.columns, indices, np.ascontiguousarray(active))
