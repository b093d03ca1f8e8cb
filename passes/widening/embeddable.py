"""How far a model can grow with the original in it: an axis that stands in the way keeps its size, and says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sift_onnx.analysis.axes.solution import Solution
from sift_onnx.analysis.cost import positions_of
from sift_onnx.analysis.findings import AxisAnalysis, Cause, WeightLayer
from sift_onnx.errors import UnsupportedError
from sift_onnx.feature_maps.context import refusal
from sift_onnx.feature_maps.findings import Obstacle
from sift_onnx.feature_maps.search import FoundMaps, find_feature_maps
from sift_onnx.model import Model
from sift_onnx.operators.labels import node_label, node_name
from sift_onnx.passes.selection import KEPT_DENSE, Selection

__all__ = ["EmbeddableGrowth", "embeddable_growth", "growing_layers"]

_WITH_ORIGINAL = "with the original in it"


@dataclass(frozen=True)
class EmbeddableGrowth:
    """How far a model can grow with the original in it.

    Attributes:
        solution: the new sizes.
        found: where the original lies at these.
        refusals: one for each node that something had to keep its size for.
    """

    solution: Solution
    found: FoundMaps
    refusals: tuple[UnsupportedError, ...]


def growing_layers(selection: Selection, analysis: AxisAnalysis) -> list[WeightLayer]:
    """The layers whose axes may grow: the first and the last as well, since none gets a weight more.

    Layers that ``keep_dense`` names keep their sizes, which are pinned: what is added is pruned, and a layer that
    grows has a mask.

    Raises:
        UsageError: a glob matches no weight.
    """
    excluded = selection.excluded(analysis)
    for name, reason in excluded.items():
        if reason == KEPT_DENSE:
            layer = analysis.layers[name]
            cause = Cause(layer.uses[0].node, layer.uses[0].op, f"{_WITH_ORIGINAL}: {reason}")
            for axis in layer.axes:
                analysis.system.pin(axis.size, cause)
    return [layer for name, layer in analysis.layers.items() if name not in excluded and name not in analysis.fixed]


def embeddable_growth(
    model: Model, analysis: AxisAnalysis, solve: Callable[[], Solution], *, keep_products: bool = False
) -> EmbeddableGrowth:
    """The sizes to which everything grows that can while old features hold what they held.

    Args:
        model: the original.
        analysis: of it; sizes that cannot grow are pinned in its system, with the reason.
        solve: gives new sizes for what is not pinned.
        keep_products: whether products of activations have to cost what they did, too.

    Raises:
        UnsupportedError: something is in the way that no size can clear.
    """
    outputs = [tensor.name for tensor in model.graph.outputs]
    opset = int(model.graph.opset)
    refusals: list[UnsupportedError] = []
    while True:
        solution = solve()
        if _keep_costs(analysis, solution, refusals) or (keep_products and _keep_products(analysis, solution)):
            continue
        found = find_feature_maps(analysis, solution, opset, outputs)
        if not found.obstacles:
            # Scores are sums of as many products that are not zero as before, so that their factor stays.
            analysis.scale_edits.clear()
            analysis.unscaled.clear()
            return EmbeddableGrowth(solution, found, tuple(refusals))
        for obstacle in found.obstacles:
            refusals.append(refusal(node_label(analysis.order[obstacle.node]), obstacle.reason))
            if not obstacle.axes:
                raise refusals[-1]
            _clear(analysis, obstacle)


def _clear(analysis: AxisAnalysis, obstacle: Obstacle) -> None:
    node = analysis.order[obstacle.node]
    cause = Cause(node_name(node), node.op, f"{_WITH_ORIGINAL}: it {obstacle.reason}")
    for extent in obstacle.axes:
        axes = analysis.axes[extent.tensor]
        assert axes is not None
        analysis.system.pin(axes[extent.axis].size, cause)


def _keep_costs(analysis: AxisAnalysis, solution: Solution, refusals: list[UnsupportedError]) -> bool:
    """Pin what would apply a layer's weights more often than the original did; whether there was any."""
    original = analysis.system.original
    dear = [x for x in analysis.layers.values() if positions_of(x, original) != positions_of(x, solution.value)]
    for layer in dear:
        before, after = positions_of(layer, original), positions_of(layer, solution.value)
        reason = f"would apply each of its weights {after:,} times instead of {before:,}, at a higher cost"
        use = layer.uses[0]
        refusals.append(refusal(f"{use.node!r} ({use.op})", reason))
        for use in layer.uses:
            for size in use.positions:
                analysis.system.pin(size, Cause(use.node, use.op, f"{_WITH_ORIGINAL}: it {reason}"))
    return bool(dear)


def _keep_products(analysis: AxisAnalysis, solution: Solution) -> bool:
    """Pin what makes products of activations dearer; whether there was any."""
    original, grown = analysis.system.original, False
    for product in analysis.products:
        for size in product.factors:
            if solution.value(size) != original(size):
                node = analysis.order[product.index]
                reason = f"{_WITH_ORIGINAL}: products of activations keep their cost (`budget='total'`)"
                analysis.system.pin(size, Cause(product.node, node.op, reason))
                grown = True
    return grown
