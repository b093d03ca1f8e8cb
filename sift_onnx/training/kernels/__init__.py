"""Torch kernels of ONNX operators, one file per family; importing this registers them."""

from sift_onnx.training.kernels import (  # noqa: F401
    activation,
    arithmetic,
    casting,
    convolution,
    creation,
    dropout,
    indexing,
    joining,
    layout,
    logic,
    matrix,
    normalization,
    padding,
    pooling,
    reduction,
    resampling,
    scatter,
)
