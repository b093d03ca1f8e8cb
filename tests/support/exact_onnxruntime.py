"""onnxruntime's results of quantized models without the saturation that it has on processors without VNNI."""

from dataclasses import replace

import onnx
from sparse_nets import ONE_THREAD

from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram
from sift_onnx.errors import BackendError


def exact_onnxruntime(model: onnx.ModelProto) -> OnnxRuntimeProgram:
    """A program of onnxruntime whose sums of products of bytes have 32 bits, for any processor."""
    try:
        return OnnxRuntimeProgram(model, replace(ONE_THREAD, exact_integers=True))
    except BackendError:
        # Of models with activations of s8, or with zero points that layers share, onnxruntime 1.32 makes what it
        # has no kernels for when it is to be exact.
        return OnnxRuntimeProgram(model, ONE_THREAD)
