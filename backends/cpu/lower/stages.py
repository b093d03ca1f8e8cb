"""Where a region changes from one image at a time to the images of a batch together.

In lanes, sixteen images pass each operator together. While their tensors are larger than the last-level cache, each
operator fetches them from memory again. A single image stays in the cache, and has enough pixels for all lanes. That
matters to layers of little work per value; others gain more from lanes. Layers that run in bands of rows do so with
single images: sixteen are too large for the second-level cache even so.

Fewer images, with pixels in the lanes, gain from being together only in layers of few pixels, whose last vectors are
hardly filled and whose weights are read for little work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.bands import Chain
from sift_onnx.backends.cpu.lower.layouts import LANES
from sift_onnx.backends.lowering.dims import Dims
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import ArgExtreme, Conv, Depthwise, result_dims

__all__ = ["count_of_large", "count_of_wide"]

# A tensor of sixteen images is large if the last-level cache cannot hold it. Measured: with a cache of 32 MiB, sparse
# MobileNetV2's layers of 19 MB gain from lanes and those of 58 MB lose; with one of 260 MiB, all of them gain or do not
# care, and so do ResNet-18's.
_LARGE_BYTES = _kernels.cache_bytes()[2]
# So much of it are large tensors between layers of little work per value (below). Between others, tensors are never
# large, up to as much memory as a batch should take. Measured with a cache of 36 MiB: with
# single images for tensors of 26 MB as well, ResNet-50 at 95 % takes 0.91 of the time, DenseNet-121, EfficientNet-B0,
# RegNetX-400MF and SqueezeNet at 80 % take 0.94 to 1.0, and VGG-11 1.03 to 1.08.
_LARGE_OF_LIGHT = 5 / 8
_HUGE_BYTES = 256 << 20
# Of a larger cache, which many cores share, larger tensors come as slowly as from memory. Measured with a cache of 105
# MiB and single images for these: CSP-ResNet-50, BoTNet-26, CoAtNet nano and EfficientFormer-L1 at 80 % take 0.92 to
# 0.95 of the time, ResNet-50 at 80 and 95 %, ResNeSt-14, VoVNet-19, HRNet-W18 and Xception-41 0.96 to 1.00, and DLA-34,
# of 75 multiply-adds per value, 1.02 to 1.04.
_SHARED_BYTES = 36 << 20
_MOST_PER_SHARED_VALUE = 60
# A tensor of sixteen images between layers that may run in bands is large if a single one takes more than a quarter of
# the second-level cache, and has enough pixels for the largest tile. Measured with a cache of 2 MiB: single images take
# 0.75 of the time in lanes for 192 channels at 28 pixels, and 1.1 to 1.2 for 384 and 576 channels at 14 pixels.
_LARGE_BETWEEN_BYTES = LANES * _kernels.cache_bytes()[1] // 4
_LEAST_PIXELS = 28 * LANES
# From this many pixels on, the last vector of a single image is filled well enough. Measured with two threads and eight
# images at 80 %, layers of 169 pixels one by one as well: SqueezeNet takes 0.89 of the time instead of 0.98.
_WIDE_PIXELS = 128
# Layers with at most this many multiply-adds per value of their results wait for memory: the values of a batch do not
# fit in the caches, those of an image do. Measured with single images instead of lanes: ResNet-50 at 80 %, of 40 to 70,
# takes 0.85 to 0.93 of the time, Sparse Wide ResNet-18 at 90 %, of 155, takes 1.04, and VGG-11 at 80 %, of 190, 1.15.
_MOST_PER_VALUE = 120


def count_of_large(steps: Sequence[Step], dims: Mapping[str, Dims], chains: Sequence[Chain] = ()) -> int:
    """How many steps from the first one on run image by image: up to the last one with a tensor that is large.

    Args:
        steps: of a region, in order.
        dims: sizes of the values that enter it.
        chains: of the region, which stay together.
    """
    known = dict(dims)
    most = [
        max(_bytes(known[name], step.dtype) for name in (*step.inputs, step.output))
        for _, step in _steps_on_images(steps, known)
    ]
    count = _end_of_larger(most, _HUGE_BYTES)
    for least in (_LARGE_BYTES, _LARGE_OF_LIGHT * _LARGE_BYTES):
        if _are_light(steps[: (end := _end_of_larger(most, least))], known, _MOST_PER_VALUE):
            count = max(count, end)
    if _SHARED_BYTES < _LARGE_BYTES:
        end = _end_of_larger(most, _SHARED_BYTES)
        if _are_light(steps[:end], known, _MOST_PER_SHARED_VALUE):
            count = max(count, end)
    layers = [step for step in steps if step.output in known]
    return _behind_chain(max(count, _end_of_chains(layers, known, chains)), chains)


def count_of_wide(steps: Sequence[Step], dims: Mapping[str, Dims], chains: Sequence[Chain] = ()) -> int:
    """How many steps from the first one on run image by image in a small batch: up to the last layer of many pixels.

    None if these have so much work per value that it does not matter where values come from: weights, which are read
    for each image then, do. The arguments are those of :func:`count_of_large`.
    """
    if any(step.dtype.is_bytes or step.result_dtype.is_bytes for step in steps):
        return 0  # single images may begin within a word of an array of bytes
    known = dict(dims)
    count = 0
    for number, step in _steps_on_images(steps, known):
        if isinstance(step.spec, (Conv, Depthwise)) and _pixels(known[step.output]) >= _WIDE_PIXELS:
            count = number + 1
    return _behind_chain(count, chains) if _are_light(steps[:count], known, _MOST_PER_VALUE) else 0


def _end_of_larger(sizes: Sequence[int], least: float) -> int:
    """How many there are up to the last one above ``least``."""
    return max((number + 1 for number, size in enumerate(sizes) if size > least), default=0)


def _steps_on_images(steps: Sequence[Step], known: dict[str, Dims]) -> Iterator[tuple[int, Step]]:
    """Steps from the first one on, with their indices, until images become rows; adds the sizes of what they make."""
    for number, step in enumerate(steps):
        known[step.output] = result_dims(step.spec, *(known[name] for name in step.inputs[:2]))
        is_of_pixels = isinstance(step.spec, ArgExtreme) and step.view == "image"
        if is_of_pixels or "rows" not in (step.view, step.result_view):
            yield number, step
        elif len(known[step.output]) != 2:
            return
        # Else a row for each image, as squeeze-and-excite has it.


def _are_light(steps: Sequence[Step], known: Mapping[str, Dims], most: float) -> bool:
    """Whether the layers among these have at most ``most`` multiply-adds of active weights per value they make."""
    work, values = 0.0, 0
    for step in steps:
        if isinstance(step.spec, (Conv, Depthwise)):
            weights, pixels = step.spec.weights, _pixels(known[step.output])
            work += weights.active_share * weights.size * pixels
            values += weights.rows * pixels
    return work <= most * values


def _behind_chain(count: int, chains: Sequence[Chain]) -> int:
    """``count``, or the end of the chain of layers that it would divide."""
    return next((chain.steps[-1] + 1 for chain in chains if chain.steps[0] < count <= chain.steps[-1]), count)


def _end_of_chains(steps: Sequence[Step], known: Mapping[str, Dims], chains: Sequence[Chain]) -> int:
    """How many steps there are up to the end of the last chain that is large and worth it.

    Most of the work up to there must be in chains: other layers take longer with single images of few pixels.
    """
    chained, other, end = 0, 0, 0
    in_chains = {number: chain for chain in chains for number in chain.steps}
    for number, step in enumerate(steps):
        chain = in_chains.get(number)
        if chain is None:
            other += _work(step, known)
            continue
        chained += _work(step, known)
        if number == chain.steps[-1] and chained >= other:
            between = [known[steps[own].output] for own in chain.steps[:-1]]
            if any(_bytes(own, step.dtype) > _LARGE_BETWEEN_BYTES and _pixels(own) >= _LEAST_PIXELS for own in between):
                end = number + 1
    return end


def _work(step: Step, known: Mapping[str, Dims]) -> int:
    """Multiply-adds of an image if no weight were pruned; 0 of other steps, and where sizes are not known."""
    if not isinstance(step.spec, (Conv, Depthwise)):
        return 0
    return step.spec.weights.size * _pixels(known[step.output])


def _pixels(dims: Dims) -> int:
    """Of an image; 0 where they are not known before the run."""
    sizes = [size for size in dims[2:] if isinstance(size, int)]
    return math.prod(sizes) if len(sizes) == len(dims) - 2 else 0


def _bytes(dims: Dims, dtype: DType) -> int:
    """Of sixteen images; 0 where their size is not known before the run."""
    sizes = [size for size in dims[1:] if isinstance(size, int)]
    return dtype.itemsize * LANES * math.prod(sizes) if len(sizes) == len(dims) - 1 else 0
