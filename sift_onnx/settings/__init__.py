"""Values from outside, recipes and documents say, as the types that the code declares."""

from sift_onnx.settings.convert import convert

__all__ = ["convert"]
