"""What operators compute, whatever layout or kernel a back end chooses: one frozen dataclass per operator."""

from sift_onnx.backends.lowering.specs.activations import NO_ACTIVATION, RELU, Activation
from sift_onnx.backends.lowering.specs.attention import Attention, AttentionRoundings, Rounding
from sift_onnx.backends.lowering.specs.decoding import CachedAttention, CacheNames, MaskPart, Rotated, TableRows
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
    Range,
    Repeated,
    Reshaped,
    Sliced,
    Transposed,
)
from sift_onnx.backends.lowering.specs.normalizations import GroupNormalization, LayerNormalization, Softmax
from sift_onnx.backends.lowering.specs.pointwise import (
    BinaryFunction,
    ChannelCombine,
    ChannelScale,
    Elementwise,
    UnaryFunction,
)
from sift_onnx.backends.lowering.specs.products import BatchedMatmul
from sift_onnx.backends.lowering.specs.quantized import (
    ALL_BYTES,
    ByteShift,
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
from sift_onnx.backends.lowering.specs.result_dims import Spec, result_dims
from sift_onnx.backends.lowering.specs.selection import (
    ArgExtreme,
    CastIntegers,
    GatherElements,
    GatherRows,
    ReduceExtreme,
    TopK,
)
from sift_onnx.backends.lowering.specs.windows import Geometry, Pair, Pool

__all__ = [
    "ALL_BYTES",
    "NO_ACTIVATION",
    "RELU",
    "Activation",
    "ArgExtreme",
    "Attention",
    "AttentionRoundings",
    "BatchedMatmul",
    "BinaryFunction",
    "ByteShift",
    "ByteTable",
    "CacheNames",
    "CachedAttention",
    "CastIntegers",
    "ChannelCombine",
    "ChannelScale",
    "Channels",
    "Conv",
    "DepthToSpace",
    "Depthwise",
    "Dequantize",
    "DynamicQuantize",
    "Elementwise",
    "GatherElements",
    "GatherRows",
    "Geometry",
    "GlobalPool",
    "GridSample",
    "GroupNormalization",
    "Joined",
    "LayerNormalization",
    "LinearLayer",
    "LinearResize",
    "MaskPart",
    "Matmul",
    "Moving",
    "OpenJoined",
    "Pair",
    "PixelCopy",
    "Pool",
    "Quantize",
    "QuantizedAdd",
    "QuantizedAverage",
    "QuantizedConv",
    "QuantizedMatmul",
    "QuantizedMean",
    "Range",
    "Recurrent",
    "ReduceExtreme",
    "Repeated",
    "Reshaped",
    "Rotated",
    "Rounding",
    "Sliced",
    "Softmax",
    "Spec",
    "TableRows",
    "TopK",
    "Transposed",
    "UnaryFunction",
    "result_dims",
]
