"""Constant weights as the model holds them: a matrix, a row per output channel. A back end reads and packs them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.graphs.constants import (
    array_of,
    explicit_mask_of,
    is_masked,
    sparse_weight_of,
    stored_values_of,
)
from sift_onnx.weights.sparse import SparseWeight

__all__ = ["Floats", "Reading", "ValueType", "WeightMatrix"]

Floats = npt.NDArray[np.float32]
# How a back end may hold values; int8 has a factor per row, or per row and group of columns.
ValueType = Literal["float32", "bfloat16", "float16", "int8"]


@dataclass
class Reading:
    """What a back end finds when it reads the values; they may come from a file, and be large.

    Attributes:
        nnz: number of active weights; None before the values are read.
        is_finite: whether no weight is infinite or NaN.
        is_untrained: whether there are only zeros and no mask: as nnz_of has it, such a tensor is dense.
        packed: the back end's own form of the weights, where it makes that from the same read.
    """

    nnz: int | None = None
    is_finite: bool = True
    is_untrained: bool = False
    packed: object = field(default=None, repr=False)


@dataclass(frozen=True)
class WeightMatrix:
    """Weights as the model stores them, and a factor per row that is to be multiplied into them.

    Attributes:
        constant: of the model; its values are read when the matrix is packed, and not kept.
        rows: output channels.
        columns: weights per output channel.
        transposed: the constant is [columns][rows], as MatMul has it.
        scale: factor per row, [rows]; a normalization that was folded in. None is 1.
        dtype: element type that the values are read in.
        values: how they are held. What a model stores in fewer bits is held as it is stored; where the back end is
            asked for fewer, values are rounded.
        steps: of int8, factors that the model has: [rows], or [rows, groups]. None: the back end chooses them.
        group: columns of a group of ``steps``; 0 where they are [rows].
        zero_point: what the stored integers are above the weights.
        filled: share that are weights of the model; the others are zeros that other runtimes do not multiply.
        is_stored: whether it is the model that has ``values``, so that other runtimes may gain from them as well.
        reading: shared by all that are made from this one.
    """

    constant: gs.Constant
    rows: int
    columns: int
    transposed: bool = False
    scale: Floats | None = None
    dtype: DType = DType.FLOAT32
    values: ValueType = "float32"
    steps: Floats | None = field(default=None, repr=False, compare=False)
    group: int = 0
    zero_point: int = 0
    filled: float = 1.0
    is_stored: bool = False
    reading: Reading = field(default_factory=Reading, repr=False, compare=False)

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
        nnz = self.reading.nnz
        assert nnz is not None  # find_node_groups has all weights read
        return nnz

    @property
    def density(self) -> float:
        """Share of weights that are active."""
        return self.nnz / self.size if self.size else 1.0

    @property
    def active_share(self) -> float:
        """Share of the model's weights that are active."""
        return self.density / self.filled

    @property
    def is_finite(self) -> bool:
        """Whether no weight is infinite or NaN."""
        return self.reading.is_finite

    def record(self, nnz: int, is_finite: bool) -> None:
        """Keep what was counted: active weights under a mask, or else non-zeros, and whether all are finite."""
        self.reading.is_untrained = not nnz and not is_masked(self.constant)
        self.reading.is_finite = is_finite
        self.reading.nnz = self.size if self.reading.is_untrained else nnz

    def active_weights(self) -> SparseWeight | None:
        """The active weights, where the model holds them as such: the dense tensor may not fit into memory."""
        return sparse_weight_of(self.constant) if stored_values_of(self.constant) is None else None

    def stored(self) -> Floats:
        """All values, in the constant's order; of int8 with ``steps``, the whole numbers that these multiply."""
        stored = array_of(self.constant)
        if self.zero_point:
            stored = stored.astype(np.int16) - self.zero_point
        return np.ascontiguousarray(stored, self.dtype.numpy)

    def mask_bits(self) -> npt.NDArray[np.uint8] | None:
        """Which of the stored weights are active, a bit each; None where those are active that are not zero."""
        mask = explicit_mask_of(self.constant)
        if mask is not None:
            return mask.bits
        return np.full(-(-self.size // 8), 0xFF, np.uint8) if self.reading.is_untrained else None

    def scaled(self, factor: Floats) -> WeightMatrix:
        """With row r multiplied by ``factor[r]``; what becomes zero stays active."""
        return replace(self, scale=factor if self.scale is None else self.scale * factor)

    def released(self) -> WeightMatrix:
        """Without the values: only what is known of them. A constant may hold the whole file that it is a part of."""
        nothing = gs.Constant(self.name, np.empty(0, self.dtype.numpy))
        return replace(self, constant=nothing, scale=None, steps=None, reading=Reading(self.nnz, self.is_finite))
