"""The report of a Wide transform."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from sift_onnx.analysis.cost import product_macs
from sift_onnx.errors import listing
from sift_onnx.graphs.constants import is_masked, nnz_of
from sift_onnx.operators.labels import operator_label
from sift_onnx.passes.layer_report import describe_layers, layer_change, quantized_changes
from sift_onnx.passes.widening.plan import WidePlan
from sift_onnx.passes.widening.settings import WideSettings
from sift_onnx.records.transform import LayerChange, Pinned, TransformReport

__all__ = ["describe", "dropped_masks"]

# Share of the MACs that may be lost to rounding without a word.
_UNUSED_BUDGET = 1e-3


def describe(
    settings: WideSettings,
    plan: WidePlan,
    start: float,
    *,
    biases: Sequence[str] = (),
    centred: Sequence[str] = (),
    dropped: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> TransformReport:
    """What ``sift-onnx transform`` reports.

    MACs are multiply-accumulates of non-zero weights at the analysed input shapes, batch 1 unless given.

    Args:
        settings: the pass.
        plan: what was done.
        start: of the call, by :func:`time.perf_counter`.
        biases: names of biases that layers got, where there were none.
        centred: names of tensors from which added nodes subtract the mean of old features.
        dropped: names of weights whose masks were not kept.
        warnings: of the model that came in.
    """
    analysis, solution = plan.analysis, plan.solution
    original = analysis.system.original
    layers: list[LayerChange] = []
    for name, layer in analysis.layers.items():
        before = tuple(original(axis.size) for axis in layer.axes)
        after = tuple(solution.value(axis.size) for axis in layer.axes)
        status, _ = plan.statuses[name]
        embedded = settings.init == "embed" and name in plan.nnz
        old_nnz = plan.nnz[name] if embedded else nnz_of(layer.constant) if status == "unchanged" else math.prod(before)
        nnz = plan.nnz.get(name, old_nnz if status == "unchanged" else math.prod(after))
        masked = name in plan.nnz or (status == "unchanged" and is_masked(layer.constant))
        macs = plan.before[name], plan.after[name]
        layers.append(layer_change(layer, (before, after), macs, (old_nnz, nnz), plan.statuses[name], masked=masked))
    unscaled = [
        f"no factor 1/sqrt(d) was found at {name!r}; if it is baked in, it still fits the old head size"
        for name in analysis.unscaled
    ]
    unused = _unused_budget(settings, sum(plan.before.values()), sum(plan.after.values()))
    return replace(
        describe_layers(
            analysis,
            [*layers, *quantized_changes(analysis)],
            start,
            attention_macs=(product_macs(analysis, original), product_macs(analysis, solution.value)),
            warnings=(*warnings, *unscaled, *dropped_masks(dropped), *unused),
        ),
        pass_=settings.name,
        sparsity=float(settings.share),
        sparsity_requested=float(settings.share),
        pattern=str(settings.masking.pattern),
        distribution=settings.masking.distribution,
        init=settings.init,
        width_factor=math.sqrt(settings.factor_squared),
        biases_added=tuple(biases),
        centred=tuple(centred),
        masks_dropped=tuple(dropped),
        pinned=tuple(_pinned(plan)),
        unknown=tuple(map(operator_label, analysis.unknown)),
    )


def dropped_masks(names: Sequence[str]) -> list[str]:
    """A warning that masks were not kept, if any were not."""
    if not names:
        return []
    listed = listing([repr(name) for name in names], 4)
    return [
        f"masks that were there are not kept: {listed}; what grows is drawn again, at the cost of the layer without "
        "its mask. `init='embed'` keeps values and masks"
    ]


def _unused_budget(settings: WideSettings, before: int, after: int) -> list[str]:
    """A warning where whole blocks are too coarse for the budget; a budget of the total leaves weights less anyway."""
    if settings.masking.pattern.unit == 1 or settings.budget == "total" or after >= before * (1 - _UNUSED_BUDGET):
        return []
    return [f"whole blocks ({settings.masking.pattern}) leave {1 - after / before:.2%} of the weight MACs unused"]


def _pinned(plan: WidePlan) -> Iterator[Pinned]:
    """Feature axes of weight layers that something keeps from growing, one entry for each size and cause."""
    system = plan.analysis.system
    layers: dict[tuple[int, str, str, str], list[str]] = {}
    total = sum(plan.before.values())
    for name, layer in plan.analysis.layers.items():
        for axis in layer.axes:
            cause = system.why_pinned(axis.size)
            if cause is None or cause.reason == "kernel":
                continue
            names = layers.setdefault((system.original(axis.size), cause.node, cause.op, cause.reason), [])
            if name not in names:
                names.append(name)
    for (size, node, op, reason), names in layers.items():
        share = sum(plan.before[name] / total for name in names) if total else 0.0
        yield Pinned(size=size, layers=tuple(names), node=node, op=op, reason=reason, macs_share=share)
