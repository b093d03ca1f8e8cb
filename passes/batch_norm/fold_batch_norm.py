"""BatchNormalization folded into the layer before it, for inference.

gamma * (W x + b - mean) / sqrt(var + epsilon) + beta = (f W) x + (f (b - mean) + beta),
f = gamma / sqrt(var + epsilon),  one for each output feature
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.graphs.constants import array_of, constant_values, dtype_of, replace_values, shape_of, sparse_weight_of
from sift_onnx.graphs.zero_biases import drop_zero_biases
from sift_onnx.model import Model
from sift_onnx.operators.labels import node_name
from sift_onnx.operators.weight_operands import BIAS, FOLDABLE, WEIGHT, feature_axes
from sift_onnx.passes.base import Pass, PassResult, prepared, record
from sift_onnx.passes.node_builder import NodeBuilder
from sift_onnx.passes.prepare.inference_mode import in_inference_mode
from sift_onnx.passes.prepare.lift_constants import LiftConstants
from sift_onnx.passes.prepare.store_computed_parameters import StoreComputedParameters
from sift_onnx.passes.prepare.unshare_initializers import UnshareInitializers
from sift_onnx.weights.sparse import SparseWeight

__all__ = ["FoldBatchNorm"]

Array = npt.NDArray[Any]

_DEFAULT_EPSILON = 1e-5


@dataclass(frozen=True)
class FoldBatchNorm(Pass):
    """Fold each BatchNormalization into the Conv, ConvTranspose or Gemm before it.

    Requires: nothing. Ensures: the same outputs, to float rounding; weights keep their names, types and masks, the same
    weights active. A normalization stays where something else reads what it normalizes, where its parameters or the
    layer's are not stored in the file, where the layer's weight is used elsewhere too, or where a factor is not finite;
    the report says which.
    """

    name: ClassVar[str] = "fold-batch-norm"
    is_noted = True

    @in_inference_mode
    def call(self, model: Model) -> PassResult:
        """Apply the pass; the report lists the weights that took one up, and why others stay, by their nodes."""
        copy = prepared(model, LiftConstants(), StoreComputedParameters(), UnshareInitializers())
        graph = copy.graph
        drop_zero_biases(graph)
        folded: list[str] = []
        kept: dict[str, str] = {}
        builder = NodeBuilder(graph)
        for norm in [node for node in graph.nodes if node.op == "BatchNormalization"]:
            reason = _why_not(norm, graph)
            if reason:
                kept[node_name(norm)] = reason
                continue
            product = norm.inputs[0].inputs[0]
            folded.append(str(product.inputs[WEIGHT].name))
            _fold(product, norm, builder)
        report = {"layers": folded, "kept": kept}
        if not folded:
            return PassResult(model, False, report)
        graph.nodes = [node for node in graph.nodes if node.outputs]
        record(copy, self.identity(), folded=folded)
        return PassResult(copy, True, report)


def _why_not(norm: gs.Node, graph: gs.Graph) -> str:
    """Why a normalization cannot be folded; empty if it can."""
    source = norm.inputs[0]
    product = source.inputs[0] if len(source.inputs) == 1 else None
    if product is None or product.op not in FOLDABLE:
        return f"it follows {product.op if product is not None else 'an input'}"
    if len(source.outputs) > 1 or any(tensor is source for tensor in graph.outputs):
        return "something else reads what it normalizes"
    if any(constant_values(tensor) is None for tensor in [*norm.inputs[1:], *_parameters(product)]):
        return "its parameters or those of the layer are computed"
    if len(product.inputs[WEIGHT].outputs) > 1:
        return f"the weight {product.inputs[WEIGHT].name!r} is used elsewhere too"
    affine = _affine(norm)
    biases = [shape_of(tensor) for tensor in _parameters(product)[1:]]
    if any(math.prod(shape) not in (1, affine.shape[1]) for shape in biases):
        return "the layer's bias differs from row to row"
    if not np.all(np.isfinite(affine)):
        return "a factor is not finite"
    return ""


def _parameters(product: gs.Node) -> list[gs.Tensor]:
    return [tensor for tensor in product.inputs[WEIGHT:] if not tensor.is_empty()]


def _affine(norm: gs.Node) -> Array:
    """Factor and shift of each channel, in double precision: ``[2, C]``."""
    scale, shift, mean, variance = (_stored(tensor).astype(np.float64) for tensor in norm.inputs[1:5])
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + float(norm.attrs.get("epsilon", _DEFAULT_EPSILON)))
        return np.stack([factor, shift - factor * mean])


def _stored(tensor: gs.Tensor) -> Array:
    constant = constant_values(tensor)
    assert constant is not None
    return array_of(constant)


def _fold(product: gs.Node, norm: gs.Node, builder: NodeBuilder) -> None:
    factor, shift = _affine(norm)
    weight = product.inputs[WEIGHT]
    _scale(weight, _per_weight(product, factor))
    parameters = _parameters(product)
    bias = parameters[1] if len(parameters) > 1 else None
    # Gemm adds beta times its bias; what it adds from now on has beta in it.
    beta = float(product.attrs.pop("beta", 1.0))
    if bias is not None:
        shift = shift + factor * beta * _stored(bias).astype(np.float64).reshape(-1)
    values = shift.astype(dtype_of(weight))
    if isinstance(bias, gs.Constant) and len(bias.outputs) == 1:
        bias.values = values
    else:
        name = f"{weight.name.removesuffix('.weight')}.bias" if bias is None else bias.name
        product.inputs = [*list(product.inputs)[:BIAS], builder.constant(name, values)]
    output = norm.outputs[0]
    norm.inputs.clear()
    norm.outputs.clear()
    product.outputs = [output]


def _per_weight(product: gs.Node, factor: Array) -> Array:
    """The factors in the shape of the weight, broadcast over everything but output features."""
    shape = shape_of(product.inputs[WEIGHT])
    axes = feature_axes(product.op, product.attrs, WEIGHT, len(shape))
    assert axes is not None
    by_feature = factor.reshape([-1 if axis == axes[0] else 1 for axis in range(len(shape))])
    if product.op == "ConvTranspose":  # [C_in, C_out / groups, kernel...], the rows of a group side by side
        groups = int(product.attrs.get("group", 1))
        rows = np.repeat(factor.reshape(groups, -1), shape[0] // groups, axis=0)
        by_feature = rows.reshape(*rows.shape, *(1,) * (len(shape) - 2))
    return np.broadcast_to(by_feature, shape)


def _scale(weight: gs.Constant, factors: Array) -> None:
    dtype = dtype_of(weight)
    masked = sparse_weight_of(weight)
    if masked is None:
        weight.values = (array_of(weight).astype(np.float64) * factors).astype(dtype)
        return
    indices = np.unravel_index(masked.indices, masked.shape)
    values = (masked.values.astype(np.float64) * factors[indices]).astype(dtype)
    replace_values(weight, SparseWeight(masked.shape, masked.indices, values))
