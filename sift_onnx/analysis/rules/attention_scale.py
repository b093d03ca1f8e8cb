"""Factors of attention that exporters bake in as numbers.

Scores are divided by ``sqrt(d)``. TorchScript computes the root from ``Shape``, which follows a wider head by itself;
others leave a scalar: ``d ** -0.5`` on the queries or on the scores, ``d ** -0.25`` on queries and keys both, or a
division by ``d ** 0.5``. A scalar of such a value next to a product over the head size is taken for it, and is
recomputed for the new size.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_graphsurgeon as gs

from sift_onnx.analysis.findings import AxisAnalysis, ScaleEdit
from sift_onnx.analysis.rules.attention import scale_exponent
from sift_onnx.graphs.constants import array_of, constant_values, shape_of
from sift_onnx.operators.labels import node_name
from sift_onnx.operators.traits import MOVING

__all__ = ["find_scales"]

# Operators between a factor and the product that leave numbers as they are, up to their order.
_TRANSPARENT = MOVING | {"Add", "Cast", "CastLike", "RotaryEmbedding", "Where"}
_LONGEST_WAY = 12


def find_scales(analysis: AxisAnalysis) -> list[str]:
    """Register the baked factors around products of activations whose summed axis can grow.

    Returns:
        The products at which neither a baked nor a computed factor was found.
    """
    index_of = {id(node): i for i, node in enumerate(analysis.order)}
    missed: list[str] = []
    registered: set[tuple[int, int | str]] = set()
    for product in analysis.products:
        node = analysis.order[product.index]
        head = product.summed
        if head is None or not analysis.system.grows(head):
            continue
        found = False
        for scaling in {id(n): n for n in _scalings(node)}.values():
            for position, tensor in enumerate(scaling.inputs):
                constant = constant_values(tensor)
                if constant is None or max(shape_of(constant), default=1) > 1:
                    continue
                value = float(array_of(constant).reshape(-1)[0])
                exponent = scale_exponent(value, analysis.system.original(head)) if value > 0 else None
                place = (index_of[id(scaling)], position)
                if exponent is None or place in registered:
                    found = found or place in registered
                    continue
                analysis.scale_edits.append(ScaleEdit(*place, exponent, head))
                registered.add(place)
                found = True
            if not any(constant_values(t) is not None for t in scaling.inputs):
                found = found or _is_scalar_computed(analysis, scaling)
        if not found:
            missed.append(node_name(node))
    return missed


def _scalings(product: gs.Node) -> Iterator[gs.Node]:
    """Multiplications and divisions by something small on the way into the product, and right after it."""
    pending = [(t, 0) for t in product.inputs]
    seen: set[int] = set()
    while pending:
        tensor, steps = pending.pop()
        if id(tensor) in seen or steps > _LONGEST_WAY or len(tensor.inputs) != 1:
            continue
        seen.add(id(tensor))
        node = tensor.inputs[0]
        if node.op in ("Mul", "Div"):
            yield node
        if node.op in _TRANSPARENT or node.op in ("Mul", "Div", "Neg"):
            pending.extend((t, steps + 1) for t in node.inputs)
    tensor = product.outputs[0]
    for _ in range(_LONGEST_WAY):
        if len(tensor.outputs) != 1:
            return
        node = tensor.outputs[0]
        if node.op in ("Mul", "Div"):
            yield node
        elif node.op not in _TRANSPARENT:
            return
        tensor = node.outputs[0]


def _is_scalar_computed(analysis: AxisAnalysis, node: gs.Node) -> bool:
    """Whether one side is a single number that the graph computes."""
    return any(
        axes is not None and all(analysis.system.original(axis.size) == 1 for axis in axes)
        for axes in (analysis.axes.get(t.name) for t in node.inputs)
    )
