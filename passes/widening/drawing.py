"""New values for every tensor that a transform resizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.analysis.findings import AxisAnalysis, WeightLayer
from sift_onnx.graphs.constants import array_of, dtype_of, sparse_weight_of
from sift_onnx.operators.weight_operands import FOLDABLE, NORMALIZATIONS, PARAMETERS
from sift_onnx.sparsity.draw import DrawnWeight, draw_dense, draw_vector, energy_per_feature, neutral
from sift_onnx.sparsity.patterns.pattern import Pattern
from sift_onnx.weights.masked_values import WeightSource
from sift_onnx.weights.sparse import SparseWeight

__all__ = ["Drawing"]

_RECTIFIERS = ("Relu", "LeakyRelu", "PRelu", "Clip", "Elu", "Gelu", "HardSwish", "Swish", "Mish")

# Weights of a model with more non-zeros are drawn one by one, when they are written.
_DRAWN_AT_ONCE = 1 << 25

# Neutral values of normalization parameters, and of biases, by operator and input position.
_NEUTRAL = {
    **{(op, i): 1.0 for op in NORMALIZATIONS for i in PARAMETERS[op].scales},
    **{(op, i): 0.0 for op in NORMALIZATIONS | FOLDABLE for i in PARAMETERS[op].shifts},
    ("BatchNormalization", 3): 0.0,
    ("BatchNormalization", 4): 1.0,
}


def with_more_channels(constant: gs.Constant, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """A fixed kernel that all channels share, for as many as ``shape`` has."""
    return np.resize(array_of(constant), shape)  # which repeats it as often as is needed


@dataclass(frozen=True)
class Drawing:
    """Gives the new values of constants, by what reads them.

    Attributes:
        analysis: of the model.
        nnz: non-zeros of the weights that become sparse.
        seed: of every draw.
        pattern: of their masks.
    """

    analysis: AxisAnalysis
    nnz: Mapping[str, int]
    seed: int
    pattern: Pattern

    def redraw(
        self, name: str, constant: gs.Constant, shape: tuple[int, ...]
    ) -> npt.NDArray[Any] | SparseWeight | WeightSource:
        """New values of ``constant`` at ``shape``: a weight, a normalization parameter or bias, or anything else."""
        table = self.analysis.tables.get(name)
        if table is not None:
            return table.values(shape, dtype_of(constant))
        if name in self.analysis.fixed:
            return with_more_channels(constant, shape)
        layer = self.analysis.layers.get(name)
        if layer is not None:
            return self._draw_weight(layer, constant, shape)
        original = array_of(constant)
        for node in constant.outputs:
            for i, tensor in enumerate(node.inputs):
                if tensor is constant and (node.op, i) in _NEUTRAL:
                    return neutral(original, shape, _NEUTRAL[(node.op, i)])
        return draw_vector(name, original, shape, self.seed)

    def _draw_weight(
        self, layer: WeightLayer, constant: gs.Constant, shape: tuple[int, ...]
    ) -> npt.NDArray[Any] | SparseWeight | WeightSource:
        original = sparse_weight_of(constant) or array_of(constant)
        energy = energy_per_feature(original, layer.out_axis, rectified=self._is_rectified(layer))
        dtype = np.dtype(original.dtype)
        nnz = self.nnz.get(layer.name)
        if nnz is None:
            return draw_dense(layer.name, shape, layer.out_axis, energy, dtype, self.seed)
        drawn = DrawnWeight(
            layer.name, shape, nnz, layer.out_axis, energy, dtype, self.seed, self.pattern, layer.in_axis
        )
        return drawn.read() if sum(self.nnz.values()) <= _DRAWN_AT_ONCE else drawn

    def _is_rectified(self, layer: WeightLayer) -> bool:
        node = self.analysis.order[layer.uses[0].index]
        while True:
            followers = node.outputs[0].outputs
            if len(followers) != 1:
                return any(f.op in _RECTIFIERS for f in followers)
            node = followers[0]
            if node.op in _RECTIFIERS:
                return True
            if node.op != "BatchNormalization" and not (
                node.op == "Add" and any(isinstance(t, gs.Constant) for t in node.inputs)
            ):
                return False
