"""Softplus that gives way to its operand where that is large: ``where(x > 20, x, softplus(x))``, as torch writes it."""

from __future__ import annotations

from sift_onnx.backends.lowering.graph import GraphView, is_standard_op

__all__ = ["guarded_softplus"]

# From here on, log(1 + e^x) is x in float32.
_SAME_ABOVE = 17.0


def guarded_softplus(graph: GraphView, where: int) -> tuple[int, int] | None:
    """The indices of the Softplus and of the comparison that a Where is for; None for any other node.

    The result of the Where is then that of the Softplus.
    """
    node = graph.nodes[where]
    if not is_standard_op(node, "Where"):
        return None
    condition, operand, value = node.input
    compared, made = graph.producers.get(condition), graph.producers.get(value)
    if compared is None or made is None:
        return None
    comparison, softplus = graph.nodes[compared], graph.nodes[made]
    if not is_standard_op(comparison, "Greater", "GreaterOrEqual") or not is_standard_op(softplus, "Softplus"):
        return None
    bound = graph.known_values(comparison.input[1])
    if bound is None or bound.size != 1 or float(bound.reshape(-1)[0]) < _SAME_ABOVE:
        return None
    return (made, compared) if operand == comparison.input[0] == softplus.input[0] else None
