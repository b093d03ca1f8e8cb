"""What a region's batch is: which of its axes can be cut into slabs that run one after the other.

Where all operators keep images or rows apart, any range of them runs by itself. Operators that move values between
rows, or let rows attend to each other, still keep the images of a batch apart if they leave the first axis in its
place: a range of images then has all of its rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sift_onnx.backends.cpu.lower.region import Region
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import Sizes, input_key, kernel_shape, operand_key
from sift_onnx.backends.lowering.resampling import Padding
from sift_onnx.backends.lowering.rules import Step, View
from sift_onnx.backends.lowering.specs import (
    ArgExtreme,
    Attention,
    BatchedMatmul,
    Channels,
    Elementwise,
    GatherElements,
    GatherRows,
    GlobalPool,
    GridSample,
    Joined,
    LinearResize,
    Moving,
    OpenJoined,
    PixelCopy,
    Recurrent,
    ReduceExtreme,
    Repeated,
    Reshaped,
    ScatterElements,
    Sliced,
    Softmax,
    Spec,
    TopK,
    Transposed,
)
from sift_onnx.backends.lowering.specs.decoding import CachedAttention, Rotated

__all__ = ["Batch", "are_operands_of", "batch_of", "flat_sizes", "is_of_channels", "is_scaled", "moves_channels"]

# Of one operand, and do not take just any.
_CHECKED = (PixelCopy, Reshaped, Repeated, Sliced, Joined, Recurrent, ArgExtreme, ReduceExtreme, TopK)

# What has an axis of tokens, or reads other rows than its own.
_MIXING_ROWS = (Attention, BatchedMatmul, CachedAttention, GatherRows, Recurrent, Rotated, ScatterElements)


@dataclass(frozen=True)
class Batch:
    """How a region's values are cut.

    Attributes:
        count: of images or rows.
        is_flat: whether all values have that many images or rows, each by itself.
        is_whole: whether they stay together. If neither holds, each value has all rows of the first image, then those
            of the second, and so on.
    """

    count: int
    is_flat: bool = False
    is_whole: bool = False


def batch_of(region: Region, dims: Mapping[str, Sizes]) -> Batch:
    """The batch of a region whose values have these sizes."""
    name, view = next((name, view) for name, view in region.inputs if name not in region.constants)
    count = kernel_shape(dims[input_key(name, view)], view)[0]
    reads_constants = any(name in region.constants for step in region.steps for name in step.inputs)
    views = _views_of(region)
    if not reads_constants and all(_keeps_rows(step, dims, views, count) for step in region.steps):
        return Batch(count, is_flat=True)
    images = dims[input_key(name, view)][0]
    has_images = any(step.view == "image" and not isinstance(step.spec, Moving) for step in region.steps)
    if has_images and images > 1 and all(_keeps_images(step, region, dims) for step in region.steps):
        return Batch(images)
    return Batch(count, is_whole=True)


def is_scaled(
    dims: Mapping[str, Sizes], part: Mapping[str, Sizes], images: int, of: int, shared: Collection[str]
) -> bool:
    """Whether the values of a part of the batch differ from those of the whole batch in the first axis alone.

    That axis must be shorter in the same proportion as the number of images. A model may have sizes that only
    suit its whole batch.

    Args:
        dims: sizes of all values for the whole batch.
        part: sizes for the part.
        images: of the part.
        of: images of the batch.
        shared: values that all images share.
    """
    return all(
        part[key][1:] == whole[1:] and part[key][:1] and part[key][0] * of == whole[0] * images
        for key, whole in dims.items()
        if key not in shared
    )


def are_operands_of(spec: Spec, operands: Sequence[Sizes], result: Sizes) -> bool:
    """Whether an operator takes operands of these sizes: what is known before a run need not hold in it."""
    first, *others = operands
    if not others and not isinstance(spec, _CHECKED):
        return True
    match spec:
        case Reshaped():
            return math.prod(first) == math.prod(result)
        case Repeated(sizes=sizes):
            return all(isinstance(size, int) and size >= 0 and first[axis] == 1 for axis, size in sizes)
        case PixelCopy(follows=False):
            axes = zip((spec.height, spec.width), first[2:], strict=True)
            return all(axis.fits(size) for axis, size in axes if isinstance(axis, Padding))
        case Sliced(ranges=ranges, drops=True):
            return all(len(taken.places(first[taken.axis])) == 1 for taken in ranges)
        case Joined(axis=axis):
            wanted = _without(result, axis)
            return all(
                own[axis] == spec.count(i)
                and (
                    _without(own, axis) == wanted or (i in spec.repeated and _is_repeated(_without(own, axis), wanted))
                )
                for i, own in enumerate(operands)
            )
        case Attention():
            keys, values = others
            return keys[:-1] == (*first[:-2], first[-1]) and values[:-1] == (*first[:-2], keys[-1])
        case BatchedMatmul():
            return first[-1] == others[0][-2]
        case ArgExtreme(axis=axis):
            return first[axis] > 0
        case ReduceExtreme(axes=axes):
            return all(first[slice(*axes)])
        case TopK(axis=axis):
            return first[axis] >= spec.k
        case GatherElements(axis=axis):
            at = axis % len(first)
            indices = (*result[: at + 1], *(1,) * (len(result) - at - 1)) if spec.repeats else result
            return others[0] == indices and _without(first, at) == _without(result, at)
        case GatherRows(drops=drops):
            return not drops or first[-1] == 1
        case ScatterElements(axis=axis):
            # Of [n, 1] as of [n, 1, 1]: one place for each of the rows, whatever axes these have.
            places = first[: axis + 1] if spec.repeats else first
            is_place = others[0] == places or (
                spec.repeats and others[0] == (*places, *(1,) * (len(others[0]) - axis - 1))
            )
            return is_place and all(own == result for own in others[1:])
        case CachedAttention(is_parted=is_parted):
            tokens = 2 if is_parted else 1
            return all(len(own) == len(first) and own[0] == first[0] and own[tokens] == first[tokens] for own in others)
        case Recurrent():
            states = (len(spec.reversed), first[1], spec.weights.columns)
            return len(first) == 3 and first[0] > 0 and all(own == states for own in others)
        case Rotated(heads_axis=axis):
            rows = [own if axis is None or len(own) == 3 else _without(own, axis) for own in operands]
            return rows[1] == rows[2] and all(a in (1, b) for a, b in zip(rows[1][:-1], rows[0][:-1], strict=True))
        case PixelCopy(follows=True) | LinearResize(follows=True):
            return others[0][0] == first[0]  # what has the height and width may have other channels
        case GridSample():
            return others[0][0] == first[0] and others[0][-1] == 2
        case Elementwise(broadcasts=True):
            return all(_is_repeated(own, result) for own in operands)
        case _:
            return all(_is_repeated(own, result) for own in others)


def _is_repeated(sizes: Sizes, result: Sizes) -> bool:
    missing = len(result) - len(sizes)
    return missing >= 0 and all(own in (1, size) for own, size in zip(sizes, result[missing:], strict=True))


def _without(sizes: Sizes, axis: int) -> Sizes:
    return (*sizes[:axis], *sizes[axis + 1 :])


def flat_sizes(region: Region, dims: Mapping[str, Sizes]) -> dict[str, Sizes]:
    """The sizes of a flat batch, by which any range of it can be cut: one axis for images or rows, others behind it."""
    flat: dict[str, Sizes] = {}
    for key, view in _views_of(region).items():
        shape = kernel_shape(dims[key], view)
        flat[key] = shape[:2] if view == "rows" else shape
    return flat


def _views_of(region: Region) -> dict[str, View]:
    """How each value is made."""
    views: dict[str, View] = {input_key(name, view): view for name, view in region.inputs}
    views.update((step.output, step.result_view) for step in region.steps)
    return views


def _keeps_images(step: Step, region: Region, dims: Mapping[str, Sizes]) -> bool:
    """Whether images stay apart, each with all of its rows, while these follow each other."""
    match step.spec:
        case Transposed(order=order):
            return order[0] == 0
        case Sliced(ranges=ranges):
            return all(taken.axis > 0 for taken in ranges)
        case Joined(axis=axis) | OpenJoined(axis=axis):
            return axis > 0
        case ArgExtreme(axis=axis) | TopK(axis=axis) | GatherElements(axis=axis) | Softmax(axis=axis):
            return axis != 0
        case ScatterElements(axis=axis):
            return axis > 0
        case ReduceExtreme(axes=axes):
            return axes[0] > 0
        case Recurrent():
            return False
        case BatchedMatmul():
            first, second = (dims[operand_key(step, position, dims)] for position in range(2))
            return len(first) == len(second) > 2 and first[0] == second[0]
        case Repeated(sizes=sizes):
            return all(axis > 0 for axis, _ in sizes)
        case GatherRows():
            return step.inputs[1] in region.constants
        case Attention() if step.mask:
            mask = region.constants.get(step.mask)
            return mask is not None and (step.spec.repeats_mask or mask.ndim < 3 or mask.shape[0] == 1)
    return True


def _keeps_rows(step: Step, dims: Mapping[str, Sizes], views: Mapping[str, View], count: int) -> bool:
    """Whether each of ``count`` images or rows of the result is made of the same one of the operands."""
    keys = [operand_key(step, position, dims) for position in range(len(step.inputs))]
    # Rows of [n, 1, 1, c] are as many as its images, but their c channels are no pixels of one channel.
    if any(views[key] != step.view for key in keys if key in views):
        return False
    if isinstance(step.spec, _MIXING_ROWS):
        return False
    if isinstance(step.spec, GlobalPool) and step.view == "rows":
        return False
    if isinstance(step.spec, (ArgExtreme, TopK, GatherElements, Softmax)) and not is_of_channels(step, step.spec.axis):
        return False
    if isinstance(step.spec, ReduceExtreme) and (step.view == "rows" or step.spec.axes[0] == 0):
        return False
    sizes = dims[step.output]
    operands = [dims[key] for key in keys]
    counts = [kernel_shape(sizes, step.result_view)[0], *(kernel_shape(own, step.view)[0] for own in operands)]
    if any(own != count for own in counts):
        return False
    match step.spec:
        case Transposed(order=order):
            stays = order[0] == 0
        case Sliced(ranges=ranges):
            stays = all(taken.axis for taken in ranges)
        case Joined(axis=axis) | OpenJoined(axis=axis):
            stays = axis > 0
        case Repeated(sizes=repeated):
            stays = all(axis for axis, _ in repeated)
        case Elementwise(repeats=True):
            return operands[1] == sizes
        case _:
            return True
    # Their axes are those of the model: a slab has the same ones only where they are two, of rows and their channels,
    # or the four of an image.
    values = [*((own, step.view) for own in operands), (sizes, step.result_view)]
    return stays and all(own[0] == count and len(own) == (2 if view == "rows" else 4) for own, view in values)


def is_of_channels(step: Step, axis: int) -> bool:
    """Whether an axis of a step's operand is that of its channels."""
    return axis == (1 if step.view == "image" else -1)


def moves_channels(region: Region) -> bool:
    """Whether images are cut into channels, or joined."""
    return any(
        isinstance(step.spec, (Sliced, Joined, OpenJoined, Channels)) and step.result_view == "image"
        for step in region.steps
    )
