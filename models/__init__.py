"""The paper's architectures in torch, and their export to ONNX.

Importing this package does not import torch; building and exporting a model does.
"""

from sift_onnx.models.export import Export, export
from sift_onnx.models.registry import ARCHITECTURES, Architecture, build

__all__ = ["ARCHITECTURES", "Architecture", "Export", "build", "export"]
