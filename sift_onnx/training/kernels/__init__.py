"""Torch kernels of ONNX operators, one file per family; importing this registers them."""

from sift_onnx.training.kernels import (  # noqa: F401
    attention,
    control_flow,
    creation,
    dropout,
    loss,
    matrix,
    normalization,
    onnxruntime_fusions,
    quantization,
    recurrent,
    reduction,
    sequences,
    signal,
)
from sift_onnx.training.kernels.data_movement import (  # noqa: F401
    indexing,
    joining,
    layout,
    padding,
    scatter,
    selection,
)
from sift_onnx.training.kernels.elementwise import activation, arithmetic, casting, logic  # noqa: F401
from sift_onnx.training.kernels.released_names import alias_released_modules
from sift_onnx.training.kernels.spatial import (  # noqa: F401
    convolution,
    detection,
    pooling,
    region_alignment,
    resampling,
)

alias_released_modules()
