"""From a node of the model to a kernel spec: one file per family of operators."""

from sift_onnx.backends.lowering.rules.lower import lower_node
from sift_onnx.backends.lowering.rules.quantize import byte_function
from sift_onnx.backends.lowering.rules.quantized_layers import integer_layer
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step, View, operand_view

__all__ = ["NodeView", "NotLowered", "Step", "View", "byte_function", "integer_layer", "lower_node", "operand_view"]
