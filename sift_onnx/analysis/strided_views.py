"""Views of whole tensors that exporters wrote as look-ups of every element, as reshapes.

torch's ``as_strided``, which global pooling leaves in networks whose channels are last, is exported as
``Gather(Reshape(x, [-1]), indices)``, with indices ``i * stride_0 + j * stride_1 + ...`` that are computed for the
sizes of ``x``. That is a reshape of ``x`` under these conditions:

1. The indices are a constant, or a sum of constants and of ``Range * stride`` along one open axis.
2. Strides are those of the whole of ``x``: of the axes by falling stride, each steps over all axes after it. Only the
   outermost of them can be open, since the stride of another would depend on its size.
3. By its recorded shape, ``x`` has as many elements.
4. Axes in another order than by falling stride are put there by a Transpose after the Reshape.

A view that leaves elements out, or repeats them, stays what it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.analysis.strided_indices import Arrangement, arrangement_of, strided_indices
from sift_onnx.graphs.constants import array_of, constant_values
from sift_onnx.graphs.names import free_name, names_in
from sift_onnx.graphs.unread_nodes import drop_makers
from sift_onnx.model import Model
from sift_onnx.operators.domains import is_standard

__all__ = ["with_restored_views"]

# Reshape reads its sizes from an input since this opset.
_FIRST_OPSET = 5


def with_restored_views(model: Model) -> tuple[Model, list[str]]:
    """``model``, or a copy that computes the same values in which such views are reshapes, and their names."""
    if int(model.graph.opset) < _FIRST_OPSET or not any(_view(node) for node in model.graph.nodes):
        return model, []
    copy = model.copy()
    restored: list[str] = []
    for node in list(copy.graph.nodes):
        view = _view(node)
        if view is not None:
            restored.append(node.outputs[0].name)
            _restore(copy.graph, node, *view)
    return copy, restored


def _view(node: gs.Node) -> tuple[gs.Tensor, Arrangement] | None:
    """What a Gather is a view of, and how that is arranged; None if it is not a view of the whole of a tensor."""
    if node.op != "Gather" or not is_standard(node.domain) or node.attrs.get("axis", 0) != 0:
        return None
    viewed = _before_flattening(node.inputs[0])
    # A stored table is looked up in, which is another matter.
    if constant_values(viewed) is not None or (viewed is node.inputs[0] and len(viewed.shape or ()) != 1):
        return None
    indices = strided_indices(node.inputs[1])
    # A list of indices picks elements of a vector.
    if indices is None or indices.fixed.ndim < 2:
        return None
    arrangement = arrangement_of(indices)
    if arrangement is None:
        return None
    read: list[int | str | None] = list(arrangement.sizes)
    if indices.axis is not None:
        recorded = node.outputs[0].shape
        read[indices.axis] = recorded[indices.axis] if recorded is not None else None
    elements = None if viewed.shape is None else _elements(viewed.shape)
    return (viewed, arrangement) if elements is not None and elements == _elements(read) else None


def _elements(shape: Sequence[int | str | None]) -> tuple[str, int] | None:
    """How many elements a shape has: the name of an open axis, and the product of the other sizes; None if unknown."""
    names = [n for n in shape if not isinstance(n, int)]
    if None in names or len(names) > 1:
        return None
    return "".join(str(name) for name in names), math.prod(n for n in shape if isinstance(n, int))


def _before_flattening(tensor: gs.Tensor) -> gs.Tensor:
    producer = tensor.inputs[0] if len(tensor.inputs) == 1 else None
    if producer is not None and producer.op == "Reshape" and len(producer.inputs) == 2:
        sizes = constant_values(producer.inputs[1])
        if sizes is not None and array_of(sizes).tolist() == [-1]:
            return producer.inputs[0]
    return tensor


def _restore(graph: gs.Graph, node: gs.Node, viewed: gs.Tensor, arrangement: Arrangement) -> None:
    output, read = node.outputs[0], list(node.inputs)
    sizes = [arrangement.sizes[axis] for axis in arrangement.order]
    taken = names_in(graph)
    node.op, node.attrs = "Reshape", {}
    node.inputs = [viewed, gs.Constant(free_name(f"{output.name}_sizes", taken), np.asarray(sizes, np.int64))]
    if list(arrangement.order) != sorted(arrangement.order):
        shape = None if output.shape is None else [output.shape[axis] for axis in arrangement.order]
        ordered = gs.Variable(free_name(f"{output.name}_by_stride", taken), output.dtype, shape)
        node.outputs = [ordered]
        perm = [arrangement.order.index(axis) for axis in range(len(sizes))]
        turned = gs.Node("Transpose", ordered.name, {"perm": perm}, [ordered], [output])
        graph.nodes.insert(next(i for i, other in enumerate(graph.nodes) if other is node) + 1, turned)
    drop_makers(graph, read)
