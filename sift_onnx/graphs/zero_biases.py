"""Biases that a graph makes of zeros, as torch's dynamo exporter writes them for layers without a bias.

Unless it optimizes, it gives such a layer an Expand of 0, whose sizes are read from the weight, and whose type is that
of the operand. The layer computes the same without it.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.graphs.constants import array_of, constant_values, shape_of
from sift_onnx.graphs.unread_nodes import drop_makers
from sift_onnx.graphs.walks import origin_of
from sift_onnx.operators.domains import is_standard
from sift_onnx.operators.weight_operands import BIAS, FOLDABLE

__all__ = ["drop_zero_biases", "has_zero_biases"]

# Between the number and the bias: each repeats its first input, or copies it to another type or other sizes.
_COPIES = frozenset({"Cast", "CastLike", "Expand", "Identity", "Reshape", "Unsqueeze"})


def has_zero_biases(graph: gs.Graph) -> bool:
    """Whether there is anything to drop."""
    return any(map(_has_zero_bias, graph.nodes))


def drop_zero_biases(graph: gs.Graph) -> bool:
    """Take such biases from their layers, and remove the nodes that made them; whether there were any."""
    biases = []
    for node in graph.nodes:
        if _has_zero_bias(node):
            biases.append(node.inputs[BIAS])
            node.inputs = list(node.inputs)[:BIAS]
    drop_makers(graph, biases)
    return bool(biases)


def _has_zero_bias(node: gs.Node) -> bool:
    if node.op not in FOLDABLE or not is_standard(node.domain) or len(node.inputs) <= BIAS:
        return False
    origin, copies = origin_of(node.inputs[BIAS], _COPIES)
    number = constant_values(origin)
    if not copies or number is None or shape_of(number) not in ((), (1,)):
        return False
    return not np.any(array_of(number))
