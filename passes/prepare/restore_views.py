"""Turn views that were written as look-ups of every element back into reshapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.graphs.constants import array_of, constant_values
from sift_onnx.graphs.unread_nodes import drop_makers
from sift_onnx.model import Model
from sift_onnx.operators.domains import is_standard
from sift_onnx.passes.base import Pass, PassResult
from sift_onnx.passes.node_builder import free_name, names_in
from sift_onnx.passes.prepare.strided_indices import Arrangement, arrangement_of, strided_indices

__all__ = ["RestoreViews"]

# Reshape reads its sizes from an input since this opset.
_FIRST_OPSET = 5


@dataclass(frozen=True)
class RestoreViews(Pass):
    """Replace a Gather that reads every element of a flattened tensor once, in order of strides, by a Reshape.

    torch's ``as_strided``, which global pooling leaves in a ConvNeXt, is exported as ``Gather(Reshape(x, [-1]),
    indices)``, with indices ``i * stride_0 + j * stride_1 + ...`` that are computed for the sizes of ``x``.

    1. The indices are a constant, or a sum of constants and of ``Range * stride`` along one open axis.
    2. Strides are those of the whole of ``x``: of the axes by falling stride, each steps over all axes after it.
       Only the outermost of them can be open, since the stride of another would depend on its size.
    3. By its recorded shape, ``x`` has as many elements.
    4. Axes in another order than by falling stride are put there by a Transpose after the Reshape.

    Requires: nothing. Ensures: the same outputs. A view that leaves elements out, or repeats them, stays what it is.
    """

    name: ClassVar[str] = "restore-views"

    def call(self, model: Model) -> PassResult:
        """Apply the pass; the report lists the tensors that became reshapes."""
        if int(model.graph.opset) < _FIRST_OPSET or not any(_view(node) for node in model.graph.nodes):
            return PassResult(model, False, {"restored": []})
        copy = model.copy()
        restored: list[str] = []
        for node in list(copy.graph.nodes):
            view = _view(node)
            if view is not None:
                restored.append(node.outputs[0].name)
                _restore(copy.graph, node, *view)
        return PassResult(copy, True, {"restored": restored})


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
