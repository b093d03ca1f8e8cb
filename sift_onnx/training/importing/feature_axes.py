"""Which axes of a stored weight are the output and the input features of the layer that it belongs to.

torch's layers have output features first. ONNX's MatMul multiplies by ``[inputs, outputs]``, Gemm by either, and a
weight may be transposed on its way. Patterns and balanced groups are stated on features, so they have to know.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_graphsurgeon as gs

from sift_onnx.graphs.constants import constant_values, shape_of
from sift_onnx.graphs.walks import axis_order
from sift_onnx.operators.traits import PARAMETER_VIEWS
from sift_onnx.operators.weight_operands import feature_axes

__all__ = ["feature_axes_of"]

_Axes = tuple[int, int]


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
            if node.op in PARAMETER_VIEWS:
                found = _axes(node.outputs[0], tuple(stored[axis] for axis in axis_order([node], len(stored))))
            else:
                here = feature_axes(node.op, node.attrs, position, len(stored))
                found = None if here is None else (stored[here[0]], stored[here[1]])
            if found is not None:
                return found
    return None
