"""A wider model that computes what the original computed, so that a trained model is grown and not restarted.

The original's weights sit in the wide matrix, at the indices where :mod:`sift_onnx.feature_maps` finds the features
of the original, and everything that is added is pruned. An old feature then sees old features only.

An added feature has no active weight on either side. If it were zero, every gradient at its weights would be zero too:
``dL/dw_out = h * dL/dy`` with ``h = 0``, and ``dL/dw_in = x * dL/dh`` with ``dL/dh = w_out * dL/dy = 0``. Growth by
gradients (RigL, Evci et al. 2020) would never reach it. So each added feature gets a positive bias, or a positive shift
of its normalization: ``h`` passes a rectifier, and gradients reach its *outgoing* weights from the first step on, its
incoming ones as soon as one of these has been grown. Nothing sees the bias until then.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.analysis.axis_system import Solution
from sift_onnx.analysis.cost import positions_of
from sift_onnx.analysis.findings import AxisAnalysis, WeightLayer
from sift_onnx.feature_maps.context import refusal
from sift_onnx.feature_maps.search import find_feature_maps
from sift_onnx.graphs.constants import array_of, constant_values, dtype_of, sparse_weight_of
from sift_onnx.model import Model
from sift_onnx.operators.traits import REARRANGING
from sift_onnx.operators.weight_operands import CHANNEL_NORMALIZATIONS, CONVOLUTIONS, MATRIX_PRODUCTS, PARAMETERS
from sift_onnx.passes.widening.biases import add_bias, reach_a_shift
from sift_onnx.passes.widening.drawing import with_more_channels
from sift_onnx.weights.sparse import SparseWeight, generator, index_dtype

__all__ = ["Embedding"]

Array = npt.NDArray[Any]

# Shifts of added features are drawn from 0.5 to 1.5 times the spread of the shifts that are there. Where these are all
# the same, as in a fresh model, they have none; and beyond 1, gates and clipped rectifiers begin to saturate.
_SPREAD_OF_FRESH_MODELS = 0.1
_SMALLEST_SPREAD, _LARGEST_SPREAD = 0.01, 1.0

_SHIFT = None
# What is added to parameters, by the operator and the input that reads them. LayerNormalization and its like are not
# here: they would mix the old features with the added ones.
_ADDED: dict[tuple[str, int], float | None] = {
    **{(op, i): 1.0 for op in CHANNEL_NORMALIZATIONS | {"PRelu"} for i in PARAMETERS[op].scales},
    **{
        (op, i): _SHIFT for op in CHANNEL_NORMALIZATIONS | CONVOLUTIONS | MATRIX_PRODUCTS for i in PARAMETERS[op].shifts
    },
    ("BatchNormalization", 3): 0.0,
    ("BatchNormalization", 4): 1.0,
    **{(op, i): value for op, value in (("Add", _SHIFT), ("Div", 1.0), ("Mul", 1.0), ("Sub", 0.0)) for i in (0, 1)},
}
# Operators that rearrange or repeat a parameter.
_PASSING = REARRANGING | {"Cast", "Expand"}


class Embedding:
    """Gives the new values of constants so that the wider model computes what the original did."""

    def __init__(self, model: Model, analysis: AxisAnalysis, solution: Solution, seed: int) -> None:
        """Find out where everything lies.

        Args:
            model: the original.
            analysis: of it.
            solution: the new sizes.
            seed: of the shifts of added features.

        Raises:
            UnsupportedError: an operator mixes old features with added ones, or a layer would be applied more often;
                the message names the node.
        """
        self._analysis = analysis
        self._graph = model.graph
        self._seed = seed
        self._maps = find_feature_maps(analysis, solution, int(model.graph.opset))
        for layer in analysis.layers.values():
            _require_same_cost(layer, analysis, solution)

    def redraw(self, name: str, constant: gs.Constant, shape: tuple[int, ...]) -> Array | SparseWeight:
        """The values of ``constant`` at their indices in one of ``shape``; weights get a mask of just these.

        Raises:
            UnsupportedError: it is not known which added values keep its readers finite.
        """
        indices = self._maps.positions(name)
        if name in self._analysis.fixed:
            return with_more_channels(constant, shape)
        if name in self._analysis.layers:
            return _embedded(sparse_weight_of(constant) or array_of(constant), indices, shape)
        original = array_of(constant)
        values = self._added(name, constant, original, shape)
        values[np.ix_(*indices)] = original
        return values

    def add_biases(self) -> list[str]:
        """Give a bias to the layers whose added features would be zero; the names of the biases.

        The old entries of such a bias are zeros. A layer has none added if all that reads its output comes to a
        normalization or a bias that follows.
        """
        shifted = reach_a_shift(self._analysis.order, self._graph, self._grows)
        names: list[str] = []
        for layer in self._analysis.layers.values():
            for use in layer.uses:
                node = self._analysis.order[use.index]
                axis, name = self._feature_axis(node, layer), node.outputs[0].name
                features = self._maps.extents(name)[axis]
                has_bias = len(node.inputs) > 2 and self._grows(node.inputs[2])
                if not features.grows or has_bias or shifted[name]:
                    continue
                values = self._shifts(f"{layer.name} {name}", np.empty(0), (features.new,))
                values[self._maps.positions_along(name, axis)] = 0
                if axis == -2:
                    values = values[:, None]
                names.append(add_bias(self._graph, node, layer.name, values.astype(dtype_of(layer.constant))))
        return names

    def _grows(self, tensor: gs.Tensor) -> bool:
        return any(extent.grows for extent in self._maps.extents(tensor.name))

    def _feature_axis(self, node: gs.Node, layer: WeightLayer) -> int:
        """The axis of the output that is the layer's features: the rows where the weight stands to the left."""
        if layer.kind in ("conv", "depthwise"):
            return 1
        left = node.inputs[0]
        return -2 if left.name in self._analysis.derived or constant_values(left) is not None else -1

    def _added(self, name: str, constant: gs.Constant, original: Array, shape: tuple[int, ...]) -> Array:
        # A divisor must not be zero; everything else takes what any of its readers does.
        readers = sorted(_readers(constant), key=lambda reader: reader != ("Div", 1))
        for reader in readers:
            if reader in _ADDED:
                value = _ADDED[reader]
                if value is _SHIFT:
                    return self._shifts(name, original, shape).astype(original.dtype)
                return np.full(shape, value, dtype=original.dtype)
        op = next((op for op, _ in readers), "nothing")
        raise refusal(f"{name!r} (initializer)", f"is read by {op}, for which it is not known what can be added to it")

    def _shifts(self, name: str, original: Array, shape: Sequence[int]) -> npt.NDArray[np.float64]:
        spread = float(np.std(original, dtype=np.float64)) if original.size else 0.0
        spread = min(max(spread, _SMALLEST_SPREAD), _LARGEST_SPREAD) if spread else _SPREAD_OF_FRESH_MODELS
        return spread * generator(self._seed, name, "shift").uniform(0.5, 1.5, size=shape)


def _embedded(original: Array | SparseWeight, by_axis: Sequence[Array], shape: tuple[int, ...]) -> SparseWeight:
    """The active weights of ``original`` at their indices in a tensor of ``shape``, all others pruned."""
    if isinstance(original, SparseWeight):
        coordinates: Sequence[Array] = np.unravel_index(original.indices, original.shape)
        values = original.values
    else:
        coordinates = np.ix_(*(np.arange(n) for n in original.shape))
        values = original.reshape(-1)
    # Indices ascend along every axis, and so do the flat ones.
    moved = [axis[index] for axis, index in zip(by_axis, coordinates, strict=True)]
    indices = np.ravel_multi_index(np.broadcast_arrays(*moved), shape).reshape(-1)
    dtype = index_dtype(math.prod(shape))
    return SparseWeight(shape, indices.astype(dtype), values)


def _readers(tensor: gs.Tensor) -> Iterator[tuple[str, int]]:
    """The operators and inputs that read a tensor, through operators that only rearrange it."""
    pending = [tensor]
    while pending:
        read = pending.pop()
        for node in read.outputs:
            for i, other in enumerate(node.inputs):
                if other is read and node.op in _PASSING:
                    pending.append(node.outputs[0])
                elif other is read:
                    yield node.op, i


def _require_same_cost(layer: WeightLayer, analysis: AxisAnalysis, solution: Solution) -> None:
    before, after = positions_of(layer, analysis.system.original), positions_of(layer, solution.value)
    if before != after:
        use = layer.uses[0]
        raise refusal(
            f"{use.node!r} ({use.op})",
            f"would apply each of its weights {after:,} times instead of {before:,}, at a higher cost",
        )
