"""Linear layers as layerwise passes replace them: a product with its bias and normalization."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.analysis.findings import AxisAnalysis, WeightLayer
from sift_onnx.errors import UnsupportedError
from sift_onnx.graphs.constants import array_of, constant_values, dtype_of, shape_of
from sift_onnx.graphs.walks import axis_order, origin_of
from sift_onnx.operators.domains import is_standard
from sift_onnx.operators.labels import node_label
from sift_onnx.operators.traits import PARAMETER_VIEWS
from sift_onnx.operators.weight_operands import WEIGHT, feature_axes

__all__ = ["LinearLayer", "LinearLayerFinder", "Occurrence"]

Array = npt.NDArray[Any]

# Not Cast: the new weight is stored in the precision in which it is multiplied.
WEIGHT_VIEWS = PARAMETER_VIEWS - {"Cast"}


@dataclass(frozen=True)
class Occurrence:
    """One position in the graph at which a layer is applied.

    Attributes:
        product: the Conv, Gemm or MatMul.
        bias: the vector that is added to each output feature, if there is one; a constant, or in a convolution also
            what some node computes.
        bias_node: the Add that adds it, where the product does not do so itself.
        norm: the BatchNormalization that follows, if one does and nothing else reads what it normalizes.
    """

    product: gs.Node
    bias: gs.Tensor | None
    bias_node: gs.Node | None
    norm: gs.Node | None

    @property
    def source(self) -> gs.Tensor:
        """What is multiplied."""
        return self.product.inputs[0]

    @property
    def nodes(self) -> list[gs.Node]:
        """All nodes of the layer here, in order."""
        return [node for node in (self.product, self.bias_node, self.norm) if node is not None]

    @property
    def output(self) -> gs.Variable:
        """What the layer makes."""
        return self.nodes[-1].outputs[0]


@dataclass(frozen=True)
class LinearLayer:
    """A weight layer and every position at which it is applied.

    The weight is a matrix ``[D_out, D_in]`` (paper, section 2.2); of a convolution ``D_in`` is
    ``C_in / groups * k_h * k_w`` (appendix A.1).

    Attributes:
        weight_layer: as the axis analysis knows it.
        shape: of the weight as the products read it.
        permutation: of the initializer's axes on the way there.
        out_axis: the axis of ``shape`` that is the output features.
        occurrences: where it is applied.
    """

    weight_layer: WeightLayer
    shape: tuple[int, ...]
    permutation: tuple[int, ...]
    out_axis: int
    occurrences: tuple[Occurrence, ...]

    @property
    def name(self) -> str:
        """Of the weight."""
        return self.weight_layer.name

    @property
    def is_conv(self) -> bool:
        """Whether it is a convolution."""
        return bool(self.occurrences[0].product.op == "Conv")

    @property
    def groups(self) -> int:
        """Groups of a convolution."""
        return int(self.occurrences[0].product.attrs.get("group", 1)) if self.is_conv else 1

    @property
    def features_out(self) -> int:
        """``D_out``."""
        return self.shape[self.out_axis]

    @property
    def features_in(self) -> int:
        """``D_in``: weights of an output feature."""
        return self.size // self.features_out

    @property
    def size(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the weight."""
        return dtype_of(self.weight_layer.constant)

    def values(self) -> Array:
        """The weight as the products read it."""
        return array_of(self.weight_layer.constant).transpose(self.permutation)

    def matrix(self) -> Array:
        """The weight as a matrix ``[D_out, D_in]``, in double precision.

        Raises:
            UnsupportedError: it has values that are not finite, so that nothing approximates it.
        """
        matrix = self.to_matrix(self.values()).astype(np.float64)
        if not np.isfinite(matrix).all():
            raise UnsupportedError(
                f"{self.name!r} has values that are not finite, and `init='svd'` approximates its values; leave the "
                "weight out with `keep_dense`, or use `init='random'`"
            )
        return matrix

    def to_matrix(self, values: Array) -> Array:
        """A weight of this layer's operator as a matrix whose rows are output features."""
        return np.moveaxis(values, self.out_axis, 0).reshape(values.shape[self.out_axis], -1)

    def shape_for(self, features: int) -> tuple[int, ...]:
        """Shape of a weight that makes ``features`` instead of ``D_out`` features."""
        return tuple(features if axis == self.out_axis else n for axis, n in enumerate(self.shape))

    def projection_shape(self, features: int) -> tuple[int, ...]:
        """Shape of a weight that makes ``D_out`` features of ``features`` at every position."""
        if self.is_conv:
            return (self.features_out, features, *(1,) * (len(self.shape) - 2))
        return (self.features_out, features) if self.out_axis == 0 else (features, self.features_out)

    def from_matrix(self, matrix: Array, shape: tuple[int, ...]) -> Array:
        """A matrix whose rows are output features, laid out as a weight of ``shape``."""
        return (matrix if self.out_axis == 0 else matrix.T).reshape(shape)


class LinearLayerFinder:
    """Finds the layers of a graph."""

    def __init__(self, graph: gs.Graph, analysis: AxisAnalysis) -> None:
        """For the layers of ``analysis``, which is of ``graph``."""
        self._analysis = analysis
        self._outputs = {id(tensor) for tensor in graph.outputs}
        # The nodes of a branch of If or Loop may read a tensor of the graph, and are none of its nodes.
        self._nodes = {id(node) for node in graph.nodes}

    def find(self, layer: WeightLayer) -> LinearLayer | str:
        """The linear layer of a weight, or why it is none that can be replaced."""
        if layer.kind == "depthwise":
            return "depthwise (paper, appendix A.1.1)"
        if not math.prod(shape_of(layer.constant)):
            return "it has no weights"
        occurrences: list[Occurrence] = []
        first: _Reading | None = None
        for use in layer.uses:
            node = self._analysis.order[use.index]
            reading = _reading(node, layer.constant)
            if isinstance(reading, str):
                return reading
            first = first or reading
            if reading != first:
                return "its readers take it in different ways"
            occurrence = self._occurrence(node, reading.shape[reading.out_axis])
            if isinstance(occurrence, str):
                return occurrence
            occurrences.append(occurrence)
        assert first is not None
        return LinearLayer(layer, first.shape, first.permutation, first.out_axis, tuple(occurrences))

    def _occurrence(self, product: gs.Node, features: int) -> Occurrence | str:
        bias: gs.Tensor | None = None
        bias_node: gs.Node | None = None
        if len(product.inputs) > 2 and not product.inputs[2].is_empty():
            bias = product.inputs[2]
            constant = constant_values(bias)
            if product.op == "Gemm" and (constant is None or shape_of(constant) != (features,)):
                return f"the third input of {node_label(product)} is not a stored vector of {features} biases"
        elif product.op == "MatMul":
            follower = self._only_reader(product.outputs[0])
            if follower is not None and follower.op == "Add":
                other = follower.inputs[1 if follower.inputs[0] is product.outputs[0] else 0]
                vector = constant_values(other)
                if vector is not None and shape_of(vector) == (features,):
                    bias, bias_node = other, follower
        last = bias_node or product
        norm = self._only_reader(last.outputs[0]) if product.op != "MatMul" else None
        if norm is None or norm.op != "BatchNormalization" or not self._is_plain(norm):
            norm = None
        return Occurrence(product, bias, bias_node, norm)

    def _only_reader(self, tensor: gs.Variable) -> gs.Node | None:
        if len(tensor.outputs) != 1 or id(tensor) in self._outputs or id(tensor.outputs[0]) not in self._nodes:
            return None
        return tensor.outputs[0]

    def _is_plain(self, norm: gs.Node) -> bool:
        """Whether it normalizes by stored parameters."""
        return all(constant_values(t) is not None for t in norm.inputs[1:])


@dataclass(frozen=True)
class _Reading:
    """How a node reads a weight; all occurrences of a layer read it alike.

    Attributes:
        shape: as in :class:`LinearLayer`.
        permutation: as in :class:`LinearLayer`.
        out_axis: as in :class:`LinearLayer`.
        groups: of a convolution.
    """

    shape: tuple[int, ...]
    permutation: tuple[int, ...]
    out_axis: int
    groups: int


def _reading(node: gs.Node, weight: gs.Constant) -> _Reading | str:
    if node.op not in ("Conv", "Gemm", "MatMul") or not is_standard(node.domain):
        return f"{node.op} is not one of Conv, Gemm and MatMul"
    if node.op == "Gemm" and node.attrs.get("transA", 0):
        return "its Gemm transposes the activations"
    permutation = _permutation(node.inputs[WEIGHT], weight)
    if permutation is None:
        return f"{node_label(node)} does not read it as its second input, as it is stored"
    shape = tuple(shape_of(weight)[axis] for axis in permutation)
    if node.op == "MatMul" and len(shape) != 2:
        return "it is a stack of matrices"
    axes = feature_axes(node.op, node.attrs, WEIGHT, len(shape))
    assert axes is not None
    return _Reading(shape, permutation, axes[0], int(node.attrs.get("group", 1)))


def _permutation(tensor: gs.Tensor, constant: gs.Constant) -> tuple[int, ...] | None:
    """How the axes of ``constant`` are ordered in ``tensor``; None where something else lies between them."""
    origin, passed = origin_of(tensor, WEIGHT_VIEWS)
    return axis_order(passed, len(shape_of(constant))) if origin.name == constant.name else None
