"""What joins, cuts and pads channels, frames and pixels of volumes."""

from __future__ import annotations

from collections.abc import Mapping

from sift_onnx.backends.lowering.rules import NodeView, NotLowered
from sift_onnx.backends.lowering.volumes.forms import Form, Volume
from sift_onnx.backends.lowering.volumes.writer import VolumeWriter

__all__ = ["concat", "pad", "slice_", "split"]

# Axes of a volume, in the forms that have them.
_AXES = {Form.FRAMES: {1: 1, 3: 2, 4: 3}, Form.STACK: {1: 1, 2: 2}}


def concat(writer: VolumeWriter, node: NodeView) -> None:
    """Concat of channels, or of frames."""
    volumes = [volume for name in node.proto.input if (volume := writer.volume(name)) is not None]
    if len(volumes) < len(node.proto.input):
        raise NotLowered("not all operands are volumes")
    axis, form = int(node.attribute("axis", 0)) % 5, _common_form(volumes)
    if axis not in (1, 2):
        raise NotLowered(f"it joins along axis {axis}")
    form = Form.STACK if axis == 2 else form
    made = writer.write_like(node, [writer.form(volume, form) for volume in volumes], form, axis=axis)
    writer.made(node, form, made, writer.sizes_of(node, form, made, volumes[0]))


def split(writer: VolumeWriter, node: NodeView) -> None:
    """Split of channels, or of frames."""
    volume = writer.image(node.input(0))
    axis = int(node.attribute("axis", 0)) % 5
    form = Form.STACK if axis == 2 else volume.native
    found = [(writer.graph.dims(name) or (None,) * 5)[axis] for name in node.proto.output]
    counts = [count for count in found if isinstance(count, int)]
    if axis not in (1, 2) or len(counts) < len(node.proto.output):
        raise NotLowered(f"it splits axis {axis}, or into parts of unknown sizes")
    writer.write_like(node, [writer.form(volume, form), *node.proto.input[1:]], form, axis=axis)
    channels, depth, height, width = volume.sizes
    for name, tensor, count in zip(node.proto.output, writer.last.output, counts, strict=True):
        sizes = (count, depth, height, width) if axis == 1 else (channels, count, height, width)
        writer.made(node, form, tensor, sizes, name)


def slice_(writer: VolumeWriter, node: NodeView) -> None:
    """Slice by constants: channels and pixels of frames, then frames."""
    volume = writer.image(node.input(0))
    starts, ends, axes, steps = (
        node.integers(1 + i, name) for i, name in enumerate(("starts", "ends", "axes", "steps"))
    )
    axes = [axis % 5 for axis in axes] or list(range(len(starts)))
    ranges = dict(zip(axes, zip(starts, ends, steps or [1] * len(axes), strict=True), strict=True))
    if not ranges or 0 in ranges:
        raise NotLowered("it takes a range of volumes")
    within = {} if set(ranges) <= {1, 2} else {axis: own for axis, own in ranges.items() if axis != 2}
    along = {axis: own for axis, own in ranges.items() if axis not in within}
    tensor, form = "", Form.FRAMES
    if within:
        tensor = _cut(writer, node, writer.form(volume, form), within, form, is_part=bool(along))
    if along:
        volume = writer.within_frames(node, volume, tensor) if tensor else volume
        form = Form.STACK
        tensor = _cut(writer, node, writer.form(volume, form), along, form)
    writer.made(node, form, tensor, writer.sizes_of(node, form, tensor, volume))


def _cut(
    writer: VolumeWriter,
    node: NodeView,
    tensor: str,
    ranges: Mapping[int, tuple[int, int, int]],
    form: Form,
    is_part: bool = False,
) -> str:
    """Ranges of axes, given by axes of the volume: starts, ends and steps."""
    starts, ends, steps = (writer.target([own[i] for own in ranges.values()]) for i in range(3))
    axes = writer.target([_AXES[form][axis] for axis in ranges])
    inputs = [tensor, starts, ends, axes, steps]
    if is_part:
        return writer.add("Slice", inputs, f"{node.output} (within frames)")
    return writer.write(node, "Slice", inputs, form)


def pad(writer: VolumeWriter, node: NodeView) -> None:
    """Pad of pixels of frames, then of frames."""
    volume = writer.image(node.input(0))
    pads = node.integers(1, "pads")
    axes = [axis % 5 for axis in node.integers(3, "axes")] or list(range(5))
    if len(pads) != 2 * len(axes):
        raise NotLowered(f"it has {len(pads)} pads for {len(axes)} axes")
    sides = {axis: (pads[i], pads[i + len(axes)]) for i, axis in enumerate(axes)}
    if any(any(sides.get(axis, ())) for axis in (0, 1)) or not any(pads):
        raise NotLowered("it pads volumes or channels, or nothing")
    (top, bottom), (left, right), (before, behind) = (sides.get(axis, (0, 0)) for axis in (3, 4, 2))
    more = node.proto.input[2:3]
    tensor, form = "", Form.FRAMES
    if top or bottom or left or right:
        amounts = writer.target((0, 0, top, left, 0, 0, bottom, right))
        is_part = bool(before or behind)
        tensor = writer.write_like(node, [writer.form(volume, form), amounts, *more], form, is_part=is_part)
    if before or behind:
        volume = writer.within_frames(node, volume, tensor) if tensor else volume
        form = Form.STACK
        amounts = writer.target((0, 0, before, 0, 0, 0, behind, 0))
        tensor = writer.write_like(node, [writer.form(volume, form), amounts, *more], form)
    writer.made(node, form, tensor, writer.sizes_of(node, form, tensor, volume))


def _common_form(volumes: list[Volume]) -> Form:
    """The form that most of them have."""
    natives = [volume.native for volume in volumes if volume.native is not Form.VOLUME]
    if not natives:
        raise NotLowered("no operand is a volume that the kernels can run as images")
    return Form.FRAMES if 2 * natives.count(Form.FRAMES) >= len(natives) else Form.STACK
