"""What takes each element of a volume by itself, or each channel."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from sift_onnx.backends.lowering.rules import NodeView, NotLowered
from sift_onnx.backends.lowering.volumes.forms import Form, Volume
from sift_onnx.backends.lowering.volumes.writer import VolumeWriter

__all__ = ["broadcast", "of_channels", "of_stacks", "softmax", "unary"]


def unary(writer: VolumeWriter, node: NodeView) -> None:
    """Any function of one tensor's elements, with settings beside them."""
    volume = writer.image(node.input(0))
    form = volume.native
    made = writer.write_like(node, [volume.forms[form], *node.proto.input[1:]], form)
    writer.made(node, form, made, writer.sizes_of(node, form, made, volume))


def of_channels(writer: VolumeWriter, node: NodeView) -> None:
    """BatchNormalization, whose other inputs have a value per channel."""
    if node.attribute("training_mode", 0):
        raise NotLowered("it is in training mode")
    unary(writer, node)


def of_stacks(writer: VolumeWriter, node: NodeView) -> None:
    """InstanceNormalization and GroupNormalization, whose statistics are those of all frames."""
    volume = writer.image(node.input(0))
    made = writer.write_like(node, [writer.form(volume, Form.STACK), *node.proto.input[1:]], Form.STACK)
    writer.made(node, Form.STACK, made, writer.sizes_of(node, Form.STACK, made, volume))


def softmax(writer: VolumeWriter, node: NodeView) -> None:
    """Softmax and LogSoftmax over the channels."""
    if int(node.attribute("axis", -1)) not in (1, -4) or writer.graph.opset < 13:
        raise NotLowered("it is not over the channels")
    volume = writer.image(node.input(0))
    made = writer.write_like(node, [volume.forms[volume.native]], volume.native, axis=1)
    writer.made(node, volume.native, made, writer.sizes_of(node, volume.native, made, volume))


def broadcast(writer: VolumeWriter, node: NodeView) -> None:
    """Arithmetic of volumes of one size, of one value per channel of each, and of constants."""
    names = list(node.proto.input)
    dims = writer.graph.dims(node.output)
    wholes = [name for name in names if dims is not None and writer.graph.dims(name) == dims and writer.volume(name)]
    found = [volume for name in wholes if (volume := writer.volume(name)) is not None and writer.is_image(name)]
    if not found:
        raise NotLowered("no operand is a volume that the kernels can run as images")
    # That of the latest of them, which a convolution may make: it can take the sum in.
    form = max(found, key=lambda volume: writer.graph.producers.get(volume.name, -1)).native
    operands = [_operand(writer, name, form, name in wholes, found[0]) for name in names]
    inputs = [operand if isinstance(operand, str) else _written(writer, *operand) for operand in operands]
    made = writer.write_like(node, inputs, form)
    writer.made(node, form, made, writer.sizes_of(node, form, made, found[0]))


Deferred = tuple[Volume, Form, Volume]


def _operand(writer: VolumeWriter, name: str, form: Form, is_whole: bool, result: Volume) -> str | Deferred:
    """What an operand becomes: a constant, or what is to be written, once it is clear that all can be.

    Raises:
        NotLowered: it is repeated in a way that its form does not have.
    """
    values = writer.graph.known_values(name)
    if values is not None:
        own = _constant(values, form, result)
        return name if own is values else writer.constant(own, f"{name} ({form.name.lower()})")
    volume = writer.volume(name)
    if volume is None:
        raise NotLowered(f"{name!r} is no volume")
    dims = writer.graph.dims(name) or ()
    if not is_whole and (dims[1:] != (result.sizes[0], 1, 1, 1) or not isinstance(result.sizes[1], int)):
        raise NotLowered(f"{name!r} is repeated along other axes than frames and pixels")
    return volume, form, volume if is_whole else result


def _written(writer: VolumeWriter, volume: Volume, form: Form, result: Volume) -> str:
    """A volume in a form; of one value per channel, in each frame of the result."""
    if volume is result or form is Form.STACK:
        return writer.form(volume, form)
    channels, depth, _, _ = result.sizes
    name = volume.name
    rows = writer.move("Reshape", [writer.form(volume, Form.STACK), writer.target((0, 1, -1))], f"{name} (rows)")
    assert isinstance(depth, int)
    repeated = writer.move("Expand", [rows, writer.target((1, depth, 1))], f"{name} (rows of frames)")
    return writer.move("Reshape", [repeated, writer.target((-1, channels, 1, 1))], f"{name} (of frames)")


def _constant(values: npt.NDArray[Any], form: Form, result: Volume) -> npt.NDArray[Any]:
    """A constant that is broadcast against a volume, as one that is broadcast against its images."""
    if values.size == 1 and values.ndim <= 4:
        return values
    if values.ndim > 5:
        raise NotLowered("a constant of more axes")
    shape = (1,) * (5 - values.ndim) + values.shape
    images, channels, depth, height, width = shape
    if form is Form.FRAMES and images == depth == 1:
        return values.reshape(1, channels, height, width)
    if form is Form.STACK and (height, width) in ((1, 1), result.sizes[2:]):
        return values.reshape(images, channels, depth, height * width)
    raise NotLowered(f"a constant of {list(shape)} differs along axes that are one in its form")
