"""All specs, and how the sizes of a result follow from its operands', known or not yet known."""

from __future__ import annotations

from functools import lru_cache

from sift_onnx.backends.lowering.dims import Dim, Dims, broadcast, product, quotient
from sift_onnx.backends.lowering.specs.attention import Attention
from sift_onnx.backends.lowering.specs.decoding import CachedAttention, Rotated, TableRows
from sift_onnx.backends.lowering.specs.images import (
    Channels,
    DepthToSpace,
    GlobalPool,
    GridSample,
    LinearResize,
    PixelCopy,
)
from sift_onnx.backends.lowering.specs.layers import Conv, Depthwise, LinearLayer, Matmul
from sift_onnx.backends.lowering.specs.moving import (
    Joined,
    Moving,
    OpenJoined,
    OpenSliced,
    Repeated,
    Reshaped,
    Sliced,
    Transposed,
    is_pair,
)
from sift_onnx.backends.lowering.specs.normalizations import (
    CumulativeSum,
    GroupNormalization,
    LayerNormalization,
    Softmax,
)
from sift_onnx.backends.lowering.specs.pointwise import ChannelCombine, ChannelScale, Elementwise
from sift_onnx.backends.lowering.specs.products import BatchedMatmul, dims_of_product
from sift_onnx.backends.lowering.specs.quantized import (
    ByteTable,
    Dequantize,
    DynamicQuantize,
    Quantize,
    QuantizedAdd,
    QuantizedAverage,
    QuantizedConv,
    QuantizedMatmul,
    QuantizedMean,
)
from sift_onnx.backends.lowering.specs.recurrent import Recurrent
from sift_onnx.backends.lowering.specs.selection import (
    ArgExtreme,
    CastIntegers,
    GatherElements,
    GatherRows,
    ReduceExtreme,
    ScatterElements,
    TopK,
    dims_of_extreme,
)
from sift_onnx.backends.lowering.specs.windows import Pair, Pool

__all__ = ["Spec", "result_dims"]


Spec = (
    LinearLayer
    | Recurrent
    | Pool
    | GlobalPool
    | Elementwise
    | ChannelCombine
    | ChannelScale
    | Channels
    | DepthToSpace
    | PixelCopy
    | LinearResize
    | GridSample
    | LayerNormalization
    | GroupNormalization
    | Softmax
    | CumulativeSum
    | Attention
    | CachedAttention
    | BatchedMatmul
    | Rotated
    | TableRows
    | ArgExtreme
    | ReduceExtreme
    | TopK
    | GatherElements
    | GatherRows
    | ScatterElements
    | CastIntegers
    | Moving
    | Quantize
    | Dequantize
    | DynamicQuantize
    | QuantizedMatmul
    | QuantizedAdd
    | QuantizedAverage
    | QuantizedMean
    | ByteTable
)


def result_dims(spec: Spec, dims: Dims, second: Dims | None = None) -> Dims:
    """Sizes of the result for an operand of ``dims``, and another one where there is one, as ONNX has them."""
    match spec:
        # What transformers have most of comes first: a plan asks for hundreds of results.
        case Matmul():
            return (*dims[:-1], spec.weights.rows)
        case Reshaped(axes=axes) if axes is not None:
            return _reshaped(axes, dims)
        case Transposed():
            return tuple(dims[axis] for axis in spec.order)
        case LayerNormalization():
            return dims
        case Conv():
            convolved: Dims = (dims[0], spec.weights.rows, *spec.geometry.positions(dims))
            if spec.block != (1, 1):
                return result_dims(DepthToSpace(spec.block), convolved)
            return convolved if spec.pool is None else result_dims(spec.pool, convolved)
        case Depthwise():
            return (*dims[:2], *spec.geometry.positions(dims))
        case Pool():
            return (*dims[:2], *spec.geometry.positions(dims, spec.ceil_mode))
        case GlobalPool():
            pooled = [1 if axis in spec.axes else size for axis, size in enumerate(dims)]
            return tuple(size for axis, size in enumerate(pooled) if spec.keep_axes or axis not in spec.axes)
        case QuantizedConv():
            return (dims[0], spec.weights.rows, *spec.geometry.positions(dims))
        case QuantizedMatmul():
            return (*dims[:-1], spec.weights.rows)
        case Recurrent():
            return (*dims[:-1], spec.channels)
        case QuantizedAverage():
            return result_dims(spec.pool, dims)
        case QuantizedMean():
            return (*dims[:2], 1, 1) if spec.keep_axes else dims[:2]
        case Channels():
            return (*dims[: spec.axis], len(spec.taken), *dims[spec.axis + 1 :])
        case DepthToSpace():
            height, width = spec.block
            channels = quotient(dims[1], height * width)
            return (dims[0], channels, product((dims[2], height)), product((dims[3], width)))
        case Elementwise(broadcasts=True) if second is not None:
            return (*dims[:2], *map(broadcast, dims[2:], second[2:]))
        case PixelCopy(follows=True) | LinearResize(follows=True) if second is not None:
            return (*dims[:2], *second[2:])
        case GridSample() if second is not None:
            return (*dims[:2], *second[1:3])
        case PixelCopy() | LinearResize():
            return (*dims[:2], spec.height.size_of(dims[2]), spec.width.size_of(dims[3]))
        case Attention():
            return (*dims[:-1], spec.value_depth)
        case BatchedMatmul() if second is not None:
            return dims_of_product(dims, second)
        case CachedAttention():
            return (*dims[:-1], spec.value_depth * (1 if spec.is_parted else spec.heads))
        case TableRows():
            rows = dims if spec.kind == "positions" else (*dims, spec.tokens)
            return (*rows, spec.table.shape[1])
        case ArgExtreme() | ReduceExtreme():
            return dims_of_extreme(spec, dims)
        case TopK(axis=axis):
            return tuple(spec.k if place == axis % len(dims) else size for place, size in enumerate(dims))
        case GatherElements(axis=axis) if second is not None:
            return tuple(second[i] if i == axis % len(dims) else size for i, size in enumerate(dims))
        case GatherRows():
            return (*(dims[:-1] if spec.drops else dims), *spec.sizes)
        case ScatterElements(axis=axis, size=size):
            return (*dims[:axis], size, *dims[axis + 1 :])
        case Sliced():
            left: list[Dim] = list(dims)
            for taken in spec.ranges:
                left[taken.axis] = taken.count(dims[taken.axis])
            dropped = {taken.axis for taken in spec.ranges} if spec.drops else set()
            return tuple(size for axis, size in enumerate(left) if axis not in dropped)
        case OpenSliced():
            counts = {taken.axis: taken.count for taken in spec.ranges}
            return tuple(counts.get(axis, size) for axis, size in enumerate(dims))
        case Repeated(sizes=sizes):
            repeated = dict(sizes)
            return tuple(repeated.get(axis, size) for axis, size in enumerate(dims))
        case Joined(axis=axis) | OpenJoined(axis=axis):
            return (*dims[:axis], spec.size, *dims[axis + 1 :])
        case _:
            return dims


# Layers that follow each other split and join heads of the same sizes.
@lru_cache(maxsize=256)
def _reshaped(axes: tuple[Dim | Pair, ...], dims: Dims) -> Dims:
    target = [product(dims[slice(*axis)]) if is_pair(axis) else axis for axis in axes]
    rest = quotient(product(dims), product(size for size in target if size != -1))
    return tuple(rest if size == -1 else size for size in target)
