"""Pools, means and resizing of volumes: within frames, then from frame to frame."""

from __future__ import annotations

import numpy as np

from sift_onnx.backends.lowering.dims import window as positions
from sift_onnx.backends.lowering.rules import NodeView, NotLowered
from sift_onnx.backends.lowering.volumes.forms import Form, Volume
from sift_onnx.backends.lowering.volumes.windows import window_of
from sift_onnx.backends.lowering.volumes.writer import VolumeWriter

__all__ = ["global_pool", "is_counted_otherwise", "pool", "reduce_mean", "resize"]

_VOLUME_AXES = {2, 3, 4}


def pool(writer: VolumeWriter, node: NodeView) -> None:
    """MaxPool and AveragePool: windows of frames are windows of their maxima, or means.

    The values that a mean counts are those of a box: as many as along rows and columns, times those along frames.
    """
    volume = writer.volume(node.input(0))
    if volume is None:
        raise NotLowered("its operand is no volume of a known number of channels")
    window = window_of(node, volume)
    attributes = {
        name: node.attribute(name) for name in ("ceil_mode", "count_include_pad") if node.attribute(name) is not None
    }
    if node.op == "AveragePool" and node.attribute("ceil_mode", 0):
        raise NotLowered("how a mean counts windows that reach beyond the padding depends on the axes")
    if window.is_idle(0, 1, 2):
        raise NotLowered("its window is one position")
    if any(pads and pads >= window.kernel[i % 3] for i, pads in enumerate(window.before + window.behind)):
        raise NotLowered("it has windows of padding alone")
    output, made, form = node.output, "", Form.FRAMES
    if not window.is_idle(1, 2):
        made = writer.form(volume, Form.FRAMES)
        inner = {**attributes, **window.in_frames()}
        if window.is_idle(0):
            made = writer.write(node, node.op, [made], form, **inner)
        else:
            made = writer.add(node.op, [made], f"{output} (within frames)", **inner)
    if not window.is_idle(0):
        if made:
            volume = writer.within_frames(node, volume, made)
        form = Form.STACK
        made = writer.write(node, node.op, [writer.form(volume, form)], form, **attributes, **window.in_stack())
    writer.made(node, form, made, writer.sizes_of(node, form, made, volume))


def is_counted_otherwise(node: NodeView) -> bool:
    """Whether a pool has other sizes than ONNX's inference says, which counts windows that begin behind the values."""
    if node.op not in ("MaxPool", "AveragePool") or not node.attribute("ceil_mode", 0):
        return False
    before, after = (node.graph.dims(name) or () for name in (node.input(0), node.proto.output[0]))
    kernel = node.attribute("kernel_shape") or ()
    if not len(before) == len(after) == len(kernel) + 2:
        return False
    strides, dilations = (node.attribute(name) or [1] * len(kernel) for name in ("strides", "dilations"))
    pads = node.attribute("pads") or [0] * 2 * len(kernel)
    sides = zip(pads, pads[len(kernel) :], strict=False)
    settings = zip(before[2:], after[2:], kernel, strides, dilations, sides, strict=True)
    return any(
        isinstance(size, int) and own != positions(size, extent, stride, dilation, pads, ceil_mode=True)
        for size, own, extent, stride, dilation, pads in settings
    )


def global_pool(writer: VolumeWriter, node: NodeView) -> None:
    """GlobalAveragePool and GlobalMaxPool."""
    volume = writer.image(node.input(0))
    if node.op == "GlobalAveragePool":
        _mean(writer, node, volume, keeps_axes=True)
        return
    made = writer.write(node, node.op, [writer.form(volume, Form.STACK)], Form.STACK)
    writer.made(node, Form.STACK, made, (volume.sizes[0], 1, 1, 1))


def reduce_mean(writer: VolumeWriter, node: NodeView) -> None:
    """ReduceMean over frames, rows and columns."""
    volume = writer.image(node.input(0))
    axes = {axis % 5 for axis in node.axes()}
    if axes != _VOLUME_AXES:
        raise NotLowered(f"a mean over the axes {sorted(axes)}")
    _mean(writer, node, volume, bool(node.attribute("keepdims", 1)))


def _mean(writer: VolumeWriter, node: NodeView, volume: Volume, keeps_axes: bool) -> None:
    """The mean of a stack, or of the means of frames, which are of as many values each."""
    channels, depth, _, _ = volume.sizes
    output = node.output
    if Form.STACK in volume.forms:
        made = writer.write(node, "GlobalAveragePool", [writer.form(volume, Form.STACK)], Form.STACK)
    else:
        means = writer.add("GlobalAveragePool", [volume.forms[Form.FRAMES]], f"{output} (means of frames)")
        rows = writer.reshape(means, (None, depth, channels), f"{output} (rows)")
        axes = {"axes": [1]} if writer.graph.opset < 18 else {}
        inputs = [rows] if axes else [rows, writer.target((1,))]
        own = "" if keeps_axes else output
        mean = writer.write(node, "ReduceMean", inputs, Form.STACK, own, keepdims=0, **axes)
        if not keeps_axes:
            return
        made = writer.move("Reshape", [mean, writer.target((0, 0, 1, 1))], f"{output} (stack)")
    if keeps_axes:
        writer.made(node, Form.STACK, made, (channels, 1, 1, 1))
    else:
        writer.move("Reshape", [made, writer.target((0, 0))], output=output)


def resize(writer: VolumeWriter, node: NodeView) -> None:
    """Resize by whole factors, to the nearest position or between two: along rows and columns, then along frames."""
    volume = writer.image(node.input(0))
    coordinates = node.attribute("coordinate_transformation_mode", "half_pixel")
    if node.attribute("antialias", 0) or node.attribute("exclude_outside", 0) or coordinates == "tf_crop_and_resize":
        raise NotLowered("no kernel resizes with antialias, exclude_outside or tf_crop_and_resize")
    if node.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise NotLowered("it keeps the ratio of sizes")
    if node.attribute("mode", "nearest") not in ("nearest", "linear"):
        raise NotLowered(f"no kernel resizes with {node.attribute('mode')}")
    factors = _factors(writer, node)
    if factors[:2] != [1, 1] or factors[2:] == [1, 1, 1]:
        raise NotLowered(f"it resizes by {factors}")
    made, form = "", Form.FRAMES
    if factors[3:] != [1, 1]:
        inputs = [writer.form(volume, form), node.input(1), _scales(writer, 1, 1, *factors[3:])]
        made = writer.write_like(node, inputs, form, is_part=factors[2] != 1)
        _without_axes(writer)
        volume = writer.within_frames(node, volume, made)
    if factors[2] != 1:
        form = Form.STACK
        inputs = [writer.form(volume, form), node.input(1), _scales(writer, 1, 1, factors[2], 1)]
        made = writer.write_like(node, inputs, form)
        _without_axes(writer)
    writer.made(node, form, made, writer.sizes_of(node, form, made, volume))


def _without_axes(writer: VolumeWriter) -> None:
    """Of the node written last: its factors are those of all axes."""
    node = writer.nodes[-1]
    for found in [attribute for attribute in node.attribute if attribute.name in ("axes", "keep_aspect_ratio_policy")]:
        node.attribute.remove(found)


def _scales(writer: VolumeWriter, *factors: int) -> str:
    return writer.constant(np.array(factors, np.float32), "scales")


def _factors(writer: VolumeWriter, node: NodeView) -> list[int]:
    """How much larger each axis becomes, if these are whole numbers."""
    dims, result = writer.graph.dims(node.input(0)), writer.graph.dims(node.output)
    given = node.array(2)
    axes = [int(axis) % 5 for axis in node.attribute("axes") or range(5)]
    scales = [1.0] * 5
    if given is not None and given.size == len(axes) and not node.input(3):
        for axis, scale in zip(axes, given.reshape(-1).tolist(), strict=True):
            scales[axis] = float(scale)
    elif dims is not None and result is not None:
        for axis in range(5):
            own, new = dims[axis], result[axis]
            if own != new:
                scales[axis] = new / own if isinstance(own, int) and isinstance(new, int) else 0.0
    if any(scale < 1 or scale != int(scale) for scale in scales):
        raise NotLowered(f"it resizes by {scales}, of which not all are known to be whole")
    return [int(scale) for scale in scales]
