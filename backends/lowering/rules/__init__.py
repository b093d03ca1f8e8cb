"""From a node of the model to a kernel spec: one file per family of operators."""

from sift_onnx.backends.lowering.rules.lower import lower_node
from sift_onnx.backends.lowering.rules.step import NotLowered, Step, View, check_type

__all__ = ["NotLowered", "Step", "View", "check_type", "lower_node"]
