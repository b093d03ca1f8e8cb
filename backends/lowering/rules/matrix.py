"""MatMul and Gemm with a constant matrix."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.backends.lowering.rules.convolution import check_weights
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step
from sift_onnx.backends.lowering.specs import Matmul
from sift_onnx.backends.lowering.weights import WeightMatrix

__all__ = ["gemm", "matmul"]


def matmul(node: NodeView) -> Step:
    """X @ W, the rows of x being all of its axes but the last."""
    node.operand(0, "rows")
    return node.step(Matmul(_weights(node, transposed=True), None), "rows")


def gemm(node: NodeView) -> Step:
    """Alpha * x @ W + beta * bias, W as it is or transposed."""
    node.operand(0, "rows")
    if node.attribute("transA", 0):
        raise NotLowered("its first operand is transposed")
    if len(node.dims(0)) != 2:
        raise NotLowered("its first operand is no matrix")
    weights = _weights(node, transposed=not node.attribute("transB", 0))
    alpha, beta = float(node.attribute("alpha", 1.0)), float(node.attribute("beta", 1.0))
    if not (np.isfinite(alpha) and np.isfinite(beta)):
        raise NotLowered(f"alpha {alpha}, beta {beta}")
    if alpha != 1:
        weights = weights.scaled(np.full(weights.rows, alpha, np.float32))
    bias = None
    if node.input(2):
        values = node.array(2)
        if values is not None and values.size == 1:
            values = np.broadcast_to(values.reshape(-1), (weights.rows,))
        elif values is None or values.shape not in ((weights.rows,), (1, weights.rows)):
            raise NotLowered(f"the bias {node.input(2)!r} is not one constant per column")
        if values.dtype != np.float32 or not np.isfinite(values).all():
            raise NotLowered(f"the bias {node.input(2)!r} holds what is no finite float")
        bias = np.ascontiguousarray(values.reshape(-1) * np.float32(beta))
    return node.step(Matmul(weights, bias), "rows")


def _weights(node: NodeView, transposed: bool) -> WeightMatrix:
    constant, is_transposed = _constant_matrix(node)
    shape = tuple(int(n) for n in constant.shape)
    if len(shape) != 2 or 0 in shape:
        raise NotLowered(f"the second operand {node.input(1)!r} is no matrix, but {list(shape)}")
    transposed ^= is_transposed
    columns, rows = shape if transposed else shape[::-1]
    if node.dims(0)[-1] != columns:
        raise NotLowered(f"the operand's last axis is {node.dims(0)[-1]}, the matrix takes {columns}")
    weights = WeightMatrix(constant, rows, columns, transposed)
    check_weights(node, weights)
    return weights


def _constant_matrix(node: NodeView) -> tuple[gs.Constant, bool]:
    """The constant, and whether a Transpose lies between it and the node, as exporters that fold nothing have it."""
    constant = node.constant(1)
    if constant is not None:
        return constant, False
    producer = node.graph.producers.get(node.input(1))
    if producer is not None:
        turn = node.graph.nodes[producer]
        constant = node.graph.constants.get(turn.input[0]) if turn.op_type == "Transpose" else None
        orders = [list(a.ints) for a in turn.attribute if a.name == "perm"] or [[1, 0]]
        if constant is not None and orders == [[1, 0]]:
            return constant, True
    raise NotLowered(f"the second operand {node.input(1)!r} is {node.why_not_constant(1)}")
