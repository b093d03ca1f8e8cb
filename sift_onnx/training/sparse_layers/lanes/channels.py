"""Operators on the channels and pixels of images in lanes: means over space, and channels side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from sift_onnx.training.kernels.data_movement.joining import split
from sift_onnx.training.sparse_layers.lanes.tensors import LANES, Lanes, from_lanes, image_lanes

__all__ = ["concatenate", "flatten", "is_over_space", "spatial_mean", "split_channels"]


def spatial_mean(x: Lanes, axes: Sequence[int], *, attributes: Mapping[str, Any]) -> Lanes:
    """Mean over the spatial axes of images.

    Args:
        x: images.
        axes: of the tensor as torch has it, see :func:`is_over_space`.
        attributes: of ONNX's ReduceMean. Without ``keepdims``, images become tokens.
    """
    mean = x.map(torch.mean, (2, 3), keepdim=True)
    if attributes.get("keepdims", 1):
        return mean
    return flatten(mean)


def is_over_space(axes: Any, rank: int) -> bool:
    """Whether axes are all those of images of so many axes but the first two."""
    if not isinstance(axes, Sequence) or not all(isinstance(axis, int) for axis in axes):
        return False
    return sorted(axis % rank for axis in axes) == list(range(2, rank))


def flatten(x: Lanes) -> Lanes:
    """Images as tokens, one each, with all their features."""
    data = x.data.reshape(x.data.shape[0], -1, 1, 1, LANES)
    return Lanes(data, x.n, (x.n, data.shape[1]), is_tokens=True)


def concatenate(*parts: Lanes) -> Lanes:
    """The channels of images, one after the other."""
    first = parts[0]
    if any(part.n != first.n or len(part.shape) != len(first.shape) for part in parts):
        return image_lanes(torch.cat([from_lanes(part) for part in parts], 1))  # torch says what does not fit
    return first.with_data(torch.cat([part.data for part in parts], 1))


def split_channels(x: Lanes, *sizes: Any, attributes: Mapping[str, Any]) -> tuple[Lanes, ...]:
    """The channels of images in pieces.

    Args:
        x: images.
        sizes: of the pieces, as ONNX's Split has them; none for equal ones.
        attributes: of ONNX's Split; the axis is that of channels in lanes as well.
    """
    return tuple(x.with_data(part) for part in split(x.data, *sizes, **attributes))
