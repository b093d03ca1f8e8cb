"""Multiply-accumulates, parameters and active weights, in exact integers.

One MAC is one multiplication and one addition (2 FLOPs) of an active weight. A layer's MACs are its active weights
times the positions that each weight is applied at: output pixels of a convolution, rows of a matrix product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import onnx_graphsurgeon as gs
from msgspec.structs import replace

from sift_onnx.analysis.active_zeros import ActiveZeros, active_zero_warnings
from sift_onnx.analysis.axes.sizes import Size
from sift_onnx.analysis.computed_parameters import store_computed_parameters
from sift_onnx.analysis.findings import AxisAnalysis, WeightLayer
from sift_onnx.analysis.graph_analysis import analyze
from sift_onnx.analysis.inlining import inline_bodies
from sift_onnx.analysis.quantized_layers import QuantizedLayer, quantized_layers
from sift_onnx.analysis.unanalyzed_layers import left_out_layers, left_out_records, left_out_warnings
from sift_onnx.graphs.constants import active_zeros_of, is_masked, nnz_of, shape_of
from sift_onnx.model import Model, ModelLike
from sift_onnx.operators.labels import node_name
from sift_onnx.records.cost import CostReport, CostTotals, LayerCost

__all__ = ["as_counted", "inspect", "positions_of", "product_macs"]

Evaluate = Callable[[Size], int]


def as_counted(model: Model) -> Model:
    """The model as it is counted: local functions are inlined, and computed parameters of layers are stored.

    Args:
        model: is not changed; values of constants are shared.

    Raises:
        UnsupportedError: its local functions cannot be inlined.
    """
    return store_computed_parameters(inline_bodies(model))[0]


def inspect(model: ModelLike, input_shapes: Mapping[str, Sequence[int]] | None = None) -> CostReport:
    """Per weight layer: shape, non-zeros, sparsity and multiply-accumulates.

    Args:
        model: anything that :meth:`Model.load` takes.
        input_shapes: sizes of dynamic axes; see :func:`sift_onnx.shapes.input_binding.bindings` for those not given.

    Raises:
        UsageError: an input shape is missing or wrong.
        ModelReadError: the model cannot be read.
        UnsupportedError: the graph contradicts itself, or its local functions cannot be inlined.
    """
    analysis = analyze(as_counted(Model.load(model)), input_shapes)
    original = analysis.system.original
    rows = [(layer.uses[0].index, _cost_of(layer, original)) for layer in analysis.layers.values()]
    rows += [(layer.index, _cost_of_quantized(layer)) for layer in quantized_layers(analysis)]
    layers = tuple(row for _, row in sorted(rows, key=lambda row: row[0]))
    left_out = left_out_layers(analysis)
    zeros = active_zero_warnings([ActiveZeros(layer.name, layer.nnz, layer.active_zeros) for layer in layers])
    return CostReport(
        layers=layers,
        totals=CostTotals(
            params=sum(layer.params for layer in layers),
            nnz=sum(layer.nnz for layer in layers),
            macs=sum(layer.macs for layer in layers),
            effective_macs=sum(layer.effective_macs for layer in layers),
            search_space=sum(layer.search_space for layer in layers),
            active_zeros=sum(layer.active_zeros for layer in layers),
            attention_macs=product_macs(analysis, original),
        ),
        left_out=left_out_records(left_out),
        warnings=(*left_out_warnings(left_out), *zeros),
        nominal=analysis.inputs.nominal,
        assumed=analysis.inputs.remarks,
    )


def _cost_of(layer: WeightLayer, original: Evaluate) -> LayerCost:
    shape = tuple(original(axis.size) for axis in layer.axes)
    use = layer.uses[0]
    counts = (nnz_of(layer.constant), active_zeros_of(layer.constant))
    return _layer_cost(layer.constant, (use.node, use.op, layer.kind), shape, counts, positions_of(layer, original))


def _cost_of_quantized(layer: QuantizedLayer) -> LayerCost:
    node = layer.node
    words = (node_name(node), str(node.op), layer.kind)
    # Without a mask, only those count as active that do not stand for zero.
    zeros = active_zeros_of(layer.constant) if is_masked(layer.constant) else 0
    cost = _layer_cost(layer.constant, words, shape_of(layer.constant), (layer.nnz, zeros), layer.positions)
    return replace(cost, live_quads=layer.live_quads)


def _layer_cost(
    constant: gs.Constant, words: tuple[str, str, str], shape: tuple[int, ...], counts: tuple[int, int], positions: int
) -> LayerCost:
    node, op, kind = words
    nnz, zeros = counts
    params = math.prod(shape)
    return LayerCost(
        name=constant.name,
        node=node,
        op=op,
        kind=kind,
        shape=shape,
        params=params,
        nnz=nnz,
        sparsity=1 - nnz / params if params else 0.0,
        macs=params * positions,
        effective_macs=nnz * positions,
        search_space=params if is_masked(constant) else 0,
        active_zeros=zeros,
    )


def positions_of(layer: WeightLayer, evaluate: Evaluate) -> int:
    """Multiply-accumulates per active weight of a layer, over all its uses.

    Args:
        layer: the layer.
        evaluate: the size of an axis; the original's, or that after widening.
    """
    return sum(math.prod(evaluate(size) for size in use.positions) for use in layer.uses)


def product_macs(analysis: AxisAnalysis, evaluate: Evaluate) -> int:
    """Multiply-accumulates of all products of two activations."""
    return sum(math.prod(evaluate(size) for size in product.factors) for product in analysis.products)
