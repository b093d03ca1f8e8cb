"""Multiply-accumulates, parameters and non-zeros, in exact integers; and budgets that match them.

One MAC is one multiplication and one addition (2 FLOPs) of a non-zero weight. A layer's MACs are its non-zeros times
the positions that each weight is applied at: output pixels of a convolution, rows of a matrix product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from sift_onnx.axes import Size
from sift_onnx.axis_rules import AxisAnalysis, WeightLayer, analyze
from sift_onnx.constants import nnz_of
from sift_onnx.errors import BudgetError
from sift_onnx.model import Model, ModelLike

__all__ = ["BudgetLayer", "CostReport", "LayerCost", "allocate", "inspect", "positions_of", "product_macs"]

Evaluate = Callable[[Size], int]


@dataclass(frozen=True)
class LayerCost:
    """What one weight layer costs.

    Attributes:
        name: of the initializer.
        node: the node that uses it; the first one where several do.
        op: operator of that node.
        kind: ``conv``, ``depthwise``, ``gemm``, ``matmul`` or ``embedding``.
        shape: of the weight.
        params: weights, active or not.
        nnz: active weights.
        sparsity: share of weights that are not active.
        macs: multiply-accumulates if executed densely.
        effective_macs: multiply-accumulates of the active weights.
    """

    name: str
    node: str
    op: str
    kind: str
    shape: tuple[int, ...]
    params: int
    nnz: int
    sparsity: float
    macs: int
    effective_macs: int


@dataclass(frozen=True)
class CostReport:
    """What a model costs, layer by layer.

    Attributes:
        layers: the weight layers in graph order.
        attention_macs: multiply-accumulates of products of two activations.
    """

    layers: tuple[LayerCost, ...]
    attention_macs: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of ``sift-onnx inspect``."""
        totals = {key: sum(getattr(layer, key) for layer in self.layers) for key in _SUMMED}
        return {
            "schema": 1,
            "layers": [asdict(layer) | {"shape": list(layer.shape)} for layer in self.layers],
            "totals": totals | {"attention_macs": self.attention_macs},
        }


_SUMMED = ("params", "nnz", "macs", "effective_macs")


def inspect(model: ModelLike, input_shapes: Mapping[str, Sequence[int]] | None = None) -> CostReport:
    """Per weight layer: shape, non-zeros, sparsity and multiply-accumulates.

    Args:
        model: anything that :meth:`Model.load` takes.
        input_shapes: sizes of dynamic axes; the batch is 1 unless given.

    Raises:
        UsageError: an input shape is missing or wrong.
        ModelReadError: the model cannot be read.
    """
    loaded = Model.load(model)
    analysis = analyze(loaded, input_shapes)
    original = analysis.system.original
    layers: list[LayerCost] = []
    for layer in analysis.layers.values():
        shape = tuple(original(axis.size) for axis in layer.axes)
        params, positions = math.prod(shape), positions_of(layer, original)
        nnz = nnz_of(layer.constant)
        use = layer.uses[0]
        layers.append(
            LayerCost(
                name=layer.name,
                node=use.node,
                op=use.op,
                kind=layer.kind,
                shape=shape,
                params=params,
                nnz=nnz,
                sparsity=1 - nnz / params if params else 0.0,
                macs=params * positions,
                effective_macs=nnz * positions,
            )
        )
    return CostReport(tuple(layers), product_macs(analysis, original))


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


@dataclass(frozen=True)
class BudgetLayer:
    """A layer that is to become sparse.

    Attributes:
        name: of its weight.
        macs: of the original layer.
        positions: multiply-accumulates per weight of the transformed layer.
        weights: number of weights of the transformed layer.
    """

    name: str
    macs: int
    positions: int
    weights: int


def allocate(layers: Sequence[BudgetLayer], target: int) -> dict[str, int]:
    """Non-zeros for each layer, in proportion to its original MACs, that together come nearest below ``target`` MACs.

    Every layer gets the same share ``target / sum(macs)`` of its original MACs; shares are rounded down to whole
    non-zeros, and what that leaves is handed out, at most one non-zero a layer, to expensive layers first. So each
    layer is within one non-zero of its share, and what is left of ``target`` pays for no further non-zero in any layer
    that is below its share.

    Args:
        layers: the layers that become sparse.
        target: MACs that they may use together.

    Returns:
        Weight name -> non-zeros.

    Raises:
        BudgetError: a layer's share is less than one non-zero, or more than all of its weights.
    """
    total = sum(layer.macs for layer in layers)
    shares = {layer.name: Fraction(target * layer.macs, total * layer.positions) for layer in layers} if total else {}
    nnz: dict[str, int] = {}
    for layer in layers:
        share = shares.get(layer.name, Fraction(0))
        if share < 1:
            raise BudgetError(f"the budget leaves no non-zero weight for {layer.name!r}")
        if share > layer.weights:
            raise BudgetError(f"the budget asks for more non-zeros than {layer.name!r} has weights ({layer.weights})")
        nnz[layer.name] = int(share)
    left = target - sum(nnz[layer.name] * layer.positions for layer in layers)
    for layer in sorted(layers, key=lambda layer: (-layer.positions, layer.name)):
        if nnz[layer.name] < shares[layer.name] and layer.positions <= left:
            nnz[layer.name] += 1
            left -= layer.positions
    return nnz
