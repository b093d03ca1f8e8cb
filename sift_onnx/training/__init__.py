"""Training of ONNX models in torch: import, and the way back into the file."""

from sift_onnx.training.importing.importer import to_torch
from sift_onnx.training.module import ImportedModule
from sift_onnx.training.registry import register_kernel
from sift_onnx.training.writing.file import write_back_file
from sift_onnx.training.writing.model import write_back

__all__ = ["ImportedModule", "register_kernel", "to_torch", "write_back", "write_back_file"]
