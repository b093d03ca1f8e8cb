"""MatMul and Gemm with a constant matrix."""

from __future__ import annotations

import numpy as np

from sift_onnx.backends.lowering.rules.convolution import check_weights
from sift_onnx.backends.lowering.rules.product_weights import weight_matrix
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
    weights = weight_matrix(node, transposed)
    if node.dims(0)[-1] != weights.columns:
        raise NotLowered(f"the operand's last axis is {node.dims(0)[-1]}, the matrix takes {weights.columns}")
    check_weights(node, weights)
    return weights
