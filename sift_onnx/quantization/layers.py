"""Masks and live quads of the layers of a quantized model, beside those of the original."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.analysis.cost import inspect
from sift_onnx.errors import CheckError
from sift_onnx.graphs.constants import array_of, sparse_weight_of
from sift_onnx.model import Model
from sift_onnx.records.quantization import LayerQuantization

__all__ = ["check_masks", "quantized_layer_records"]

Mask = npt.NDArray[np.bool_]


def check_masks(before: Model, after: Model) -> int:
    """Check that all masks are the same, and that pruned weights are exactly zero.

    Weights are quantized symmetrically, so zero is the zero point. A quantizer may transpose a matrix.

    Returns:
        How many masks there are.

    Raises:
        CheckError: one is not.
    """
    kept = {name: _mask(constant) for name, constant in after.masked().items()}
    for name, constant in before.masked().items():
        wanted = _mask(constant)
        same = [own for own, mask in kept.items() if name in own and _is_same(wanted, mask)]
        if not same:
            raise CheckError(
                f"the quantized model does not have the mask of {name!r}; keep that layer in floating point "
                f"(`keep_float={name!r}`)"
            )
        for own in same:
            if array_of(after.initializers()[own])[~kept[own]].any():
                raise CheckError(f"pruned weights of {own!r} are not zero in the quantized model")
    return len(before.masked())


def _is_same(wanted: Mask, found: Mask) -> bool:
    if wanted.shape == found.shape and bool((wanted == found).all()):
        return True
    return wanted.ndim == 2 and wanted.T.shape == found.shape and bool((found == wanted.T).all())


def _mask(constant: gs.Constant) -> Mask:
    weight = sparse_weight_of(constant)
    shape = tuple(array_of(constant).shape)
    mask = np.zeros(math.prod(shape), np.bool_)
    if weight is not None:
        mask[weight.indices] = True
    return mask.reshape(shape)


def quantized_layer_records(model: Model, input_shapes: Mapping[str, Any] | None = None) -> list[LayerQuantization]:
    """The weight layers of a quantized model; integers are symmetric.

    Args:
        model: from onnxruntime's quantizer.
        input_shapes: sizes of dynamic axes.
    """
    initializers = model.initializers()
    records = []
    for layer in inspect(model, input_shapes).layers:
        array = array_of(initializers[layer.name]) if layer.name in initializers else None
        is_integer = array is not None and array.dtype.kind == "i"
        zeros = 0
        if array is not None and is_integer:
            zeros = max(0, layer.nnz - int(np.count_nonzero(array)))
        records.append(
            LayerQuantization(
                name=layer.name,
                op=layer.op,
                shape=layer.shape,
                type=str(array.dtype) if array is not None else "unknown",
                params=layer.params,
                nnz=layer.nnz,
                sparsity=layer.sparsity,
                zeros=zeros,
                live_quads=layer.live_quads,
            )
        )
    return records
