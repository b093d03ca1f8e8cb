"""From a node of the model to a kernel spec: one file per family of operators."""

from sift_onnx.backends.lowering.rules.lower import lower_node
from sift_onnx.backends.lowering.rules.step import NotLowered, Step, View, operand_view

__all__ = ["NotLowered", "Step", "View", "lower_node", "operand_view"]
