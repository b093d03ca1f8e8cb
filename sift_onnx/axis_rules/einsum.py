"""Einsum: one size a label."""

from __future__ import annotations

from sift_onnx.axes import Axis
from sift_onnx.axis_rules.context import RuleContext
from sift_onnx.axis_rules.registry import axis_rule


@axis_rule("Einsum")
def einsum(ctx: RuleContext) -> None:
    """Axes of one label are the same; a stored operand is a weight, whose own output label are its features."""
    operands = [ctx.axes(i) for i in range(len(ctx.node.inputs))]
    terms, result = _parse(str(ctx.attr("equation")), [len(axes) if axes is not None else 0 for axes in operands])
    if terms is None or any(axes is None for axes in operands):
        for axes in operands:
            ctx.pin_all(axes, "it meets a tensor of unknown shape in an Einsum")
        ctx.set_axes(0, ctx.inferred_axes())
        return
    labels: dict[str, Axis] = {}
    for term, axes in zip(terms, operands, strict=True):
        for label, axis in zip(term, axes or (), strict=True):
            if label not in labels or ctx.original(labels[label]) == 1:
                labels[label] = axis
            elif ctx.original(axis) != 1:
                ctx.equate(labels[label], axis, f"label {label!r} of an Einsum")
    ctx.set_axes(0, [labels[label] for label in result])
    parameters = [ctx.parameter(i) for i in range(len(operands))]
    stored = [i for i, parameter in enumerate(parameters) if parameter is not None]
    if len(operands) == 2 and not stored:
        ctx.product(*(axis.size for axis in labels.values()))
    if len(operands) != 2 or len(stored) != 1:
        return
    (mine,) = stored
    own = [label for label in terms[mine] if label in result and label not in terms[1 - mine]]
    parameter = parameters[mine]
    if parameter is None or not own or not set(terms[mine]) & set(terms[1 - mine]):
        return
    positions = [axis.size for label, axis in labels.items() if label not in terms[mine]]
    ctx.weight(parameter, "matmul", terms[mine].index(own[-1]), positions)


def _parse(equation: str, ranks: list[int]) -> tuple[list[str] | None, str]:
    """Labels of each operand and of the result, an ellipsis spelled out in digits."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        return None, ""
    most = 0
    for i, (term, rank) in enumerate(zip(terms, ranks, strict=True)):
        if "..." in term:
            hidden = rank - len(term.replace("...", ""))
            most = max(most, hidden)
            terms[i] = term.replace("...", "0123456789"[:hidden][::-1])
        if len(terms[i]) != rank:
            return None, ""
    if not arrow:
        counted = "".join(terms)
        right = "..." * ("..." in left) + "".join(
            sorted(c for c in set(counted) if counted.count(c) == 1 and not c.isdigit())
        )
    return terms, right.replace("...", "0123456789"[:most][::-1])
