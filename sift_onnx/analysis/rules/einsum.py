"""Einsum: one size a label."""

from __future__ import annotations

from sift_onnx.analysis.axes.sizes import Axis
from sift_onnx.analysis.rule_context import RuleContext
from sift_onnx.analysis.rule_registry import axis_rule
from sift_onnx.analysis.rules.stored_tables import follow_frequencies
from sift_onnx.operators.einsum_terms import einsum_terms


@axis_rule("Einsum")
def einsum(ctx: RuleContext) -> None:
    """Axes of one label are the same; a stored operand is a weight, whose own output label are its features."""
    operands = [ctx.axes(i) for i in range(len(ctx.node.inputs))]
    terms, result = einsum_terms(str(ctx.attr("equation")), [len(axes) if axes is not None else 0 for axes in operands])
    if terms is None or any(axes is None for axes in operands):
        ctx.keep_sizes("it meets a tensor of unknown shape in an Einsum")
        return
    labels: dict[str, Axis] = {}
    for term, axes in zip(terms, operands, strict=True):
        for label, axis in zip(term, axes or (), strict=True):
            if label not in labels or ctx.original(labels[label]) == 1:
                labels[label] = axis
            elif ctx.original(axis) != 1:
                ctx.equate(labels[label], axis, f"label {label!r} of an Einsum")
    ctx.set_axes(0, [labels[label] for label in result])
    if len(operands) == 2:
        _register(ctx, terms, result, labels)


def _register(ctx: RuleContext, terms: list[str], result: str, labels: dict[str, Axis]) -> None:
    """Register the weight of a product of two operands, or the product itself where both are activations."""
    parameters = ctx.parameter(0), ctx.parameter(1)
    shared = [label for label in terms[0] if label in terms[1]]
    summed = [labels[label] for label in shared if label not in result]
    for mine, parameter in enumerate(parameters):
        own = [label for label in terms[mine] if label in result and label not in terms[1 - mine]]
        if parameter is None or parameters[1 - mine] is not None or not own or not shared:
            continue
        _keep_heads(ctx, [labels[label] for label in own])
        positions = [axis.size for label, axis in labels.items() if label not in terms[mine]]
        reduced = [label for label in shared if label not in result] or shared
        in_axis = terms[mine].index(max(reduced, key=terms[mine].index))
        ctx.weight(parameter, "matmul", terms[mine].index(own[-1]), positions, in_axis)
        return
    if not shared and any(follow_frequencies(ctx, i) for i in (0, 1)):
        return  # positions times frequencies
    derived = [ctx.is_derived(i) for i in (0, 1)]
    for i, term in enumerate(terms):
        if derived[i] and parameters[i] is None:
            ctx.pin_all([labels[label] for label in term], "the weight is computed, not stored")
    if not any(derived):
        growing = [axis.size for axis in summed if ctx.grows(axis)]
        ctx.product(*(axis.size for axis in labels.values()), summed=growing[-1] if growing else None)


def _keep_heads(ctx: RuleContext, features: list[Axis]) -> None:
    """Of several axes of output features, heads and their size, one grows."""
    if len(features) < 2:
        return
    growth = ctx.analysis.attention
    grows = {"head-dim": features[-1:], "heads": features[:1], "keep": []}[growth]
    for axis in features:
        if axis not in grows:
            ctx.pin(axis, f"only one axis of these features grows (`attention={growth!r}`)")
