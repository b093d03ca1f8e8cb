"""Weights from the model into the form that the kernels take."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.lowering.specs import QuantizedConv, QuantizedMatmul
from sift_onnx.backends.lowering.weights import Floats, ValueType, WeightMatrix
from sift_onnx.weights.sparse import SparseWeight

__all__ = [
    "LIVE_BELOW",
    "SPARSE_BELOW",
    "WEIGHT_VALUES",
    "packed_rows",
    "packed_weights",
    "pays",
    "quad_weights",
    "read_weights",
    "rounds_activations",
]

# Above this density the sparse kernels are no faster than onnxruntime's dense ones: of their 110 GFLOP/s (of active
# weights, paired rows) against its 95, per core of 117 at most, a few per cent are left, and the border costs more.
SPARSE_BELOW = 0.75
# The same of the quads of int8 weights. A live quad takes what a quad takes in onnxruntime; what is between layers, and
# the tables and sums that need no pass of their own, are the gain.
LIVE_BELOW = 0.9
# How weights of products may be held: names of the option, and of the kernels.
WEIGHT_VALUES: dict[str, ValueType] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}


def pays(matrix: WeightMatrix) -> bool:
    """Whether kernels may gain from weights: enough are zero, or their values take fewer bytes than onnxruntime's."""
    return matrix.active_share <= SPARSE_BELOW or matrix.values != "float32"


def rounds_activations(matrix: WeightMatrix) -> bool:
    """Whether activations may have 16 bits: where the back end was asked for int8 weights, which lose far more.

    What a model stores as int8 is multiplied by its activations as floats.
    """
    return matrix.values == "int8" and not matrix.is_stored


def read_weights(matrices: Iterable[WeightMatrix], threads: int) -> None:
    """Count and check the values of matrices, several at once; sparse ones are packed from the same read."""
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(_read, matrices))


def _read(matrix: WeightMatrix) -> None:
    weight = matrix.active_weights()
    if weight is not None:
        _, is_finite = _kernels.count_weights(np.ascontiguousarray(weight.values, np.float32))
        matrix.record(weight.nnz, is_finite)
        return
    stored = matrix.stored()
    matrix.record(*_kernels.count_weights(stored, matrix.mask_bits()))
    if matrix.is_finite and matrix.nnz <= SPARSE_BELOW * matrix.size:
        matrix.reading.packed = _packed_from(matrix, stored)


def packed_weights(matrix: WeightMatrix) -> _kernels.SparseWeights:
    """The active weights of float32, as the kernels take them."""
    packed = matrix.reading.packed
    if not isinstance(packed, _kernels.SparseWeights):
        weight = matrix.active_weights()
        packed = _packed_from(matrix, matrix.stored()) if weight is None else _packed_from_active(matrix, weight)
    return packed if matrix.scale is None else packed.scaled(matrix.scale)


def packed_rows(matrix: WeightMatrix, isa: str) -> _kernels.PackedRows:
    """The active weights in fewer bits, as ``matrix.values`` has it, for kernels of an instruction set."""
    scale = matrix.scale
    if matrix.values == "int8" and matrix.steps is None:
        return _kernels.PackedRows(packed_weights(matrix), "int8", isa=isa)
    unscaled = packed_weights(replace(matrix, scale=None))
    if matrix.steps is None:
        return _kernels.PackedRows(unscaled, matrix.values, scale, isa=isa)
    steps = matrix.steps if scale is None else matrix.steps * scale.reshape(-1, *(1,) * (matrix.steps.ndim - 1))
    return _kernels.PackedRows(unscaled, matrix.values, steps, matrix.group, isa=isa)


def _packed_from(matrix: WeightMatrix, stored: Floats) -> _kernels.SparseWeights:
    return _kernels.SparseWeights.from_dense(matrix.rows, matrix.columns, stored, matrix.transposed, matrix.mask_bits())


def _packed_from_active(matrix: WeightMatrix, weight: SparseWeight) -> _kernels.SparseWeights:
    indices, active = weight.indices.astype(np.int64), np.ascontiguousarray(weight.values, np.float32)
    if matrix.transposed:
        columns, rows = np.divmod(indices, matrix.rows)
        # 16 bits are sorted by their digits, in a tenth of the time.
        order = np.argsort(rows.astype(np.uint16) if matrix.rows <= 1 << 16 else rows, kind="stable")
        indices, active = (rows * matrix.columns + columns)[order], active[order]
    return _kernels.SparseWeights.from_indices(matrix.rows, matrix.columns, indices, active)


def quad_weights(spec: QuantizedMatmul) -> _kernels.QuadWeights:
    """The weights of a layer as the kernels take them: quads that are all zero are left out."""
    weights = spec.weights
    values = weights.values()
    if not isinstance(spec, QuantizedConv):
        return _kernels.QuadWeights(values.reshape(weights.rows, weights.channels))
    shaped = values.reshape(weights.rows, weights.channels, *spec.geometry.kernel)
    return _kernels.QuadWeights(shaped, groups=spec.groups)
