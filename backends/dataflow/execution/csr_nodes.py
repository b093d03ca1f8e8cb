"""ONNX nodes whose weight is executed as CSR: convolutions and matrix products with a stored weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.backends.dataflow.execution.csr_kernels import CsrMatrix, im2col, output_sizes
from sift_onnx.graphs.constants import array_of, shape_of, sparse_weight_of
from sift_onnx.operators.domains import is_standard
from sift_onnx.operators.windows import explicit_pads
from sift_onnx.weights.sparse import SparseWeight

__all__ = ["CsrNode", "csr_node"]

Array = npt.NDArray[Any]
Multiply = Callable[[CsrMatrix, Array], Array]
# What a node does: from its input arrays by name, and a way to multiply, to its output.
CsrNode = Callable[[Mapping[str, Array], Multiply], Array]

# Floats of im2col that are held at once.
_IM2COL = 1 << 25


def csr_node(node: gs.Node) -> CsrNode | str:
    """How to execute ``node`` as CSR; where it cannot be, the reason."""
    if not is_standard(node.domain):
        return f"operators of {node.domain} are not executed as CSR"
    make = {"Conv": _conv, "Gemm": _matrix_product, "MatMul": _matrix_product}.get(node.op)
    return f"{node.op} is not executed as CSR" if make is None else make(node)


def _stored(tensor: gs.Tensor, axes: int | None = None) -> SparseWeight | None:
    if not isinstance(tensor, gs.Constant) or (axes is not None and len(shape_of(tensor)) != axes):
        return None
    weight = sparse_weight_of(tensor)
    if weight is None:
        weight = SparseWeight.from_dense(array_of(tensor))
        if not weight.nnz:
            # As in the workload: an all-zero weight without a mask is one that is still to be trained.
            weight = SparseWeight.from_dense(array_of(tensor), np.arange(weight.size))
    return weight


def _transposed(weight: SparseWeight, transpose: bool) -> CsrMatrix:
    """``[output features, input features]`` of a weight that is stored so, or (``transpose``) the other way round."""
    a, b = np.divmod(weight.indices.astype(np.int64), weight.shape[1])
    if transpose:
        return CsrMatrix.of(b, a, weight.values, weight.shape[1], weight.shape[0])
    return CsrMatrix.of(a, b, weight.values, *weight.shape)


def _conv(node: gs.Node) -> CsrNode | str:
    weight = _stored(node.inputs[1])
    if weight is None:
        return "its kernel is computed, not stored"
    groups = int(node.attrs.get("group", 1))
    out, fan_in, *kernel = weight.shape
    inner = fan_in * math.prod(kernel)
    o, local = np.divmod(weight.indices.astype(np.int64), max(inner, 1))
    columns = local + (o // max(1, out // groups)) * inner
    matrix = CsrMatrix.of(o, columns, weight.values, out, groups * inner)

    def run(arrays: Mapping[str, Array], multiply: Multiply) -> Array:
        x = _operand(node.inputs[0], arrays)
        strides = node.attrs.get("strides") or [1] * len(kernel)
        dilations = node.attrs.get("dilations") or [1] * len(kernel)
        pads = explicit_pads(
            node.attrs.get("auto_pad", "NOTSET"), node.attrs.get("pads") or (), x.shape[2:], kernel, strides, dilations
        )
        sizes = output_sizes(x.shape[2:], kernel, strides, dilations, pads)
        y = np.empty((x.shape[0], out, *sizes), x.dtype)
        # Image by image, or as many as fit: the im2col matrix is taps times as large as the input.
        images = max(1, _IM2COL // max(1, matrix.width * math.prod(sizes)))
        for begin in range(0, len(x), images):
            some = x[begin : begin + images]
            product = multiply(matrix, im2col(some, kernel, strides, dilations, pads))
            y[begin : begin + images] = np.moveaxis(product.reshape(out, len(some), *sizes), 0, 1)
        bias = _optional(node, 2, arrays)
        if bias is not None:
            y += bias.reshape(-1, *[1] * len(kernel)).astype(y.dtype)
        return y

    return run


def _matrix_product(node: gs.Node) -> CsrNode | str:
    """A Gemm; or a MatMul, which has neither its attributes nor a bias, and whose rows are all axes but the last."""
    weight = _stored(node.inputs[1], 2)
    if weight is None:
        return "its second operand is not a stored matrix"
    matrix = _transposed(weight, not node.attrs.get("transB", 0))

    def run(arrays: Mapping[str, Array], multiply: Multiply) -> Array:
        a = _operand(node.inputs[0], arrays)
        x = a.T if node.attrs.get("transA", 0) else a
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        product = multiply(matrix, np.ascontiguousarray(rows.T))
        y: Array = np.ascontiguousarray(product.T).reshape(*x.shape[:-1], len(product)).astype(a.dtype)
        y = y * y.dtype.type(node.attrs.get("alpha", 1.0))
        c = _optional(node, 2, arrays)
        if c is not None:
            y = y + c.astype(y.dtype) * y.dtype.type(node.attrs.get("beta", 1.0))
        return y

    return run


def _optional(node: gs.Node, index: int, arrays: Mapping[str, Array]) -> Array | None:
    if len(node.inputs) <= index or not node.inputs[index].name:
        return None
    return _operand(node.inputs[index], arrays)


def _operand(tensor: gs.Tensor, arrays: Mapping[str, Array]) -> Array:
    return array_of(tensor) if isinstance(tensor, gs.Constant) else arrays[tensor.name]
