"""Biases that layers get, and where they need none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.graphs.constants import constant_values
from sift_onnx.graphs.names import free_name
from sift_onnx.operators.traits import REARRANGING, RECURRENT, SHAPE_READING
from sift_onnx.operators.weight_operands import CHANNEL_NORMALIZATIONS, CONVOLUTIONS, MATRIX_PRODUCTS, PARAMETERS

__all__ = ["add_bias", "reach_a_shift"]

# Features that are zero before these are zero after them, and have the same gradients.
_PASSING = REARRANGING | {"AveragePool", "Concat", "Dropout", "GlobalAveragePool", "MaxPool", "Split"}
_SUMS = {"Add", "BiasAdd", "BiasGelu", "FastGelu"}
# The input that is the bias of a layer.
_BIASED = {
    op: i for op in CONVOLUTIONS | MATRIX_PRODUCTS | RECURRENT | {"LayerNormalization"} for i in PARAMETERS[op].shifts
}


def reach_a_shift(order: Sequence[gs.Node], graph: gs.Graph, grows: Callable[[gs.Tensor], bool]) -> dict[str, bool]:
    """Whether all that reads a tensor comes, without an activation between, to something that shifts its features.

    Args:
        order: the nodes, producers first.
        graph: they belong to; its outputs are read by others.
        grows: whether a tensor is one that gets features.
    """
    ends = {tensor.name for tensor in graph.outputs}
    shifted: dict[str, bool] = {}
    for node in reversed(order):
        for tensor in node.outputs:
            readers = [] if tensor.name in ends else tensor.outputs
            shifted[tensor.name] = bool(readers) and all(_shifts(r, tensor, grows, shifted) for r in readers)
    return shifted


def _shifts(node: gs.Node, tensor: gs.Tensor, grows: Callable[[gs.Tensor], bool], shifted: dict[str, bool]) -> bool:
    if node.op in SHAPE_READING:
        return True
    if node.op in CHANNEL_NORMALIZATIONS:
        return node.inputs[0] is tensor
    if node.op in _SUMS and any(constant_values(other) is not None and grows(other) for other in node.inputs):
        return True
    if node.op in _PASSING or node.op == "Add":
        # Of a node in a subgraph nothing is known.
        return all(shifted.get(out.name, False) for out in node.outputs if out.name)
    return False


def add_bias(graph: gs.Graph, node: gs.Node, weight: str, values: npt.NDArray[Any]) -> str:
    """Add ``values``, a vector of its output features, to what ``node`` computes; the name of the new initializer.

    Conv and Gemm have an input for it; after any other operator an Add node takes over the name of the output.
    """
    name = free_name(f"{weight.removesuffix('.weight')}.bias", set(graph.tensors()))
    bias = gs.Constant(name, np.ascontiguousarray(values))
    position = _BIASED.get(node.op)
    if position is not None and len(node.inputs) == position:
        node.inputs.append(bias)
        return name
    if position is not None and node.inputs[position].is_empty():
        node.inputs[position] = bias
        return name
    biased = node.outputs[0]
    plain = gs.Variable(f"{biased.name}_plain_{name}", dtype=biased.dtype, shape=biased.shape)
    node.outputs[0] = plain
    index = next(i for i, other in enumerate(graph.nodes) if other is node)
    graph.nodes.insert(index + 1, gs.Node("Add", f"{name}_add", {}, [plain, bias], [biased]))
    return name
