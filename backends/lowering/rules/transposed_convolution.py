"""ConvTranspose as a convolution whose channels are the pixels of blocks.

A block has ``stride`` positions of the result along each axis, and there is one for each position of the operand.
Position ``r`` of block ``q`` is the sum of ``x[i] * w[stride * (q - i) + r + pad]`` over the positions ``i`` of the
operand for which that is a tap. So it is a convolution of x with weights of its own for each ``r``: every tap of ``w``
is one of the weights, and the others are zeros, which kernels leave out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.backends.lowering.names import made_name
from sift_onnx.backends.lowering.resampling import Slicing
from sift_onnx.backends.lowering.rules.convolution import check_weights, weights_of_images
from sift_onnx.backends.lowering.rules.step import NodeView, NotLowered, Step
from sift_onnx.backends.lowering.rules.window import window_of
from sift_onnx.backends.lowering.specs import Conv, Geometry, PixelCopy
from sift_onnx.backends.lowering.weights import WeightMatrix

__all__ = ["transposed_convolution"]


@dataclass(frozen=True)
class _Axis:
    """The convolution along one axis.

    Attributes:
        taps: [stride, size of the kernel], which of the model's taps each one is; as many as there are for none.
        pads: positions of zeros before the operand and behind it.
        surplus: positions at the end of the last block that the result does not have.
    """

    taps: npt.NDArray[np.int64]
    pads: tuple[int, int]
    surplus: int


def transposed_convolution(node: NodeView) -> Step | tuple[Step, ...]:
    """ConvTranspose with constant weights."""
    constant, shape = weights_of_images(node)
    channels, made, height, width = shape
    groups = int(node.attribute("group", 1))
    if node.dims(0)[1] != channels or not made or channels % groups:
        raise NotLowered(f"weights of {list(shape)} in {groups} groups, for {node.dims(0)[1]} channels")
    geometry = window_of(node, (height, width))
    extra = tuple(node.attribute("output_padding") or (0, 0))
    if node.attribute("output_shape") or node.attribute("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise NotLowered("its padding follows from the size of its result")
    if geometry.dilation != (1, 1):
        raise NotLowered("no kernel for transposed convolutions with dilations")
    bias = node.float_vector(2, made * groups, "the bias") if node.input(2) else None
    bias = None if bias is None else np.repeat(bias, geometry.stride[0] * geometry.stride[1])
    if geometry == Geometry((height, width), stride=(height, width)) and not any(extra) and groups == 1:
        # A product for each pixel: the weights are those of the model.
        weights = WeightMatrix(constant, made * height * width, channels, transposed=True)
        check_weights(node, weights)
        return node.step(Conv(weights, bias, Geometry((1, 1)), block=(height, width)), "image")
    axes = [
        _along(size, geometry.stride[i], geometry.pads[i], geometry.pads[i + 2], extra[i])
        for i, size in enumerate((height, width))
    ]
    weights = _as_convolution(node, constant, shape, groups, axes)
    pads = (axes[0].pads[0], axes[1].pads[0], axes[0].pads[1], axes[1].pads[1])
    kernel = (axes[0].taps.shape[1], axes[1].taps.shape[1])
    step = node.step(Conv(weights, bias, Geometry(kernel, pads=pads), groups, block=geometry.stride), "image")
    return _cropped(node, step, axes)


def _along(kernel: int, stride: int, pad: int, pad_behind: int, extra: int) -> _Axis:
    """Where ``extra`` positions are added behind the result, as attribute ``output_padding`` has it."""
    before, behind = (kernel - 1 - pad) // stride, (stride - 1 + pad) // stride
    # What the result has beyond a block for each position of the operand.
    excess = kernel - pad - pad_behind + extra - stride
    blocks = -(-excess // stride)
    if before < 0 or behind + blocks < 0:
        raise NotLowered("it cuts off more than its windows")
    phases, offsets = np.arange(stride).reshape(-1, 1), np.arange(before + behind + 1)
    taps = stride * (before - offsets) + phases + pad
    taps = np.where((taps >= 0) & (taps < kernel), taps, kernel)
    return _Axis(taps, (before, behind + blocks), stride * blocks - excess)


def _as_convolution(
    node: NodeView, constant: gs.Constant, shape: tuple[int, ...], groups: int, axes: list[_Axis]
) -> WeightMatrix:
    channels, made, height, width = shape
    values = node.graph.values_of(node.input(1))
    assert values is not None
    # Behind the last tap along either axis is a zero.
    padded = np.pad(values.reshape(shape), ((0, 0), (0, 0), (0, 1), (0, 1)))
    rows, columns = (axis.taps for axis in axes)
    # [groups, channels of a group, made, rows of a block, taps, columns of a block, taps]
    spread = padded[:, :, rows][:, :, :, :, columns]
    spread = spread.reshape(groups, channels // groups, made, *spread.shape[2:])
    matrix = np.ascontiguousarray(spread.transpose(0, 2, 3, 5, 1, 4, 6))
    count = made * groups * len(rows) * len(columns)
    name = made_name(constant.name, "as a convolution")
    filled = height * width / (rows.size * columns.size)
    weights = WeightMatrix(gs.Constant(name, matrix), count, matrix.size // count, filled=filled)
    check_weights(node, weights)
    return weights


def _cropped(node: NodeView, step: Step, axes: list[_Axis]) -> Step | tuple[Step, ...]:
    """The step, and one that leaves out what its last blocks have too much."""
    surplus = [axis.surplus for axis in axes]
    if not any(surplus):
        return step
    if any(left and not isinstance(size, int) for left, size in zip(surplus, node.dims(0)[2:], strict=True)):
        raise NotLowered("it makes a part of the last block, of an image of unknown size")
    whole = replace(step, output=node.between("whole blocks"))
    height, width = (Slicing(0, -left or None, 1) for left in surplus)
    crop = Step(PixelCopy(height, width), (whole.output,), node.output, "image", "image", (node.index,))
    return whole, crop
