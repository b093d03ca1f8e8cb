"""Average pooling of images in lanes: a depthwise convolution whose weights are one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from sift_onnx.training.compilation import never_compiled
from sift_onnx.training.kernels.spatial import pooling
from sift_onnx.training.sparse_layers.kernels import DepthwiseKernels, Geometry, runs_on_kernels
from sift_onnx.training.sparse_layers.lanes.products import product_in_lanes
from sift_onnx.training.sparse_layers.lanes.tensors import Lanes, from_lanes, image_lanes

__all__ = ["average_pool"]


@never_compiled
def average_pool(x: Lanes, *, attributes: Mapping[str, Any]) -> Lanes:
    """Mean over windows of images.

    Args:
        x: images of two spatial axes; others are pooled by torch.
        attributes: of ONNX's AveragePool.
    """
    if len(x.shape) != 4 or not runs_on_kernels(x.data):
        return image_lanes(pooling.average_pool(from_lanes(x), **attributes))
    window = pooling.settled_window(x.shape, **attributes)
    (kernel_h, kernel_w), (top, left, bottom, right) = window.kernel, window.pads
    strides, dilations = window.strides, window.dilations
    geometry = Geometry(
        (kernel_h, kernel_w), (strides[0], strides[1]), (dilations[0], dilations[1]), (top, left, bottom, right),
        x.shape[1],
    )  # fmt: skip
    ones = torch.ones(x.shape[1] * math.prod(window.kernel))
    sums = product_in_lanes(x, ones, None, DepthwiseKernels(x.shape[1], geometry))
    return sums.with_data(sums.data / pooling.window_counts(x.shape, **attributes)[..., None])
