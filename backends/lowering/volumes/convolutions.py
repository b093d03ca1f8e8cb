"""Conv and ConvTranspose of volumes, as convolutions of frames or of stacks."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.lowering.rules import NodeView, NotLowered
from sift_onnx.backends.lowering.volumes.forms import Form, Volume
from sift_onnx.backends.lowering.volumes.weights import VolumeWeights, weights_of
from sift_onnx.backends.lowering.volumes.windows import Window, window_of
from sift_onnx.backends.lowering.volumes.writer import VolumeWriter
from sift_onnx.weights.sparse import SparseWeight

__all__ = ["convolution", "transposed_convolution"]

# Frames of a depthwise kernel: each is a convolution and a sum.
_MOST_DEPTHWISE_FRAMES = 8


def convolution(writer: VolumeWriter, node: NodeView) -> None:
    """Conv with constant weights over frames, rows and columns."""
    volume, weights = _operands(writer, node)
    rows, group_channels, *kernel = weights.values.shape
    groups, channels = int(node.attribute("group", 1)), volume.sizes[0]
    if channels != group_channels * groups or rows % groups:
        raise NotLowered(f"weights of {[rows, group_channels, *kernel]} in {groups} groups, for {channels} channels")
    window = window_of(node, volume, kernel)
    if window.kernel != tuple(kernel):
        raise NotLowered(f"weights over {kernel}, and a kernel of {list(window.kernel)}")
    if window.is_idle(0, 1, 2):
        form = Form.STACK if volume.native is Form.VOLUME else volume.native
        _convolved(writer, node, volume, form, writer.form(volume, form), weights.arranged(_frame))
    elif window.is_idle(1, 2):
        stack = writer.form(volume, Form.STACK)
        of_stack = weights.arranged(lambda values: values[..., 0])
        _convolved(writer, node, volume, Form.STACK, stack, of_stack, **window.in_stack())
    elif window.is_idle(0):
        frames = writer.form(volume, Form.FRAMES)
        _convolved(writer, node, volume, Form.FRAMES, frames, weights.arranged(_frame), **window.in_frames())
    elif group_channels == 1 and groups == rows == channels and kernel[0] > 1:
        _sum_of_frames(writer, node, volume, window, weights)
    else:
        frames = _joined_frames(writer, node, volume, window, groups)
        joined = weights.arranged(lambda values: values.transpose(0, 2, 1, 3, 4).reshape(rows, -1, *kernel[1:]))
        _convolved(writer, node, volume, Form.FRAMES, frames, joined, **window.in_frames())


def transposed_convolution(writer: VolumeWriter, node: NodeView) -> None:
    """ConvTranspose whose windows tile the result: one of frames, which makes the channels of several frames."""
    volume, weights = _operands(writer, node)
    channels, made, *kernel = weights.values.shape
    window = window_of(node, volume, kernel)
    given = (node.attribute("output_padding"), node.attribute("output_shape"))
    tiles = window.kernel == window.strides == tuple(kernel) and set(window.dilations) == {1}
    if not tiles or any(window.before + window.behind) or any(map(any, filter(None, given))):
        raise NotLowered("the kernels have transposed convolutions whose windows do not overlap")
    depth, dims = volume.sizes[1], writer.graph.dims(node.output)
    if int(node.attribute("group", 1)) != 1 or channels != volume.sizes[0] or not isinstance(depth, int) or not dims:
        raise NotLowered("the kernels have transposed convolutions of one group, and of a known number of frames")
    bias = [writer.constant(np.tile(_bias(node), kernel[0]), f"{node.input(2)} (frames)")] if node.input(2) else []
    of_frames = weights.arranged(
        lambda values: values.transpose(0, 2, 1, 3, 4).reshape(channels, kernel[0] * made, *kernel[1:])
    )
    own = writer.constant(of_frames, f"{node.input(1)} (frames)")
    frames = writer.form(volume, Form.FRAMES)
    inputs, tiles_of = [frames, own, *bias], kernel[1:]
    apart = writer.write(node, "ConvTranspose", inputs, Form.FRAMES, kernel_shape=tiles_of, strides=tiles_of)
    height, width = (writer.size_in(apart, axis, dims[axis + 1]) for axis in (2, 3))
    tensor = writer.reshape(apart, (None, made, height, width), f"{node.output} (frames)")
    writer.made(node, Form.FRAMES, tensor, (made, depth * kernel[0], height, width))


def _frame(values: npt.NDArray[Any], number: int = 0) -> npt.NDArray[Any]:
    return values[:, :, number]


def _operands(writer: VolumeWriter, node: NodeView) -> tuple[Volume, VolumeWeights]:
    volume = writer.volume(node.input(0))
    if volume is None:
        raise NotLowered("its operand is no volume of a known number of channels")
    if node.input(2):
        _bias(node)
    return volume, weights_of(node)


def _bias(node: NodeView) -> npt.NDArray[Any]:
    bias = node.array(2)
    if bias is None or bias.ndim != 1:
        raise NotLowered("its bias is not constant")
    return bias


def _convolved(
    writer: VolumeWriter,
    node: NodeView,
    volume: Volume,
    form: Form,
    tensor: str,
    weights: npt.NDArray[np.float32] | SparseWeight,
    **attributes: Any,
) -> None:
    """Write the node as a convolution of images, which has its bias."""
    own = writer.constant(weights, f"{node.input(1)} ({form.name.lower()})")
    attributes.setdefault("kernel_shape", (1, 1))
    bias = [node.input(2)] if node.input(2) else []
    group = int(node.attribute("group", 1))
    made = writer.write(node, "Conv", [tensor, own, *bias], form, group=group, **attributes)
    writer.made(node, form, made, writer.sizes_of(node, form, made, volume))


def _taps(writer: VolumeWriter, node: NodeView, volume: Volume, window: Window, groups: int) -> list[str]:
    """For each frame of a kernel, those that it is multiplied by, as [n, d, values] or [n, d, 1, groups, values].

    Raises:
        NotLowered: how many frames there are is not known before a run.
    """
    channels, depth, height, width = volume.sizes
    if not isinstance(depth, int):
        raise NotLowered("the number of frames is unknown")
    kernel, stride, dilation, before, behind = (
        values[0] for values in (window.kernel, window.strides, window.dilations, window.before, window.behind)
    )
    positions = (depth + before + behind - dilation * (kernel - 1) - 1) // stride + 1
    if positions < 1:
        raise NotLowered("its window has more frames than its operand")
    name = node.output
    # Of three or five axes, which nothing takes for images.
    apart = (1, groups) if groups > 1 else ()
    values = (channels // groups, height, width)
    tensor = writer.reshape(writer.form(volume, Form.FRAMES), (None, depth, *apart, values), f"{name} (rows)")
    if before or behind:
        others = [0] * (1 + len(apart))
        pads = writer.constant(np.array([0, before, *others, 0, behind, *others], np.int64), f"{name} (pads)")
        tensor = writer.move("Pad", [tensor, pads], f"{name} (padded)")
    if kernel == stride == 1:
        return [tensor]
    taps = []
    for tap in range(kernel):
        start = tap * dilation
        bounds = (start, start + stride * (positions - 1) + 1, 1, stride)
        taps.append(writer.move("Slice", [tensor, *(writer.target((bound,)) for bound in bounds)], f"{name} (tap)"))
    return taps


def _joined_frames(writer: VolumeWriter, node: NodeView, volume: Volume, window: Window, groups: int) -> str:
    """Frames that have the channels of all frames that a kernel is multiplied by; in each group, frame by frame."""
    channels, depth, height, width = volume.sizes
    kernel = window.kernel[0]
    sizes = (None, kernel * channels, height, width)
    is_cut = kernel == window.strides[0] and window.before[0] == window.behind[0] == 0 and window.dilations[0] == 1
    if is_cut and groups == 1 and isinstance(depth, int) and depth % kernel == 0:
        return writer.reshape(writer.form(volume, Form.FRAMES), sizes, f"{node.output} (frames of channels)")
    taps = _taps(writer, node, volume, window, groups)
    joined = taps[0]
    if len(taps) > 1:
        joined = writer.move("Concat", taps, f"{node.output} (taps)", axis=2 if groups == 1 else 4)
    return writer.reshape(joined, sizes, f"{node.output} (frames of channels)")


def _sum_of_frames(
    writer: VolumeWriter, node: NodeView, volume: Volume, window: Window, weights: VolumeWeights
) -> None:
    """A depthwise convolution as the sum of one for each frame of its kernel."""
    if window.kernel[0] > _MOST_DEPTHWISE_FRAMES:
        raise NotLowered(f"a depthwise kernel of {window.kernel[0]} frames")
    channels, _, height, width = volume.sizes
    taps = _taps(writer, node, volume, window, 1)
    attributes = {**window.in_frames(), "group": channels}
    total = ""
    for tap, rows in enumerate(taps):
        frames = writer.reshape(rows, (None, channels, height, width), f"{node.output} (frames of tap)")
        of_frame = weights.arranged(partial(_frame, number=tap))
        own = writer.constant(of_frame, f"{node.input(1)} (frame {tap})")
        if not total:
            bias = [node.input(2)] if node.input(2) else []
            total = writer.write(node, "Conv", [frames, own, *bias], Form.FRAMES, **attributes)
        else:
            part = writer.add("Conv", [frames, own], f"{node.output} (tap)", **attributes)
            total = writer.add("Add", [total, part], f"{node.output} (sum)")
    writer.made(node, Form.FRAMES, total, writer.sizes_of(node, Form.FRAMES, total, volume))
