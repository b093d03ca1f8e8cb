"""Flat indices of a strided view, as exporters compute them: ``i * stride_0 + j * stride_1 + ...``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.graphs.constants import array_of, constant_values

__all__ = ["Arrangement", "StridedIndices", "arrangement_of", "strided_indices"]


@dataclass(frozen=True)
class StridedIndices:
    """Indices into a flattened tensor: ``fixed`` plus, along an open axis, multiples of a stride.

    Attributes:
        fixed: what is known of them, of size 1 along the open axis.
        axis: the open axis, if there is one.
        stride: the distance of neighbours along it.
    """

    fixed: npt.NDArray[np.int64]
    axis: int | None = None
    stride: int = 0


@dataclass(frozen=True)
class Arrangement:
    """Axes of a view of the whole of a tensor.

    Attributes:
        sizes: of the axes, -1 for the open one.
        order: of the axes by falling stride; those of size 1 have none, and stay where they are if nothing moves.
    """

    sizes: tuple[int, ...]
    order: tuple[int, ...]


# Of nodes that compute indices, one after the other. Exporters write fewer than ten.
_MOST_NODES = 64


def strided_indices(tensor: gs.Tensor) -> StridedIndices | None:
    """The indices that an integer tensor holds, followed through the operators by which exporters compute them."""
    return _indices(tensor, {}, _MOST_NODES)


def _indices(tensor: gs.Tensor, found: dict[int, StridedIndices | None], most: int) -> StridedIndices | None:
    """Of what at most ``most`` nodes in a row compute. A tensor that several nodes read is in ``found``, by its id."""
    if id(tensor) not in found:
        found[id(tensor)] = _computed_indices(tensor, found, most)
    return found[id(tensor)]


def _computed_indices(tensor: gs.Tensor, found: dict[int, StridedIndices | None], most: int) -> StridedIndices | None:
    constant = constant_values(tensor)
    if constant is not None:
        values = array_of(constant)
        return StridedIndices(values.astype(np.int64)) if values.dtype.kind in "iu" else None
    if len(tensor.inputs) != 1:
        return None
    node = tensor.inputs[0]
    if node.op == "Range":
        first, _, step = (constant_values(t) for t in node.inputs)
        if first is None or step is None or array_of(first) != 0 or array_of(step) != 1:
            return None
        return StridedIndices(np.zeros(1, np.int64), 0, 1)
    if node.op not in ("Add", "Cast", "Identity", "Mul", "Unsqueeze") or not most:
        return None
    known: list[StridedIndices] = []
    for operand in node.inputs:
        part = _indices(operand, found, most - 1)
        if part is None:
            return None
        known.append(part)
    if node.op == "Add":
        return _sum(*known)
    if node.op == "Mul":
        return _product(*known)
    if node.op == "Unsqueeze":
        axes = node.attrs["axes"] if len(known) == 1 else known[1].fixed.reshape(-1).tolist()
        return _unsqueezed(known[0], axes)
    return known[0]


def _sum(a: StridedIndices, b: StridedIndices) -> StridedIndices | None:
    opened = [part for part in (a, b) if part.axis is not None]
    if len(opened) > 1 or a.fixed.ndim != b.fixed.ndim:
        return None
    fixed = a.fixed + b.fixed
    if not opened:
        return StridedIndices(fixed)
    axis = opened[0].axis
    assert axis is not None
    return StridedIndices(fixed, axis, opened[0].stride) if fixed.shape[axis] == 1 else None


def _product(a: StridedIndices, b: StridedIndices) -> StridedIndices | None:
    indices, factor = (a, b) if b.axis is None and b.fixed.ndim == 0 else (b, a)
    if factor.axis is not None or factor.fixed.ndim != 0:
        return None
    return StridedIndices(indices.fixed * factor.fixed, indices.axis, indices.stride * int(factor.fixed))


def _unsqueezed(indices: StridedIndices, axes: Sequence[int]) -> StridedIndices:
    fixed = np.expand_dims(indices.fixed, tuple(axes))
    if indices.axis is None:
        return StridedIndices(fixed)
    added = {axis % fixed.ndim for axis in axes}
    old = [axis for axis in range(fixed.ndim) if axis not in added]
    return StridedIndices(fixed, old[indices.axis], indices.stride)


def arrangement_of(indices: StridedIndices) -> Arrangement | None:
    """How every index from 0 on occurs exactly once, as a sum of steps along axes; None if that is not so."""
    fixed = indices.fixed
    if not fixed.size or fixed.flat[0] != 0:
        return None
    sizes = tuple(-1 if axis == indices.axis else n for axis, n in enumerate(fixed.shape))
    strides = [int(np.take(fixed, 1, axis).flat[0]) if n > 1 else 0 for axis, n in enumerate(sizes)]
    if indices.axis is not None:
        strides[indices.axis] = indices.stride
    stepping = [axis for axis, n in enumerate(sizes) if n != 1]
    order = sorted(stepping, key=lambda axis: -strides[axis])
    if indices.axis is not None and order[0] != indices.axis:
        return None
    inner = 1
    for axis in reversed(order):
        if strides[axis] != inner:
            return None
        inner *= sizes[axis]
    counted = np.zeros_like(fixed)
    for axis, (stride, n) in enumerate(zip(strides, fixed.shape, strict=True)):
        counted += stride * np.arange(n).reshape([-1 if i == axis else 1 for i in range(fixed.ndim)])
    if not np.array_equal(fixed, counted):
        return None
    if order == stepping:
        return Arrangement(sizes, tuple(range(len(sizes))))
    return Arrangement(sizes, (*order, *(axis for axis, n in enumerate(sizes) if n == 1)))
