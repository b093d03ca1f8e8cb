"""Turn parameters that are computed from stored ones into initializers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sift_onnx.analysis.computed_parameters import store_computed_parameters
from sift_onnx.model import Model
from sift_onnx.passes.base import Pass, PassResult

__all__ = ["StoreComputedParameters"]


@dataclass(frozen=True)
class StoreComputedParameters(Pass):
    """Turn parameters of layers that nodes compute from initializers into initializers.

    These are the weights of LSTM and GRU in exports by torch's dynamo, and weights behind weight normalization,
    spectral normalization, standardization, or a low-rank update. See
    :func:`sift_onnx.analysis.computed_parameters.store_computed_parameters` for which ones.

    Requires: nothing. Ensures: the same outputs, to the rounding of the parameters.
    """

    name: ClassVar[str] = "store-computed-parameters"

    def call(self, model: Model) -> PassResult:
        """Apply the pass; the report lists the new initializers."""
        stored, names = store_computed_parameters(model)
        return PassResult(stored, bool(names), {"stored": names})
