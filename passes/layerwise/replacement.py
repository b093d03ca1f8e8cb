"""The weights that take a layer's place."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from sift_onnx.graphs.constants import shape_of, sparse_weight_of
from sift_onnx.records import transform

__all__ = ["Part", "Replacement"]


@dataclass(frozen=True)
class Part:
    """One of the weights that take a layer's place.

    Attributes:
        role: ``branch``, ``U``, ``V`` or ``sparse``.
        constant: the initializer.
    """

    role: str
    constant: gs.Constant

    @property
    def nnz(self) -> int:
        """Active weights."""
        weight = sparse_weight_of(self.constant)
        return weight.nnz if weight is not None else self.weights

    @property
    def weights(self) -> int:
        """Weights, active or not."""
        return math.prod(shape_of(self.constant))

    def record(self) -> transform.Part:
        """As it stands in the report."""
        return transform.Part(
            name=self.constant.name,
            role=self.role,
            shape=shape_of(self.constant),
            nnz=self.nnz,
            sparsity=1 - self.nnz / self.weights,
        )


@dataclass(frozen=True)
class Replacement:
    """What a layer became.

    Attributes:
        parts: its new weights.
        search_space: weights that a mask chooses from (paper, Table 1).
        error: relative Frobenius norm of the difference to the original weight, where it was approximated.
    """

    parts: tuple[Part, ...]
    search_space: int
    error: float | None = None
