"""A wider model that computes what the original computed, so that a trained model is grown and not restarted.

The original's weights sit in the wide matrix, at the indices where :mod:`sift_onnx.feature_maps` finds the features
of the original, and everything that is added is pruned. An old feature then sees old features only, up to what sums
over all of them: normalizations over features, and attention. There added features are zero, and normalizations are
corrected for their number (:mod:`~sift_onnx.passes.widening.corrections`, :mod:`~sift_onnx.passes.widening.centring`).

An added feature has no active weight on either side. If it were zero, every gradient at its weights would be zero too:
``dL/dw_out = h * dL/dy`` with ``h = 0``, and ``dL/dw_in = x * dL/dh`` with ``dL/dh = w_out * dL/dy = 0``. Growth by
gradients (RigL, Evci et al. 2020) would never reach it. So each added feature gets a positive bias, or a positive shift
of its normalization: ``h`` passes a rectifier, and gradients reach its *outgoing* weights from the first step on, its
incoming ones as soon as one of these has been grown. Nothing sees the bias until then. Where added features have to be
zero, in a residual stream say, the shift of the normalization that reads it takes that part: its readers get a gradient
first, and what writes to the stream once one of them has been grown. Added keys are zero, queries and values are not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.analysis.findings import AxisAnalysis, WeightLayer
from sift_onnx.feature_maps.search import FoundMaps
from sift_onnx.graphs.constants import array_of, constant_values, sparse_weight_of
from sift_onnx.graphs.unread_nodes import drop_unread
from sift_onnx.model import Model
from sift_onnx.operators.einsum_terms import einsum_terms
from sift_onnx.operators.traits import REARRANGING, RECURRENT
from sift_onnx.operators.weight_operands import (
    CHANNEL_NORMALIZATIONS,
    CONVOLUTIONS,
    MATRIX_PRODUCTS,
    NORMALIZATIONS,
    PARAMETERS,
)
from sift_onnx.passes.widening.biases import add_bias, reach_a_shift
from sift_onnx.passes.widening.centring import Centring
from sift_onnx.passes.widening.corrections import correct
from sift_onnx.passes.widening.drawing import with_more_channels
from sift_onnx.passes.widening.element_types import floating_type
from sift_onnx.weights.sparse import SparseWeight, generator, index_dtype

__all__ = ["Embedding"]

Array = npt.NDArray[Any]

# Shifts of added features are drawn from 0.5 to 1.5 times the spread of the shifts that are there. Where these are all
# the same, as in a fresh model, they have none; and beyond 1, gates and clipped rectifiers begin to saturate.
_SPREAD_OF_FRESH_MODELS = 0.1
_SMALLEST_SPREAD, _LARGEST_SPREAD = 0.01, 1.0

# The input that is the bias of LSTM, GRU and RNN.
_RECURRENT_BIAS = 3

_SHIFT = None
# What is added to parameters, by the operator and the input that reads them.
_ADDED: dict[tuple[str, int], float | None] = {
    **{(op, i): 1.0 for op in NORMALIZATIONS | {"PRelu"} for i in PARAMETERS[op].scales},
    **{
        (op, i): _SHIFT
        for op in NORMALIZATIONS | CONVOLUTIONS | MATRIX_PRODUCTS | RECURRENT
        for i in PARAMETERS[op].shifts
    },
    ("SkipSimplifiedLayerNormalization", 2): 1.0,
    ("Attention", 2): _SHIFT,
    ("MultiHeadAttention", 3): _SHIFT,
    **{(op, 1): _SHIFT for op in ("BiasAdd", "BiasGelu", "FastGelu")},
    ("BatchNormalization", 3): 0.0,
    ("BatchNormalization", 4): 1.0,
    **{(op, i): value for op, value in (("Add", _SHIFT), ("Div", 1.0), ("Mul", 1.0), ("Sub", 0.0)) for i in (0, 1)},
}
# Operators that rearrange or repeat a parameter.
_PASSING = REARRANGING | {"Cast", "Expand"}


class Embedding:
    """Puts the original into a wider model, which then computes what the original did."""

    def __init__(self, model: Model, analysis: AxisAnalysis, found: FoundMaps, seed: int) -> None:
        """Prepare ``model`` for being resized: weights that write to a residual stream may be centred.

        Args:
            model: the original, which is going to be resized.
            analysis: of it.
            found: where it lies in the wider model.
            seed: of the shifts of added features.
        """
        self._analysis = analysis
        self._graph = model.graph
        self._seed = seed
        self._maps = found.maps
        self._found = found
        self._centring = Centring(model.graph, analysis, found.maps)
        self._centring.centre_weights()

    def finish(self) -> list[str]:
        """After everything has been resized, correct what else depends on sizes, and shift features that are added.

        Returns:
            The names of the biases that were added.
        """
        shifted = reach_a_shift(self._analysis.order, self._graph, self._grows)
        biases = [*self._add_biases(shifted), *self._shift_normalized(shifted)]
        correct(self._graph, self._analysis, self._found)
        self._centring.insert_nodes()
        drop_unread(self._graph, {"Constant"})
        return biases

    @property
    def centred_by_nodes(self) -> list[str]:
        """Names of the tensors from which added nodes subtract the mean of old features."""
        return self._centring.centred_by_nodes

    def redraw(self, name: str, constant: gs.Constant, shape: tuple[int, ...]) -> Array | SparseWeight:
        """The values of ``constant`` at their indices in one of ``shape``; weights get a mask of just these."""
        indices = self._maps.positions(name)
        table = self._analysis.tables.get(name)
        if name in self._analysis.fixed:
            return with_more_channels(constant, shape)
        if name in self._analysis.layers and table is None:
            return _embedded(sparse_weight_of(constant) or array_of(constant), indices, shape)
        original = array_of(constant)
        # Added features are rotated by other frequencies, between those that are there.
        added = self._added(name, constant, original, shape) if table is None else table.values(shape, original.dtype)
        values = np.array(added)
        zero = self._found.zeros.get(name)
        if zero is not None:
            values[np.broadcast_to(zero, shape)] = 0
        values[np.ix_(*indices)] = original
        return values

    def _add_biases(self, shifted: Mapping[str, bool]) -> list[str]:
        """Give a bias to the layers whose added features would be zero and need not be; the names of the biases.

        The old entries of such a bias are zeros. A layer has none added if all that reads its output comes to a
        normalization or a bias that follows.
        """
        names: list[str] = []
        for layer in self._analysis.layers.values():
            for use in layer.uses:
                node = self._analysis.order[use.index]
                has_bias = len(node.inputs) > 2 and self._grows(node.inputs[2])
                if layer.kind == "embedding" or shifted[node.outputs[0].name]:
                    continue
                if node.op in RECURRENT:
                    names += self._recurrent_bias(node, layer)
                elif not has_bias:
                    names += self._bias(node, layer.constant, self._feature_axis(node, layer))
        return names

    def _shift_normalized(self, shifted: Mapping[str, bool]) -> list[str]:
        """Give a bias to normalizations over features that have none; what is added to them is zero."""
        names: list[str] = []
        done: set[int] = set()
        for scaling in self._found.scalings:
            node = self._analysis.order[scaling.node]
            scale = node.inputs[scaling.input]
            if constant_values(scale) is None:
                node = scale.inputs[0]  # what it gives is going to be corrected by another node
            may_have_bias = node.op in CHANNEL_NORMALIZATIONS | {"LayerNormalization"}
            has_bias = may_have_bias and len(node.inputs) > 2 and not node.inputs[2].is_empty()
            if not self._grows(scale) or has_bias or id(node) in done or shifted[node.outputs[0].name]:
                continue
            done.add(id(node))
            extents = self._maps.extents(node.outputs[0].name)
            growing = [axis.axis - len(extents) for axis in extents if axis.grows]
            if len(growing) == 1:
                names += self._bias(node, scale, growing[0])
        return names

    def _bias(self, node: gs.Node, parameter: gs.Tensor, axis: int) -> list[str]:
        """Add a bias along ``axis`` of what ``node`` computes from a tensor, where it may be other than zero."""
        name = node.outputs[0].name
        extents = self._maps.extents(name)
        axis %= len(extents)
        if not extents[axis].grows:
            return []
        values = self._shifts(f"{parameter.name} {name}", np.empty(0), (extents[axis].new,))
        values[self._maps.positions_along(name, axis)] = 0
        zero = self._found.zeros.get(name)
        if zero is not None:
            others = tuple(i for i in range(len(extents)) if i != axis)
            values[np.broadcast_to(zero.any(axis=others), values.shape)] = 0
        if not values.any():
            return []
        if node.op not in CONVOLUTIONS:
            values = values.reshape(-1, *[1] * (len(extents) - 1 - axis))
        return [add_bias(self._graph, node, parameter.name, values.astype(floating_type(node.outputs[0])))]

    def _recurrent_bias(self, node: gs.Node, layer: WeightLayer) -> list[str]:
        """Give a recurrent layer whose units grow a bias ``[directions, 2 * gates * units]``, if it has none."""
        units = self._maps.extents(node.inputs[2].name)[-1]
        has_bias = len(node.inputs) > _RECURRENT_BIAS and not node.inputs[_RECURRENT_BIAS].is_empty()
        if has_bias or not units.grows or node.outputs[0].name in self._found.zeros:
            return []
        directions, rows, _ = self._maps.extents(node.inputs[2].name)
        shape = (directions.new, 2 * rows.new // units.new, units.new)
        values = self._shifts(f"{layer.name} {node.outputs[0].name}", np.empty(0), shape)
        values[..., self._maps.positions_along(node.inputs[2].name, 2)] = 0
        node.inputs.extend(gs.Variable.empty() for _ in range(_RECURRENT_BIAS - len(node.inputs)))
        biases = values.reshape(directions.new, -1).astype(floating_type(node.outputs[0]))
        return [add_bias(self._graph, node, layer.name, biases)]

    def _grows(self, tensor: gs.Tensor) -> bool:
        return any(extent.grows for extent in self._maps.extents(tensor.name))

    def _feature_axis(self, node: gs.Node, layer: WeightLayer) -> int:
        """The axis of the output that is the layer's features: the rows where the weight stands to the left."""
        if layer.kind in ("conv", "depthwise"):
            return 1
        if node.op == "Einsum":
            return self._einsum_feature_axis(node, layer)
        left = node.inputs[0]
        return -2 if left.name in self._analysis.derived or constant_values(left) is not None else -1

    def _einsum_feature_axis(self, node: gs.Node, layer: WeightLayer) -> int:
        ranks = [len(self._maps.extents(tensor.name)) for tensor in node.inputs]
        terms, result = einsum_terms(str(node.attrs["equation"]), ranks)
        assert terms is not None
        weight = next(
            i for i, t in enumerate(node.inputs) if constant_values(t) is not None or t.name in self._analysis.derived
        )
        own = [label for label in terms[weight] if label in result and label not in terms[1 - weight]]
        return result.index(own[-1]) - len(result)

    def _added(self, name: str, constant: gs.Constant, original: Array, shape: tuple[int, ...]) -> Array:
        # A divisor must not be zero; everything else takes what any of its readers does.
        readers = sorted(_readers(constant), key=lambda reader: reader != ("Div", 1))
        for reader in readers:
            if reader in _ADDED:
                value = _ADDED[reader]
                if value is _SHIFT:
                    return self._shifts(name, original, shape).astype(original.dtype)
                return np.full(shape, value, dtype=original.dtype)
        # All else takes anything that is finite.
        return np.zeros(shape, dtype=original.dtype)

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
