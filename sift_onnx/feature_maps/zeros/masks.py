"""From the elements of a node's output that have to be zero back to those of an input.

A mask is a boolean array of the tensor's rank in the wider model; along an axis it has the full length, or one entry
that stands for all. It is true where an added element has to be zero; what it says of old elements means nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from sift_onnx.analysis.axes.reshape import aligned_groups
from sift_onnx.feature_maps.context import FeatureMapContext
from sift_onnx.feature_maps.findings import Extent
from sift_onnx.graphs.constants import array_of, constant_values
from sift_onnx.operators.traits import ELEMENTWISE_BINARY, ELEMENTWISE_UNARY

__all__ = ["Mask", "everywhere", "fitted", "mask_of_input"]

Mask = npt.NDArray[np.bool_]
Flow = Callable[[FeatureMapContext, int, int, Mask], "Mask | None"]


def everywhere(rank: int) -> Mask:
    """The mask of all elements."""
    return np.ones((1,) * rank, dtype=bool)


def mask_of_input(ctx: FeatureMapContext, i: int, output: int, mask: Mask) -> Mask:
    """Which elements of input ``i`` have to be zero, for those of ``output`` in ``mask`` to be; at worst all."""
    flow = _FLOWS.get(ctx.node.op)
    found = flow(ctx, i, output, mask) if flow is not None else None
    return everywhere(len(ctx.input(i))) if found is None else found


def fitted(mask: Mask, shape: Sequence[int]) -> Mask:
    """The mask of an operand that is broadcast to where ``mask`` is; ``shape`` is the operand's in the wider model."""
    missing = mask.ndim - len(shape)
    if missing < 0:
        mask, missing = mask.reshape((1,) * -missing + mask.shape), 0
    folded = np.logical_or.reduce(mask, axis=tuple(range(missing)))
    repeated = tuple(k for k, n in enumerate(shape) if n == 1 and folded.shape[k] != 1)
    return np.asarray(np.logical_or.reduce(folded, axis=repeated, keepdims=True))


def _new(axes: Sequence[Extent]) -> list[int]:
    return [axis.new for axis in axes]


def _elementwise(ctx: FeatureMapContext, i: int, output: int, mask: Mask) -> Mask | None:
    return fitted(mask, _new(ctx.input(i)))


def _transposed(ctx: FeatureMapContext, i: int, output: int, mask: Mask) -> Mask | None:
    perm = ctx.attr("perm") or list(range(mask.ndim))[::-1]
    return mask.transpose(np.argsort(perm))


def _reshaped(ctx: FeatureMapContext, i: int, output: int, mask: Mask) -> Mask | None:
    x, out = ctx.input(0), ctx.output(output)
    wide, shape = list(mask.shape), [1] * len(x)
    for left, right in aligned_groups([axis.old for axis in x], [axis.old for axis in out]):
        if all(mask.shape[j] == 1 for j in right):
            continue
        for j in right:
            wide[j] = out[j].new
        for k in left:
            shape[k] = x[k].new
    if np.prod(wide) != np.prod(shape):
        return None
    return np.broadcast_to(mask, wide).reshape(shape)


def _split(ctx: FeatureMapContext, i: int, output: int, mask: Mask) -> Mask | None:
    x = ctx.input(0)
    cut = int(ctx.attr("axis", 0)) % len(x)
    start = sum(ctx.output(k)[cut].new for k in range(output))
    return _placed(x, cut, np.arange(start, start + ctx.output(output)[cut].new), mask)


def _sliced(ctx: FeatureMapContext, i: int, output: int, mask: Mask) -> Mask | None:
    x, out = ctx.input(0), ctx.output()
    placed = mask
    for axis, part in zip(x, out, strict=True):
        taken = ctx.slice_places(axis.axis)
        if taken is None:
            return None
        if taken == range(axis.old):
            continue
        places = np.asarray(taken)
        if axis.grows:
            # A rule has seen to it that it takes all in a row.
            before = taken.start * axis.new // axis.old
            places = np.arange(before, before + part.new)
        wide = _placed_in([*placed.shape], axis.axis, axis.new, places, placed)
        if wide is None:
            return None
        placed = wide
    return placed


def _joined(ctx: FeatureMapContext, i: int, output: int, mask: Mask) -> Mask | None:
    joined = int(ctx.attr("axis", 1)) % mask.ndim
    if mask.shape[joined] == 1:
        return mask
    start = sum(ctx.input(k)[joined].new for k in range(i))
    return mask.take(np.arange(start, start + ctx.input(i)[joined].new), axis=joined)


def _gathered(ctx: FeatureMapContext, i: int, output: int, mask: Mask) -> Mask | None:
    x = ctx.input(0)
    position = int(ctx.attr("axis", 0)) % len(x)
    indices = constant_values(ctx.node.inputs[1])
    if indices is None or array_of(indices).ndim > 1:
        axes = tuple(range(position, position + len(ctx.input(1))))
        folded = mask.any(axis=axes, keepdims=True)
        return folded.reshape(*mask.shape[:position], 1, *mask.shape[position + len(axes) :])
    values = array_of(indices).reshape(-1) % max(x[position].old, 1)
    if array_of(indices).ndim == 0:
        mask = np.expand_dims(mask, position)
    return _placed(x, position, values, mask)


def _placed(x: Sequence[Extent], axis: int, places: npt.NDArray[np.int64], mask: Mask) -> Mask | None:
    return _placed_in(list(mask.shape), axis, x[axis].new, places, mask)


def _placed_in(shape: list[int], axis: int, length: int, places: npt.NDArray[np.int64], mask: Mask) -> Mask | None:
    if shape[axis] not in (1, len(places)):
        return None
    shape[axis] = length
    placed = np.zeros(shape, dtype=bool)
    at = np.moveaxis(placed, axis, 0)
    np.logical_or.at(
        at, places, np.moveaxis(np.broadcast_to(mask, [*shape[:axis], len(places), *shape[axis + 1 :]]), axis, 0)
    )
    return placed


def _bias(ctx: FeatureMapContext, i: int, output: int, mask: Mask) -> Mask | None:
    """Of a layer or a normalization: parameters run along the features."""
    if i == 0 or not ctx.input(i):
        return None
    if ctx.node.op in ("Gemm", "FusedGemm", "LayerNormalization"):
        return fitted(mask, _new(ctx.input(i)))
    found = np.asarray(mask.any(axis=tuple(k for k in range(mask.ndim) if k != 1)))
    # Before opset 21 a GroupNormalization has a parameter for each group.
    return found if len(found) in (1, ctx.input(i)[0].new) else None


def _product(ctx: FeatureMapContext, i: int, output: int, mask: Mask) -> Mask | None:
    if ctx.node.op == "Gemm" and i == 2:
        return fitted(mask, _new(ctx.input(i)))
    return None


_ELEMENTWISE = (
    ELEMENTWISE_BINARY
    | ELEMENTWISE_UNARY
    | {"BiasAdd", "BiasGelu", "CastLike", "Clip", "Dropout", "Expand", "FastGelu", "QuickGelu"}
)
_FLOWS: dict[str, Flow] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshaped),
    **dict.fromkeys(
        ("BatchNormalization", "InstanceNormalization", "GroupNormalization", "Conv", "ConvTranspose"), _bias
    ),
    **dict.fromkeys(("FusedGemm", "LayerNormalization"), _bias),
    **dict.fromkeys(("Gemm", "MatMul"), _product),
    "Concat": _joined,
    "Gather": _gathered,
    "Slice": _sliced,
    "Split": _split,
    "Transpose": _transposed,
}
