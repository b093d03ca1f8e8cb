"""Torch kernels of ONNX operators, one file per family; importing this registers them."""

import sys

from sift_onnx.training.kernels import (  # noqa: F401
    activation,
    arithmetic,
    attention,
    casting,
    control_flow,
    convolution,
    creation,
    detection,
    dropout,
    indexing,
    layout,
    loss,
    matrix,
    normalization,
    onnxruntime_fusions,
    padding,
    pooling,
    quantization,
    recurrent,
    reduction,
    region_alignment,
    resampling,
    sequences,
    signal,
)

# Pickles of modules name kernels by the module that older builds had them in.
sys.modules |= {
    "sift_onnx.training.kernels.joining": layout,
    "sift_onnx.training.kernels.scatter": indexing,
    "sift_onnx.training.kernels.selection": indexing,
    "sift_onnx.training.lowering": casting,
}
