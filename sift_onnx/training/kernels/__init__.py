"""Torch kernels of ONNX operators, one file per family; importing this registers them."""

from sift_onnx.training.kernels import (  # noqa: F401
    activation,
    arithmetic,
    attention,
    casting,
    control_flow,
    convolution,
    creation,
    dropout,
    indexing,
    joining,
    layout,
    logic,
    loss,
    matrix,
    normalization,
    onnxruntime_fusions,
    quantization,
    recurrent,
    reduction,
    scatter,
    selection,
    sequences,
    signal,
)
from sift_onnx.training.kernels.images import detection, padding, pooling, region_alignment, resampling  # noqa: F401
