"""The CPU back end behind ``onnx.backend.base``; see :mod:`sift_onnx.compat.onnx_backend`."""

from sift_onnx.compat.onnx_backend import (
    SiftBackend,
    SiftBackendRep,
    is_compatible,
    prepare,
    run_model,
    run_node,
    supports_device,
)

__all__ = [
    "SiftBackend",
    "SiftBackendRep",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]
