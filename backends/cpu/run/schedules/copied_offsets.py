"""Where values that are copied come from: offsets in planes, in lanes, and of a part of a larger result."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sift_onnx.backends.cpu.lower.layouts import LANES
from sift_onnx.backends.cpu.run.schedules.factors import Offsets
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import Shape
from sift_onnx.backends.cpu.run.schedules.placed_views import Stored
from sift_onnx.backends.lowering.rules import View

__all__ = ["lane_offsets", "mean_run", "part_of_runs", "placed_part"]


def lane_offsets(positions: Offsets, channels: Offsets, shape: Shape) -> Offsets | None:
    """Positions of a tensor of ``shape`` in lanes, where channels are ``LANES`` times as far apart.

    None where channels of one position are not all of one image or row.
    """
    image = math.prod(shape[1:])
    if not image or not positions.size or not channels.size:
        return positions
    number, within = np.divmod(positions, image)
    if int(within.max()) + int(channels.max()) >= image:
        return None
    in_lanes: Offsets = number // LANES * (image * LANES) + within * LANES + number % LANES
    return in_lanes


def mean_run(positions: Offsets, target: Stored) -> float:
    """How many lanes of ``target`` in a row come from neighbours in memory, on average."""
    n, _, height, width = target.shape
    if target.layout == "images16" and positions.size == n * height * width:
        positions = positions.reshape(n, height * width).T
    steps = np.diff(positions.reshape(-1))
    return float(positions.size / (1 + np.count_nonzero(steps != 1))) if positions.size else 1.0


def placed_part(
    positions: Offsets, dims: Sequence[int], view: View, axis: int, start: int, sizes: Sequence[int]
) -> tuple[Offsets, int]:
    """Positions of a result of ``sizes``, of which a part of ``dims`` comes from ``positions``; its first channel.

    Args:
        positions: of the part.
        dims: of the part, which are the result's but along ``axis``.
        view: of the result.
        axis: along which the part begins at ``start``.
        start: see there.
        sizes: of the result.
    """
    channel_axis = len(sizes) - 1 if view == "rows" else 1
    if axis == channel_axis:
        return positions, start
    own, full = ([size for i, size in enumerate(of) if i != channel_axis] for of in (dims, sizes))
    at = axis if axis < channel_axis else axis - 1
    result = np.full(full, -1, np.int64)
    result[(slice(None),) * at + (slice(start, start + own[at]),)] = positions.reshape(own)
    return result.reshape(-1), 0


def part_of_runs(
    positions: Offsets, dims: Sequence[int], length: int, axis: int, start: int, sizes: Sequence[int]
) -> Offsets:
    """Positions of a result's runs of ``length`` floats, of which a part comes from ``positions``; as `placed_part`."""
    runs = math.prod(sizes[axis + 1 :]) // length
    result = np.full((math.prod(sizes[:axis]), sizes[axis], runs), -1, np.int64)
    result[:, start : start + dims[axis]] = positions.reshape(-1, dims[axis], runs)
    return result.reshape(-1)
