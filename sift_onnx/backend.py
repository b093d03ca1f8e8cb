"""The CPU back end behind ``onnx.backend.base``; see :mod:`sift_onnx.compat.onnx_backend`."""

from sift_onnx.compat.onnx_backend import *  # noqa: F403
from sift_onnx.compat.onnx_backend import __all__ as __all__
