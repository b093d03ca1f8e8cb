"""Constant weights on their way from the model to the kernels: a matrix, a row per output channel."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.backends.cpu import _kernels
from sift_onnx.graphs.constants import array_of, explicit_mask_of, is_masked, sparse_weight_of, stored_values_of
from sift_onnx.weights.sparse import SparseWeight

__all__ = ["SPARSE_BELOW", "Floats", "WeightMatrix", "read_weights"]

Floats = npt.NDArray[np.float32]

# Above this density the sparse kernels are no faster than onnxruntime's dense ones: of their 110 GFLOP/s (of active
# weights, paired rows) against its 95, per core of 117 at most, a few per cent are left, and the border costs more.
SPARSE_BELOW = 0.75


@dataclass
class _Reading:
    """What one look at the values tells; they may come from a file, and be large."""

    nnz: int | None = None
    finite: bool = True
    # Nothing but zeros, and no mask: as nnz_of has it, such a tensor is dense, and going to be trained.
    is_untrained: bool = False
    sparse: _kernels.SparseWeights | None = None


@dataclass(frozen=True)
class WeightMatrix:
    """Weights as they lie in the model, and what is to be multiplied into them.

    Attributes:
        constant: of the model; its values are read when the matrix is packed, and not kept.
        rows: output channels.
        columns: weights per output channel.
        transposed: the constant is [columns][rows], as MatMul has it.
        scale: factor per row, [rows]; a normalization that was folded in. None is 1.
    """

    constant: gs.Constant
    rows: int
    columns: int
    transposed: bool = False
    scale: Floats | None = None
    # Shared by all that are made from this one.
    _reading: _Reading = field(default_factory=_Reading, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Of the initializer."""
        return str(self.constant.name)

    @property
    def size(self) -> int:
        """Number of weights."""
        return self.rows * self.columns

    @property
    def nnz(self) -> int:
        """Number of active weights: under a mask, all that it leaves, whatever their values; else the non-zeros."""
        return self._read().nnz or 0

    @property
    def density(self) -> float:
        """Share of weights that are active."""
        return self.nnz / self.size if self.size else 1.0

    @property
    def is_finite(self) -> bool:
        """Whether no weight is infinite or NaN."""
        return self._read().finite

    def _read(self) -> _Reading:
        """Count, check, and keep the active weights of a sparse matrix: that is read once, and in one piece."""
        reading = self._reading
        if reading.nnz is None:
            weight = self._active_weights()
            if weight is not None:
                _, reading.finite = _kernels.count_weights(np.ascontiguousarray(weight.values, np.float32))
                reading.nnz = weight.nnz
                return reading
            stored = self._stored()
            nnz, reading.finite = _kernels.count_weights(stored, self._mask_bits())
            if not nnz and not is_masked(self.constant):
                reading.is_untrained, nnz = True, self.size
            if reading.finite and nnz <= SPARSE_BELOW * self.size:
                reading.sparse = self._packed_from(stored)
            reading.nnz = nnz
        return reading

    def _active_weights(self) -> SparseWeight | None:
        """The active weights, where the model holds them as such: the dense tensor may not fit into memory."""
        return sparse_weight_of(self.constant) if stored_values_of(self.constant) is None else None

    def _stored(self) -> Floats:
        return np.ascontiguousarray(array_of(self.constant), np.float32)

    def _mask_bits(self) -> npt.NDArray[np.uint8] | None:
        """Which of the stored weights are active; None where that is told by their not being zero."""
        mask = explicit_mask_of(self.constant)
        if mask is not None:
            return mask.bits
        return np.full(-(-self.size // 8), 0xFF, np.uint8) if self._reading.is_untrained else None

    def scaled(self, factor: Floats) -> WeightMatrix:
        """With row r multiplied by ``factor[r]``; what becomes zero stays active."""
        return replace(self, scale=factor if self.scale is None else self.scale * factor)

    def released(self) -> WeightMatrix:
        """Without the values: only what tells about them. A constant may hold the whole file that it is a part of."""
        nothing = gs.Constant(self.name, np.empty(0, np.float32))
        return replace(self, constant=nothing, scale=None, _reading=_Reading(self.nnz, self.is_finite))

    def packed(self) -> _kernels.SparseWeights:
        """The active weights, as the kernels take them."""
        sparse = self._read().sparse
        if sparse is None:
            weight = self._active_weights()
            sparse = self._packed_from(self._stored()) if weight is None else self._packed_from_active(weight)
        return sparse if self.scale is None else sparse.scaled(self.scale)

    def _packed_from(self, stored: Floats) -> _kernels.SparseWeights:
        return _kernels.SparseWeights.from_dense(self.rows, self.columns, stored, self.transposed, self._mask_bits())

    def _packed_from_active(self, weight: SparseWeight) -> _kernels.SparseWeights:
        indices, active = weight.indices.astype(np.int64), np.ascontiguousarray(weight.values, np.float32)
        if self.transposed:
            columns, rows = np.divmod(indices, self.rows)
            # 16 bits are sorted by their digits, in a tenth of the time.
            order = np.argsort(rows.astype(np.uint16) if self.rows <= 1 << 16 else rows, kind="stable")
            indices, active = (rows * self.columns + columns)[order], active[order]
        return _kernels.SparseWeights.from_indices(self.rows, self.columns, indices, active)


def read_weights(matrices: Iterable[WeightMatrix], threads: int) -> None:
    """Read the values of several at once; without this, each is read when it is first asked about."""
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(WeightMatrix._read, matrices))
