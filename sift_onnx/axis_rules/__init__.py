"""One rule per operator family: what the operator says about the sizes of its tensors.

A rule gets a :class:`~sift_onnx.axis_rules.context.RuleContext`, states equations between input sizes, and sets the
axes of the outputs. :func:`~sift_onnx.axis_rules.analysis.analyze` runs the rules over a graph.
"""

from sift_onnx.axis_rules import (
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
from sift_onnx.axis_rules.analysis import analyze
from sift_onnx.axis_rules.context import RuleContext
from sift_onnx.axis_rules.findings import AttentionGrowth, AxisAnalysis, Cause, WeightLayer
from sift_onnx.axis_rules.registry import axis_rule, register_axis_rule

__all__ = [
    "AttentionGrowth",
    "AxisAnalysis",
    "Cause",
    "RuleContext",
    "WeightLayer",
    "analyze",
    "axis_rule",
    "register_axis_rule",
]

# Importing a family registers its rules.
_FAMILIES = (
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
