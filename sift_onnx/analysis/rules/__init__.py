"""One rule per operator family: what the operator says about the sizes of its tensors.

A rule gets a :class:`~sift_onnx.analysis.rule_context.RuleContext`, states equations between input sizes, and sets the
axes of the outputs. Importing this package registers the rules of all families.
"""

from sift_onnx.analysis.rules import (  # noqa: F401
    attention,
    control_flow,
    convolution,
    einsum,
    elementwise,
    indexing,
    joining,
    layout,
    matrix,
    normalization,
    onnxruntime_attention,
    onnxruntime_fusions,
    pooling,
    preprocessing,
    quantization,
    recurrent,
    resampling,
    rotary_embedding,
    shape_values,
    slicing,
)
