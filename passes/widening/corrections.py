"""Numbers that have to be others, or stay what they were, in a wider model that computes what the original did."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.analysis.findings import AxisAnalysis
from sift_onnx.feature_maps.findings import Scaling
from sift_onnx.feature_maps.search import FoundMaps
from sift_onnx.graphs.constants import array_of, constant_values, dtype_of, replace_values, sparse_weight_of
from sift_onnx.passes.node_builder import NodeBuilder
from sift_onnx.passes.widening.element_types import floating_type
from sift_onnx.weights.sparse import SparseWeight

__all__ = ["correct"]


def correct(graph: gs.Graph, analysis: AxisAnalysis, found: FoundMaps) -> None:
    """Carry out what was found besides sizes; ``graph`` is changed in place, after everything has been resized."""
    order = analysis.order
    for (index, name), value in found.maps.attributes.items():
        order[index].attrs[name] = value
    builder = NodeBuilder(graph)
    for index, i in found.maps.frozen:
        node = order[index]
        tensor = node.inputs[i]
        elements = analysis.elements[tensor.name]
        values = np.asarray([element.value for element in elements.reshape(-1)], dtype=tensor.dtype or np.int64)
        node.inputs[i] = builder.constant(f"{tensor.name}_original", values.reshape(elements.shape))
    for scaling in found.scalings:
        _scale(graph, builder, order[scaling.node], scaling)


def _scale(graph: gs.Graph, builder: NodeBuilder, node: gs.Node, scaling: Scaling) -> None:
    read = node.inputs[scaling.input]
    stored = constant_values(read)
    if stored is None:
        number = builder.constant(f"{read.name}_factor", np.asarray(scaling.factor, dtype=floating_type(read)))
        scaled = builder.node("Mul", [read, number], like=read, name=f"{read.name}_scaled")
        place = next(i for i, other in enumerate(graph.nodes) if other is node)
        graph.nodes[place:place] = builder.take_nodes()
        node.inputs[scaling.input] = scaled
        return
    weight, dtype, factor = sparse_weight_of(stored), dtype_of(stored), np.float64(scaling.factor)
    values: SparseWeight | npt.NDArray[Any]
    if weight is None:
        values = np.asarray(array_of(stored) * factor, dtype=dtype)
    else:
        values = SparseWeight(weight.shape, weight.indices, (weight.values * factor).astype(dtype))
    if isinstance(read, gs.Constant) and len(read.outputs) == 1:
        replace_values(read, values)
    else:
        node.inputs[scaling.input] = builder.constant(f"{read.name}_scaled", values)
