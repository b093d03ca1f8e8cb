"""Which axes of a stored weight are the output and the input features of the layer that it belongs to.

torch's layers have output features first. ONNX's MatMul multiplies by ``[inputs, outputs]``, Gemm by either, and a
weight may be transposed on its way. Patterns and balanced groups are stated on features, so they have to know.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import onnx_graphsurgeon as gs

from sift_onnx.graphs.constants import constant_values, shape_of

__all__ = ["feature_axes_of"]

_Axes = tuple[int, int]

# Operators that hand a tensor on with its axes in their order.
_PASSES = frozenset({"Cast", "Identity"})
# Input of a convolution or a recurrent layer, and its axes of output and input features.
_FIXED: dict[tuple[str, int], _Axes] = {
    ("CausalConvWithState", 1): (0, 1),
    ("Conv", 1): (0, 1),
    ("ConvTranspose", 1): (1, 0),
    ("DeformConv", 1): (0, 1),
    **{(op, position): (1, 2) for op in ("GRU", "LSTM", "RNN") for position in (1, 2)},
}


def feature_axes_of(graph: gs.Graph, names: Collection[str]) -> dict[str, _Axes]:
    """Axes of output and input features of weights that multiply activations.

    Args:
        graph: the main graph.
        names: of the tensors that are asked about.

    Returns:
        ``(output axis, input axis)`` by name, as the tensor is stored. A tensor that no layer multiplies by, a vector,
        and what is reshaped on its way are not in it; of several uses the first decides.
    """
    tensors = graph.tensors()
    found: dict[str, _Axes] = {}
    for name in names:
        constant = constant_values(tensors[name])
        rank = 0 if constant is None else len(shape_of(constant))
        axes = _axes(tensors[name], tuple(range(rank))) if rank > 1 else None
        if axes is not None:
            found[name] = axes
    return found


def _axes(tensor: gs.Tensor, stored: tuple[int, ...]) -> _Axes | None:
    """The axes by the first reader that has a rule; ``stored[i]`` is the stored tensor's axis that is axis i here."""
    for node in tensor.outputs:
        for position, read in enumerate(node.inputs):
            if read is not tensor:
                continue
            if node.op in _PASSES:
                found = _axes(node.outputs[0], stored)
            elif node.op == "Transpose":
                order = node.attrs.get("perm", range(len(stored))[::-1])
                found = _axes(node.outputs[0], tuple(stored[axis] for axis in order))
            else:
                here = _axes_at(node, position, len(stored))
                found = None if here is None else (stored[here[0]], stored[here[1]])
            if found is not None:
                return found
    return None


def _axes_at(node: gs.Node, position: int, rank: int) -> _Axes | None:
    """Output and input axis of a weight that ``node`` reads at ``position``."""
    if (node.op, position) in _FIXED:
        return _FIXED[node.op, position]
    rule = _RULES.get(node.op)
    return None if rule is None else rule(node.attrs, position, rank)


def _product(attributes: Mapping[str, Any], position: int, rank: int) -> _Axes | None:
    """Of ``[..., rows, columns]``: rows are outputs on the left side, columns on the right, unless transposed."""
    if position > 1 or rank < 2:
        return None
    transposed = bool(attributes.get("transB" if position else "transA", 0))
    return (rank - 1, rank - 2) if bool(position) != transposed else (rank - 2, rank - 1)


def _einsum(attributes: Mapping[str, Any], position: int, rank: int) -> _Axes | None:
    """A product of two: what only the weight has and the result keeps is output, what the result drops is input."""
    operands, arrow, result = str(attributes["equation"]).replace(" ", "").partition("->")
    terms = operands.split(",")
    if not arrow or len(terms) != 2 or "." in operands or len(terms[position]) != rank:
        return None
    own, other = terms[position], terms[1 - position]
    out = [i for i, label in enumerate(own) if label in result and label not in other]
    summed = [i for i, label in enumerate(own) if label in other and label not in result]
    return (out[0], summed[0]) if out and summed else None


_RULES: dict[str, Callable[[Mapping[str, Any], int, int], _Axes | None]] = {
    "Einsum": _einsum,
    "FusedMatMul": _product,
    "Gemm": _product,
    "MatMul": _product,
}
