"""Which weights may be active together: unstructured, N:M, transposable N:M, and block masks."""

from sift_onnx.patterns.pattern import UNSTRUCTURED, Pattern
from sift_onnx.patterns.weight_matrix import WeightMatrix

__all__ = ["UNSTRUCTURED", "Pattern", "WeightMatrix"]
