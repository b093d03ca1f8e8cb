"""Training of ONNX models in torch: import, and the way back into the file."""

from sift_onnx.training.importing.importer import to_torch
from sift_onnx.training.module import ImportedModule
from sift_onnx.training.registry import register_kernel
from sift_onnx.training.sparse_layers.choices import LayerChoice
from sift_onnx.training.sparse_layers.rows import layer_rows
from sift_onnx.training.sparse_layers.sparsify import densify_layers, sparsify_layers
from sift_onnx.training.writing.file import write_back_file
from sift_onnx.training.writing.model import write_back

__all__ = [
    "ImportedModule",
    "LayerChoice",
    "densify_layers",
    "layer_rows",
    "register_kernel",
    "sparsify_layers",
    "to_torch",
    "write_back",
    "write_back_file",
]
