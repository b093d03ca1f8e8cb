"""MatMul and Gemm, with a constant matrix or of two values that are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.backends.lowering.dims import Dims
from sift_onnx.backends.lowering.rules.convolution import check_weights
from sift_onnx.backends.lowering.rules.moving import view_of_result
from sift_onnx.backends.lowering.rules.product_weights import weight_matrix
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step
from sift_onnx.backends.lowering.specs import BatchedMatmul, ChannelScale, Matmul, Reshaped, Spec, Transposed
from sift_onnx.backends.lowering.specs.products import dims_of_product
from sift_onnx.backends.lowering.weights import Floats, WeightMatrix

__all__ = ["gemm", "matmul"]


def matmul(node: NodeView) -> Step | tuple[Step, ...]:
    """X @ W, the rows of x being all of its axes but the last; W @ x; or x @ y of two values that are computed."""
    if node.constant(0) is not None and _is_computed(node, 1):
        return _weights_first(node)
    node.operand(0, "rows")
    if _is_computed(node, 1) or _is_stack(node, 1):
        return _product(node, (node.input(0), node.input(1)), (node.dims(0), node.dims(1)), 1.0)
    if len(node.dims(1)) == 1:
        return _by_vector(node)
    return node.step(Matmul(_weights(node, transposed=True), None), "rows")


def _by_vector(node: NodeView) -> tuple[Step, ...]:
    """X @ w, as the mean of a distribution over bins is made: a matrix of one column, whose axis is dropped."""
    dims = node.dims(0)
    values = node.array(1) if node.graph.fold(node.input(1)) else None
    if values is None or values.dtype != np.float32 or values.shape != dims[-1:]:
        raise NotLowered(f"the second operand {node.input(1)!r} is no constant vector of float32, one for each column")
    column = gs.Constant(node.between("column"), np.ascontiguousarray(values.reshape(-1, 1)))
    weights = WeightMatrix(column, 1, values.size, transposed=True)
    check_weights(node, weights)
    product = replace(node.step(Matmul(weights, None), "rows"), output=node.between("product"))
    spec = Reshaped(tuple((axis, axis + 1) for axis in range(len(dims) - 1)))
    view = view_of_result(node, node.output, dims[:-1])
    return product, Step(spec, (product.output,), node.output, "rows", view, (node.index,))


def _weights_first(node: NodeView) -> tuple[Step, ...]:
    """W @ x, of which the transpose is x^T @ W^T."""
    stored, dims = node.constant(0), node.dims(1)
    assert stored is not None
    shape = tuple(int(size) for size in stored.shape)
    view = node.operand(1, "rows")
    if len(shape) != 2 or 0 in shape:
        raise NotLowered(f"the first operand {node.input(0)!r} is no matrix, but {list(shape)}")
    if dims[-2] != shape[1]:
        raise NotLowered(f"the matrix takes {shape[1]} rows of the second operand, which has {dims[-2]}")
    weights = WeightMatrix(stored, *shape)
    check_weights(node, weights)
    turn = Transposed((*range(len(dims) - 2), len(dims) - 1, len(dims) - 2))
    specs: tuple[Spec, ...] = (turn, Matmul(weights, None), turn)
    names = (node.input(1), node.between("turned"), node.between("product"), node.output)
    return tuple(Step(spec, (names[i],), names[i + 1], view, "rows", (node.index,)) for i, spec in enumerate(specs))


def gemm(node: NodeView) -> Step | tuple[Step, ...]:
    """Alpha * x @ second + beta * bias, both as they are or transposed; the second is W, or computed."""
    node.operand(0, "rows")
    turned = [bool(node.attribute(name, 0)) for name in ("transA", "transB")]
    if len(node.dims(0)) != 2:
        raise NotLowered("its first operand is no matrix")
    alpha, beta = float(node.attribute("alpha", 1.0)), float(node.attribute("beta", 1.0))
    if not (np.isfinite(alpha) and np.isfinite(beta)):
        raise NotLowered(f"alpha {alpha}, beta {beta}")
    if _is_computed(node, 1):
        return _gemm_of_two(node, turned, alpha, beta)
    if turned[0]:
        raise NotLowered("its first operand is transposed")
    weights = _weights(node, transposed=not turned[1])
    if alpha != 1:
        weights = weights.scaled(np.full(weights.rows, alpha, np.float32))
    return node.step(Matmul(weights, _bias(node, weights.rows, beta)), "rows")


def _bias(node: NodeView, columns: int, beta: float) -> Floats | None:
    """Beta times the bias of a Gemm, one for each column; None where it has none."""
    if not node.input(2):
        return None
    values = node.array(2)
    if values is not None and values.size == 1:
        values = np.broadcast_to(values.reshape(-1), (columns,))
    elif values is None or values.shape not in ((columns,), (1, columns)):
        raise NotLowered(f"the bias {node.input(2)!r} is not one constant per column")
    if values.dtype != np.float32 or not np.isfinite(values).all():
        raise NotLowered(f"the bias {node.input(2)!r} holds what is no finite float")
    return np.ascontiguousarray(values.reshape(-1) * np.float32(beta))


def _gemm_of_two(node: NodeView, turned: Sequence[bool], alpha: float, beta: float) -> tuple[Step, ...]:
    steps: list[Step] = []
    names: list[str] = []
    dims: list[Dims] = []
    for position, is_turned in enumerate(turned):
        name, own = node.input(position), node.dims(position)
        view = node.operand(position, "rows")
        if is_turned:
            made = node.between(f"operand {position}")
            steps.append(Step(Transposed((1, 0)), (name,), made, view, "rows", (node.index,)))
            name, own = made, own[::-1]
        names.append(name)
        dims.append(own)
    product = _product(node, (names[0], names[1]), (dims[0], dims[1]), alpha)
    columns = dims[1][-1]
    if not node.input(2):
        return (*steps, product)
    if not isinstance(columns, int):
        raise NotLowered("the number of columns is unknown")
    bias = _bias(node, columns, beta)
    assert bias is not None
    shifted = node.step(ChannelScale(np.ones(columns, np.float32), bias), "rows")
    product = replace(product, output=node.between("product"))
    return (*steps, product, replace(shifted, inputs=(product.output,)))


def _is_computed(node: NodeView, position: int) -> bool:
    """Whether an operand differs from run to run, and is not made of integers."""
    name = node.input(position)
    is_known = name in node.graph.constants or name in node.graph.derived
    return not is_known and not node.is_dequantized(position)


def _is_stack(node: NodeView, position: int) -> bool:
    """Whether an operand is constant matrices, one for each of a batch, such as positions that each head projects."""
    name, dims = node.input(position), node.graph.dims(node.input(position))
    if dims is None or len(dims) < 3 or not node.graph.fold(name):
        return False
    return bool(np.dtype(node.graph.constants[name].dtype) == np.float32)


def _product(node: NodeView, names: tuple[str, str], dims: tuple[Dims, Dims], scale: float) -> Step:
    """The product of two values that are computed, or of one and a stack of constant matrices."""
    if node.input(1) not in node.graph.constants:
        node.operand(1, "rows")
    if node.is_dequantized(0):
        raise NotLowered("its operands are quantized; the kernels multiply two of them in attention only")
    depth, other = dims[0][-1], dims[1][-2]
    if depth != other and isinstance(depth, int) and isinstance(other, int):
        raise NotLowered(f"the first operand has {depth} columns, the second {other} rows")
    if any(isinstance(size, tuple) and size[0] == "sum" and size not in dims[0] for size in dims[1]):
        # A cache and the new tokens: to move all of it at every run would cost more than it saves.
        raise NotLowered("its second operand grows from run to run")
    *batch, _, _ = dims_of_product(*dims)
    known = {size for own in dims for size in own[:-2]} | {1}
    if not known.issuperset(batch):
        raise NotLowered("its batches are not known to be of one shape")
    return Step(BatchedMatmul(scale), names, node.output, "rows", "rows", (node.index,))


def _weights(node: NodeView, transposed: bool) -> WeightMatrix:
    weights = weight_matrix(node, transposed)
    if node.dims(0)[-1] != weights.columns:
        raise NotLowered(f"the operand's last axis is {node.dims(0)[-1]}, the matrix takes {weights.columns}")
    check_weights(node, weights)
    return weights
