"""What exporters compute of shapes, as expressions of the axes that are known before a run."""

from sift_onnx.backends.lowering.sizes.dims_of_results import reshaped
from sift_onnx.backends.lowering.sizes.follow import Sizes

__all__ = ["Sizes", "reshaped"]
