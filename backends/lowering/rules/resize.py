"""Resize, Upsample and Pad of images along height and width, and DepthToSpace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, cast

import numpy as np
import onnx_graphsurgeon as gs

from sift_onnx.backends.lowering.cut_sizes import sliced
from sift_onnx.backends.lowering.dims import Dim, Dims, added, divided, floored, is_at_least, is_count
from sift_onnx.backends.lowering.resampling import COORDINATES, NEAREST, OpenPadding, OpenSampling, Padding, Sampling
from sift_onnx.backends.lowering.rules.moving import moved, view_of_result
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step
from sift_onnx.backends.lowering.specs import (
    DepthToSpace,
    Joined,
    LinearResize,
    OpenJoined,
    PixelCopy,
    Range,
    Reshaped,
    Sliced,
)

__all__ = ["depth_to_space", "pad", "padded_images", "resize", "upsample"]


def upsample(node: NodeView) -> Step:
    """Upsample, as opsets 7 to 9 have it."""
    scales = node.attribute("scales") or _floats(node, 1)
    return _resampled(node, list(scales or ()), None, "asymmetric", "floor")


def resize(node: NodeView) -> Step:
    """Resize to the nearest pixel, or between two."""
    # Up to opset 10, it has no region of interest.
    place = 2 if node.graph.opset > 10 else 1
    coordinates = node.attribute("coordinate_transformation_mode", "half_pixel" if place == 2 else "asymmetric")
    nearest = node.attribute("nearest_mode", "round_prefer_floor" if place == 2 else "floor")
    if node.attribute("antialias", 0) or node.attribute("exclude_outside", 0):
        raise NotLowered("no kernel resizes with antialias or exclude_outside")
    if node.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise NotLowered("it keeps the ratio of height and width")
    sizes = node.vector(3)
    if node.input(3) and sizes is None:
        raise NotLowered("its sizes are computed during the run")
    scales = None if node.input(3) else _floats(node, place)
    return _resampled(node, scales, sizes, coordinates, nearest)


def _floats(node: NodeView, position: int) -> list[float]:
    values = node.array(position)
    if values is None:
        raise NotLowered(f"its scales are {node.why_not_constant(position)}")
    return [float(value) for value in values.reshape(-1)]


def _resampled(
    node: NodeView, scales: list[float] | None, sizes: tuple[Dim, ...] | None, coordinates: str, nearest: str
) -> Step:
    node.operand(0, "image")
    mode = node.attribute("mode", "nearest")
    if mode not in ("nearest", "linear", "bilinear") or coordinates not in COORDINATES or nearest not in NEAREST:
        raise NotLowered(f"no kernel resizes with {mode}, {coordinates}, {nearest}")
    dims = node.dims(0)
    followed = _followed(node, sizes) if sizes is not None and len(sizes) == 4 else None
    if followed is not None:
        to_size = Sampling(1.0, None, coordinates, nearest)
        make = PixelCopy if mode == "nearest" else LinearResize
        made = make(height=to_size, width=to_size, follows=True)
        step = node.step(made, "image")
        return replace(step, inputs=(*step.inputs, followed))
    axes = [axis % 4 for axis in node.attribute("axes") or range(4)]
    samplings: dict[int, Sampling | OpenSampling] = {
        axis: Sampling(1.0, None, coordinates, nearest) for axis in range(4)
    }
    for i, axis in enumerate(axes):
        if sizes is not None:
            samplings[axis] = _to_size(dims[axis], sizes[i], coordinates, nearest)
        elif scales is not None:
            samplings[axis] = _by_scale(dims[axis], scales[i], coordinates, nearest)
    if any(samplings[axis].size_of(dims[axis]) != dims[axis] for axis in (0, 1)):
        raise NotLowered("it resizes more than height and width")
    height, width = samplings[2], samplings[3]
    if height.scale == width.scale == 1:
        return node.step(Reshaped(), "image")
    return node.step(PixelCopy(height, width) if mode == "nearest" else LinearResize(height, width), "image")


def _followed(node: NodeView, sizes: tuple[Dim, ...]) -> str | None:
    """The image that the operand gets the height and width of, where they are not known before a run."""
    dims = node.graph.dims(node.input(0))
    if dims is None or sizes[:2] != dims[:2] or all(isinstance(size, int) for size in sizes[2:]):
        return None
    made = [name for name, view in node.views.items() if view == "image"]
    return next((name for name in reversed(made) if (node.graph.dims(name) or ())[2:] == sizes[2:]), None)


def _by_scale(operand: Dim, scale: float, coordinates: str, nearest: str) -> Sampling | OpenSampling:
    if not 0 < scale < 1 << 10:
        raise NotLowered(f"its scale is {scale}")
    if isinstance(operand, int) or scale == int(scale):
        return Sampling(scale, None, coordinates, nearest)
    # Of a power of two, the product is exact.
    whole = floored(operand, int(1 / scale)) if 1 / scale in (2.0, 4.0, 8.0, 16.0, 32.0) else None
    if whole is None:
        raise NotLowered(f"its scale is {scale}, and the size of its operand is not known before a run")
    return OpenSampling(whole, coordinates, nearest, scale)


def _to_size(operand: Dim, size: Dim, coordinates: str, nearest: str) -> Sampling | OpenSampling:
    if isinstance(operand, int) and isinstance(size, int) and operand > 0:
        return Sampling(size / operand, size, coordinates, nearest)
    factor = divided(size, operand)
    if isinstance(factor, int):
        return Sampling(float(factor), None, coordinates, nearest)
    if not is_count(size):
        raise NotLowered("how much larger it makes images is not known before a run")
    return OpenSampling(size, coordinates, nearest)


def pad(node: NodeView) -> Step | tuple[Step, ...]:
    """Pad of images, or of rows by a constant."""
    is_image = len(node.dims(0)) == 4 and node.views.get(node.input(0)) != "rows"
    open_pads = node.vector(1)
    if is_image and open_pads is not None and not all(isinstance(count, int) for count in open_pads):
        return _padded_by_sizes(node, open_pads)
    pads = node.integers(1, "pads")
    if min(pads, default=0) < 0:
        return _cropped(node, pads, is_image)
    if is_image or not any(pads) or node.attribute("mode", "constant") != "constant":
        return padded_images(node)
    return _padded_rows(node, pads, node.input(0), node.dims(0))


def _cropped(node: NodeView, pads: list[int], is_image: bool) -> tuple[Step, ...]:
    """Pad by fewer than no positions: they are sliced off before others are put in, as where tokens are shifted."""
    dims, axes = list(node.dims(0)), _padded_axes(node, pads)
    ranges = []
    for axis, before, behind in zip(axes, pads, pads[len(axes) :], strict=False):
        size = dims[axis]
        if min(before, behind) >= 0:
            continue
        taken = _left_of(axis, size, max(-before, 0), max(-behind, 0))
        ranges.append(taken)
        dims[axis] = taken.count(size)
    others = [max(pad, 0) for pad in pads]
    if not any(others):
        return (moved(node, Sliced(tuple(ranges)), node.output),)
    if node.attribute("mode", "constant") != "constant":
        raise NotLowered("it crops, and does not pad by a constant")
    cropped = moved(node, Sliced(tuple(ranges)), node.between("cropped"))
    if is_image:
        return replace(cropped, result_view="image"), replace(_padded_image(node, others), inputs=(cropped.output,))
    return (cropped, *_padded_rows(node, others, cropped.output, tuple(dims)))


def _left_of(axis: int, size: Dim, start: int, left: int) -> Range:
    """The positions of an axis between ``start`` at its front and ``left`` at its end, which are cropped."""
    if isinstance(size, int):
        if start + left >= size:
            raise NotLowered("it crops all of an axis")
        return Range(axis, start, size - left, of=size)
    stop = -left if left else None
    if sliced(size, start, stop, 1) is None:
        raise NotLowered("it crops an axis of unknown size")
    return Range(axis, start, stop)


def _padded_axes(node: NodeView, pads: Sequence[Dim]) -> list[int]:
    rank = len(node.dims(0))
    axes = [axis % rank for axis in node.integers(3, "axes")] or list(range(rank))
    if len(pads) != 2 * len(axes):
        raise NotLowered(f"it has {len(pads)} pads for {len(axes)} axes")
    return axes


def padded_images(node: NodeView) -> Step:
    """Pad of height and width, which convolutions behind it take in, or by nothing, as exporters write it."""
    pads = node.integers(1, "pads")
    if not any(pads):
        return node.step(Reshaped(), node.operand(0))
    if min(pads) < 0:
        raise NotLowered(f"pads {pads}; the kernels do not crop")
    node.operand(0, "image")
    return _padded_image(node, pads)


def _padded_image(node: NodeView, pads: Sequence[int]) -> Step:
    mode = _mode(node)
    axes = _padded_axes(node, pads)
    both = {axis: (pads[i], pads[i + len(axes)]) for i, axis in enumerate(axes)}
    if any(axis < 2 and any(sizes) for axis, sizes in both.items()):
        raise NotLowered("it pads images or channels")
    height, width = both.get(2, (0, 0)), both.get(3, (0, 0))
    if mode == "reflect":
        for axis, sizes in ((2, height), (3, width)):
            size = node.dims(0)[axis]
            # Of open sizes, the run finds out.
            if isinstance(size, int) and not Padding(*sizes, mode).fits(size):
                raise NotLowered("it reflects more pixels than images have")
    return node.step(PixelCopy(Padding(*height, mode), Padding(*width, mode), _fill(node)), "image")


def _padded_by_sizes(node: NodeView, pads: tuple[Dim, ...]) -> Step:
    """Pad of height and width by as many pixels as only a run knows, such as to the next multiple of a window."""
    node.operand(0, "image")
    axes = _padded_axes(node, pads)
    both = {axis: (pads[i], pads[i + len(axes)]) for i, axis in enumerate(axes)}
    if any(axis < 2 and counts != (0, 0) for axis, counts in both.items()):
        raise NotLowered("it pads images or channels")
    if not all(is_at_least(count, 0) for count in pads):
        raise NotLowered("it may crop, which depends on the run")
    height, width = (OpenPadding(*both.get(axis, (0, 0)), _mode(node)) for axis in (2, 3))
    return node.step(PixelCopy(height, width, _fill(node)), "image")


def _mode(node: NodeView) -> Literal["constant", "edge", "reflect"]:
    mode = node.attribute("mode", "constant")
    if mode not in ("constant", "edge", "reflect"):
        raise NotLowered(f"no kernel pads with {mode}")
    return cast("Literal['constant', 'edge', 'reflect']", mode)


def _padded_rows(node: NodeView, pads: list[int], name: str, sizes: Dims) -> tuple[Step, ...]:
    """Pad by a constant of ``name``, of ``sizes``: one position repeated before and behind it, along each axis."""
    dims, axes = list(sizes), _padded_axes(node, pads)
    node.operand(0, "rows")
    padded = [(axis, pads[i], pads[i + len(axes)]) for i, axis in enumerate(axes) if pads[i] or pads[i + len(axes)]]
    fill = _fill(node)
    if not math.isfinite(fill):
        raise NotLowered(f"it pads with {fill}")
    steps: list[Step] = []
    for axis, before, behind in padded:
        size = dims[axis]
        names, places = [name], [int(before > 0)]
        for count, place in ((before, 0), (behind, 1 + (before > 0))):
            if count:
                constant = node.between(f"fill {axis} {place}")
                shape = [count if own == axis else 1 for own in range(len(dims))]
                node.graph.constants[constant] = gs.Constant(constant, np.full(shape, fill, np.float32))
                names.append(constant)
                places.append(place)
        total = dims[axis] = added([before, size, behind])
        repeated = tuple(range(1, len(names)))
        spec: Joined | OpenJoined = OpenJoined(axis, tuple(places), total, repeated)
        if isinstance(size, int) and isinstance(total, int):
            starts = {0: 0, places[0]: before, 1 + places[0]: before + size}
            spec = Joined(axis, tuple(starts[place] for place in places), total, repeated)
        output = node.output if axis == padded[-1][0] else node.between(f"axis {axis}")
        view = view_of_result(node, node.output, tuple(dims), name, axis)
        steps.append(Step(spec, tuple(names), output, node.views.get(name, "rows"), view, (node.index,)))
        name = output
    return tuple(steps)


def depth_to_space(node: NodeView) -> Step:
    """DepthToSpace in either order of channels."""
    node.operand(0, "image")
    size, channels = int(node.attribute("blocksize", 0)), node.dims(0)[1]
    if size < 1 or not isinstance(channels, int) or channels % size**2:
        raise NotLowered(f"it makes blocks of {size} x {size} of {channels} channels")
    return node.step(DepthToSpace((size, size), node.attribute("mode", "DCR") == "DCR"), "image")


def _fill(node: NodeView) -> float:
    if not node.input(2):
        return float(node.attribute("value", 0.0))
    value = node.array(2)
    if value is None or value.size != 1:
        raise NotLowered(f"what it pads with is {node.why_not_constant(2)}")
    return float(value.reshape(-1)[0])
