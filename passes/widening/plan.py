"""What a Wide transform does to each layer of a model: new sizes, which layers become sparse, and their non-zeros."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import TYPE_CHECKING

from sift_onnx.analysis.axes.solution import Solution, solve
from sift_onnx.analysis.axes.system import AxisSystem
from sift_onnx.analysis.cost import Evaluate, positions_of, product_macs
from sift_onnx.analysis.findings import AxisAnalysis, Cause, WeightLayer
from sift_onnx.analysis.graph_analysis import analyze
from sift_onnx.errors import BudgetError, UnsupportedError, UsageError, listing
from sift_onnx.graphs.constants import nnz_of
from sift_onnx.model import Model
from sift_onnx.operators.labels import node_name, operator_name
from sift_onnx.passes.masking import Growth, active_weights, matrix_of, require_room
from sift_onnx.passes.selection import fixed_layers, left_out_too, no_layers
from sift_onnx.passes.widening.least_sparsity import least_sparsity
from sift_onnx.passes.widening.settings import WideSettings
from sift_onnx.sparsity.budget import allocate

if TYPE_CHECKING:
    from sift_onnx.feature_maps.search import FoundMaps
    from sift_onnx.passes.widening.embeddable import EmbeddableGrowth

__all__ = ["WidePlan", "plan_widening", "unchanged"]

# Why a layer does not grow whose sizes could.
_ROUNDED = "its sizes round to themselves"


@dataclass(frozen=True)
class WidePlan:
    """What is going to be done to a model.

    Attributes:
        analysis: of the model.
        solution: the new sizes.
        statuses: per weight layer ``sparse``, ``dense`` or ``unchanged``, and why.
        nnz: non-zeros of the sparse layers.
        before: MACs of each layer in the original.
        after: MACs of each layer after the transform.
        found: with ``init="embed"``, where the original lies.
    """

    analysis: AxisAnalysis
    solution: Solution
    statuses: Mapping[str, tuple[str, str]]
    nnz: Mapping[str, int]
    before: Mapping[str, int]
    after: Mapping[str, int]
    found: FoundMaps | None = None

    @property
    def changes(self) -> bool:
        """Whether any size or mask changes."""
        return bool(self.nnz) or any(status != "unchanged" for status, _ in self.statuses.values())


def plan_widening(settings: WideSettings, model: Model) -> WidePlan:
    """Decide sizes and budgets for ``model`` without changing it.

    Raises:
        UnsupportedError: nothing can be widened, or with ``strict`` an operator is unknown.
        BudgetError: the dense layers alone cost more than the original, or a mask has no room for its share.
        UsageError: a glob matches nothing, or an input shape is missing.
    """
    outputs = [output.name for output in model.graph.outputs]
    for glob in settings.resize_output:
        if not any(fnmatchcase(name, glob) for name in outputs):
            raise UsageError(f"`resize_output` {glob!r} matches no output; the outputs are {', '.join(outputs)}")
    analysis = analyze(
        model,
        settings.input_shapes,
        attention=settings.attention,
        resize_outputs=settings.resize_output,
        # A wider group would be normalized by other statistics than the original's.
        whole_groups=settings.init == "embed",
    )
    if settings.strict and analysis.unknown:
        node = analysis.unknown[0]
        raise UnsupportedError(
            f"no rule covers {operator_name(node.op, node.domain)} (node {node_name(node)!r}); register one with "
            "register_axis_rule, or drop `strict`"
        )
    system = analysis.system
    growth: EmbeddableGrowth | None = None
    if settings.init == "embed":
        # Imported here, with the rules of feature maps, which no other start needs.
        from sift_onnx.passes.widening.embeddable import embeddable_growth, growing_layers

        dense = fixed_layers(analysis)
        candidates = growing_layers(settings.selection, analysis)
        growth = embeddable_growth(
            model,
            analysis,
            lambda: _solve(settings, system, candidates, settings.factor_squared),
            keep_products=settings.budget == "total",
        )
        solution = growth.solution
        untried = system.copy()
    else:
        dense = settings.selection.dense_layers(analysis)
        candidates = [layer for name, layer in analysis.layers.items() if name not in dense]
        untried = system.copy()
        solution = _solve(settings, system, candidates, settings.factor_squared)
    grown = {n for n, x in analysis.layers.items() if _weights(x, solution.value) > _weights(x, system.original)}
    statuses: dict[str, tuple[str, str]] = {}
    for name, layer in analysis.layers.items():
        if name in dense:
            statuses[name] = ("dense" if name in grown else "unchanged", dense[name])
        elif name in grown:
            misfit = settings.masking.pattern.misfit(matrix_of(layer, solution.value))
            statuses[name] = ("sparse", "") if misfit is None else ("dense", misfit)
        else:
            statuses[name] = ("unchanged", _why(analysis, layer))
    if growth is not None and growth.refusals and "sparse" not in {status for status, _ in statuses.values()}:
        raise growth.refusals[0]
    _require_something_to_widen(settings, analysis, statuses, candidates, untried)
    if growth is not None:
        return _embedded(analysis, solution, statuses, growth.found)
    before = {name: _macs(layer, system.original) for name, layer in analysis.layers.items()}
    nnz = _budget(settings, analysis, solution, statuses, before)
    if settings.masking.distribution == "erk":
        for name in [n for n in nnz if nnz[n] == _weights(analysis.layers[n], solution.value)]:
            statuses[name] = ("dense", "saturated: `distribution='erk'` leaves it no zero")
            del nnz[name]
    after = {
        name: nnz.get(name, _weights(layer, solution.value)) * positions_of(layer, solution.value)
        for name, layer in analysis.layers.items()
    }
    return WidePlan(analysis, solution, statuses, nnz, before, after)


def _budget(
    settings: WideSettings,
    analysis: AxisAnalysis,
    solution: Solution,
    statuses: Mapping[str, tuple[str, str]],
    before: Mapping[str, int],
) -> dict[str, int]:
    original = analysis.system.original
    sparse = [
        settings.masking.budget_layer(layer, before[name], solution.value)
        for name, layer in analysis.layers.items()
        if statuses[name][0] == "sparse"
    ]
    growth = {layer.name: _growth(analysis.layers[layer.name], original, solution.value) for layer in sparse}
    if settings.budget == "layer":
        for layer in sparse:
            require_room([layer], layer.macs, settings.masking, settings.share, growth)
        return {layer.name: allocate([layer], layer.macs)[layer.name] for layer in sparse}
    dense = {
        name: _macs(layer, solution.value) for name, layer in analysis.layers.items() if statuses[name][0] != "sparse"
    }
    target = sum(before.values()) - sum(dense.values())
    if settings.budget == "total":
        target -= product_macs(analysis, solution.value) - product_macs(analysis, original)
    require_room(sparse, target, settings.masking, settings.share, growth)
    try:
        return allocate(sparse, target, settings.masking.distribution)
    except BudgetError as error:
        grown = [name for name in dense if dense[name] > before[name]]
        costly = sorted(grown, key=lambda name: before[name] - dense[name])[:3]
        named = ", ".join(f"{name!r} ({statuses[name][1]}) {dense[name] - before[name]:+,} MACs" for name in costly)
        raise BudgetError(
            f"{error}: what stays dense costs too much after widening: {named}; of {sum(before.values()):,} MACs "
            f"{max(target, 0):,} are left for the sparse layers. Use `budget='layer'`, which does not repay them, "
            "or a lower sparsity"
        ) from error


def _solve(
    settings: WideSettings, system: AxisSystem[Cause], candidates: Sequence[WeightLayer], factor_squared: Fraction
) -> Solution:
    """The sizes at a factor; ``candidates`` are the layers whose axes may grow."""
    return solve(
        system,
        factor_squared,
        [axis.size for layer in candidates for axis in layer.axes],
        round_to=math.lcm(settings.round_to, settings.masking.pattern.width_multiple),
        round_up=settings.masking.pattern.density < 1,
        shrink_cause=Cause("", "", "widening would make an axis smaller"),
    )


def _require_something_to_widen(
    settings: WideSettings,
    analysis: AxisAnalysis,
    statuses: Mapping[str, tuple[str, str]],
    candidates: Sequence[WeightLayer],
    untried: AxisSystem[Cause],
) -> None:
    if any(status == "sparse" for status, _ in statuses.values()):
        return
    if not analysis.layers:
        raise UnsupportedError(f"nothing to widen: {no_layers(analysis)}")
    named = listing([f"{name!r}: {reason}" for name, (_, reason) in statuses.items()], 4, "; ")
    if any(reason == _ROUNDED for _, reason in statuses.values()):

        def widens(sparsity: Fraction) -> bool:
            value = _solve(settings, untried.copy(), candidates, 1 / (1 - sparsity)).value
            grown = [x for x in candidates if _weights(x, value) > _weights(x, analysis.system.original)]
            return any(settings.masking.pattern.misfit(matrix_of(layer, value)) is None for layer in grown)

        least = least_sparsity(settings.share, widens)
        raise UnsupportedError(
            f"nothing to widen: all widths that are free round to themselves at a sparsity of "
            f"{float(settings.share):g}"
            + (f"; from {float(least):g} on a layer grows" if least is not None else f" ({named})")
        )
    raise UnsupportedError(
        f"nothing to widen: every weight layer is fixed ({named}){left_out_too(analysis)}"
        f"{_other_members(settings, analysis)}"
    )


def _other_members(settings: WideSettings, analysis: AxisAnalysis) -> str:
    """What can be done where no width can grow; empty where these members would leave every layer as it is."""
    if analysis.layers.keys() <= settings.selection.dense_layers(analysis).keys():
        return ""
    if settings.init == "embed":
        return "; parallel with `init='embed'` and `activation='none'` keeps all widths, and what the model computes"
    return "; parallel, factorized and doped keep all widths"


def _weights(layer: WeightLayer, evaluate: Evaluate) -> int:
    return math.prod(evaluate(axis.size) for axis in layer.axes)


def _macs(layer: WeightLayer, evaluate: Evaluate) -> int:
    return _weights(layer, evaluate) * positions_of(layer, evaluate)


def _growth(layer: WeightLayer, original: Evaluate, now: Evaluate) -> Growth:
    return Growth(_weights(layer, original), sum(now(axis.size) > original(axis.size) for axis in layer.axes))


def _why(analysis: AxisAnalysis, layer: WeightLayer) -> str:
    if any(analysis.system.grows(axis.size) for axis in layer.axes):
        return _ROUNDED
    for cause in (analysis.system.why_pinned(axis.size) for axis in layer.axes):
        if cause is not None and cause.reason != "kernel":
            return f"{cause.reason} (node {cause.node!r}, {cause.op})"
    return "its sizes are fixed"


def _embedded(
    analysis: AxisAnalysis, solution: Solution, statuses: Mapping[str, tuple[str, str]], found: FoundMaps
) -> WidePlan:
    """Every layer that was learned keeps the active weights of the original and has no others."""
    active = {name: active_weights(layer) for name, layer in analysis.layers.items()}
    original = analysis.system.original
    macs = {name: active[name] * positions_of(layer, original) for name, layer in analysis.layers.items()}
    after, nnz, now = dict(macs), dict[str, int](), dict(statuses)
    for name, (status, _) in statuses.items():
        if status == "unchanged":
            continue
        if name in analysis.fixed:
            # A fixed kernel that all channels share is applied to the added ones, too.
            layer = analysis.layers[name]
            after[name] = _weights(layer, solution.value) * positions_of(layer, original)
        else:
            nnz[name], now[name] = active[name], ("sparse", "")
    return WidePlan(analysis, solution, now, nnz, macs, after, found)


def unchanged(analysis: AxisAnalysis, reason: str) -> WidePlan:
    """The plan that changes nothing, for that reason."""
    original = analysis.system.original
    macs = {n: nnz_of(layer.constant) * positions_of(layer, original) for n, layer in analysis.layers.items()}
    solution = solve(analysis.system, Fraction(1), [], shrink_cause=Cause("", "", ""))
    return WidePlan(analysis, solution, {n: ("unchanged", reason) for n in macs}, {}, macs, macs)
