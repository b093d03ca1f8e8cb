"""Normalizations of rows and images, and what is summed up along an axis."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sift_onnx.backends.lowering.rules.moving import moved, view_of_result
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step
from sift_onnx.backends.lowering.specs import CumulativeSum, GroupNormalization, LayerNormalization, Softmax, Transposed

__all__ = [
    "cumulative_sum",
    "group_normalization",
    "instance_normalization",
    "layer_normalization",
    "rms_normalization",
    "softmax",
]


def layer_normalization(node: NodeView) -> Step:
    """LayerNormalization over the last axis, in float32."""
    channels = _channels(node)
    scale = node.float_vector(1, channels, "the scale")
    shift = node.float_vector(2, channels, "the bias") if node.input(2) else np.zeros(channels, np.float32)
    return node.step(LayerNormalization(scale, shift, _epsilon(node)), "rows")


def rms_normalization(node: NodeView) -> Step:
    """RMSNormalization over the last axis, in float32; SimplifiedLayerNormalization is onnxruntime's name of it."""
    channels = _channels(node)
    scale = node.float_vector(1, channels, "the scale")
    spec = LayerNormalization(scale, np.zeros(channels, np.float32), _epsilon(node), is_centered=False)
    return node.step(spec, "rows")


def instance_normalization(node: NodeView) -> Step:
    """InstanceNormalization: each channel of an image by itself."""
    channels = _image_channels(node)
    scale, shift = node.float_vector(1, channels, "the scale"), node.float_vector(2, channels, "the bias")
    return node.step(GroupNormalization(scale, shift, channels, _epsilon(node)), "image")


def group_normalization(node: NodeView) -> Step:
    """GroupNormalization, with a scale per channel as from opset 21 on, or per group."""
    channels, groups = _image_channels(node), int(node.attribute("num_groups", 0))
    if groups < 1 or channels % groups:
        raise NotLowered(f"{channels} channels in {groups} groups")
    if int(node.attribute("stash_type", 1)) != 1:
        raise NotLowered("it computes in another type than float")
    each = channels if node.graph.opset >= 21 else groups
    parameters = (node.float_vector(1, each, "the scale"), node.float_vector(2, each, "the bias"))
    scale, shift = (np.repeat(values, channels // each) for values in parameters)
    return node.step(GroupNormalization(scale, shift, groups, _epsilon(node)), "image")


def softmax(node: NodeView) -> Step:
    """Softmax and LogSoftmax along any axis."""
    rank = len(node.dims(0))
    # Up to opset 12, all axes from this one on are one.
    axis = int(node.attribute("axis", -1 if node.graph.opset >= 13 else 1)) % rank
    is_log = node.op == "LogSoftmax"
    if node.is_dequantized(0):
        raise NotLowered("its operand is quantized, and onnxruntime computes it on bytes")
    if axis == rank - 1:
        return node.step(Softmax(is_log), node.operand(0, "rows"))
    if node.graph.opset < 13:
        raise NotLowered("it takes its last axes as one")
    view = node.operand(0, "image" if axis == 1 and rank == 4 else None)
    return node.step(Softmax(is_log, axis), view)


def cumulative_sum(node: NodeView) -> Step | tuple[Step, ...]:
    """CumSum along a constant axis, which becomes the last one where it is none of channels."""
    rank, axes = len(node.dims(0)), node.integers(1, "axis")
    if len(axes) != 1 or not -rank <= axes[0] < rank:
        raise NotLowered(f"its axis {axes} is none of {rank}")
    axis = axes[0] % rank
    spec = CumulativeSum(bool(node.attribute("exclusive", 0)), bool(node.attribute("reverse", 0)))
    if axis == rank - 1:
        return node.step(spec, node.operand(0, "rows"))
    if axis == 1 and rank == 4:
        return node.step(spec, node.operand(0, "image"))
    order = [*range(rank)]
    order[axis], order[-1] = order[-1], order[axis]
    turned = replace(moved(node, Transposed(tuple(order)), node.between("turned")), result_view="rows")
    sums = Step(spec, (turned.output,), node.between("sums"), "rows", "rows", (node.index,))
    result_view = view_of_result(node, node.output, node.dims(0))
    return turned, sums, Step(Transposed(tuple(order)), (sums.output,), node.output, "rows", result_view, (node.index,))


def _image_channels(node: NodeView) -> int:
    node.operand(0, "image")
    channels = node.dims(0)[1]
    if not isinstance(channels, int) or channels == 0:
        raise NotLowered("the number of channels is unknown")
    return channels


def _epsilon(node: NodeView) -> float:
    return float(node.attribute("epsilon", 1e-5))


def _channels(node: NodeView) -> int:
    node.operand(0, "rows")
    dims = node.dims(0)
    if int(node.attribute("axis", -1)) % len(dims) != len(dims) - 1:
        raise NotLowered("it normalizes over more than the last axis")
    if int(node.attribute("stash_type", 1)) != 1:
        raise NotLowered("it computes in another type than float")
    channels = dims[-1]
    if not isinstance(channels, int) or channels == 0:
        raise NotLowered("the number of channels is unknown")
    return channels
