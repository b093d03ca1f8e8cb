"""Conv and BatchNormalization."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.backends.lowering.rules.flat_images import FlatImages
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step
from sift_onnx.backends.lowering.rules.window import window_of
from sift_onnx.backends.lowering.specs import ChannelScale, Conv, Depthwise
from sift_onnx.backends.lowering.weights import WeightMatrix

__all__ = ["batch_normalization", "check_weights", "convolution", "weights_of_images"]


def convolution(node: NodeView) -> Step:
    """Conv with constant weights over two axes."""
    constant, shape = weights_of_images(node)
    rows, group_channels, *kernel = shape
    groups = int(node.attribute("group", 1))
    channels = node.dims(0)[1]
    if channels != group_channels * groups or not rows or rows % groups:
        raise NotLowered(f"weights of {list(shape)} in {groups} groups, for {channels} channels")
    weights = WeightMatrix(constant, rows, group_channels * kernel[0] * kernel[1])
    check_weights(node, weights)
    bias = node.float_vector(2, rows, "the bias") if node.input(2) else None
    geometry = window_of(node, (kernel[0], kernel[1]))
    if group_channels == 1 and groups == rows:
        return node.step(Depthwise(weights, bias, geometry), "image")
    return node.step(Conv(weights, bias, geometry, groups), "image")


def weights_of_images(node: NodeView) -> tuple[gs.Constant, tuple[int, ...]]:
    """The constant weights of a convolution over two axes, and their four sizes.

    Raises:
        NotLowered: they are no constant, or of another rank.
    """
    node.operand(0, "image")
    if node.input(1) in node.graph.derived:
        node.graph.fold(node.input(1))
    constant = node.constant(1)
    if constant is None:
        raise NotLowered(f"the weights {node.input(1)!r} are {node.why_not_constant(1)}")
    shape = tuple(int(n) for n in constant.shape)
    if len(shape) == 3 and isinstance(node, FlatImages):
        shape = (*shape[:2], 1, shape[2])
    if len(shape) != 4:
        raise NotLowered(f"a convolution over {len(shape) - 2} axes; the kernels are two-dimensional")
    return constant, shape


def check_weights(node: NodeView, weights: WeightMatrix) -> None:
    """Leave weights to onnxruntime that the kernels cannot have.

    Raises:
        NotLowered: they are of another type, or not finite: a zero that is left out would hide 0 x inf = NaN.
    """
    stored = np.dtype(weights.constant.dtype)
    if stored != weights.dtype.numpy and weights.values == "float32":
        raise NotLowered(f"the weights {weights.name!r} are {stored}; the kernels are for {weights.dtype.numpy}")
    if weights.name in node.graph.not_finite:
        raise NotLowered(f"the weights {weights.name!r} hold NaN or infinity")


def batch_normalization(node: NodeView) -> Step:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta, per channel; layers before it take it in."""
    view = node.operand(0, "image" if len(node.dims(0)) != 2 else "rows")
    if node.attribute("training_mode", 0):
        raise NotLowered("it is in training mode")
    channels = node.dims(0)[1]
    if not isinstance(channels, int):
        raise NotLowered("the number of channels is unknown")
    names = ("gamma", "beta", "the mean", "the variance")
    gamma, beta, mean, variance = (
        node.float_vector(1 + i, channels, name).astype(np.float64) for i, name in enumerate(names)
    )
    scale = gamma / np.sqrt(variance + float(node.attribute("epsilon", 1e-5)))
    shift = beta - mean * scale
    if not (np.isfinite(scale).all() and np.isfinite(shift).all()):
        raise NotLowered("its scale is not finite")
    return node.step(ChannelScale(scale.astype(np.float32), shift.astype(np.float32)), view)
