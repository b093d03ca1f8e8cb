"""Places that a strided view reads in a flattened tensor: exporters count out ``i * stride_0 + j * stride_1 + ...``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.graphs.constants import array_of, constant_values

__all__ = ["Arrangement", "Places", "arrangement_of", "places_of"]


@dataclass(frozen=True)
class Places:
    """Places in a flattened tensor: ``fixed`` plus, along an open axis, multiples of a stride.

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


def places_of(tensor: gs.Tensor) -> Places | None:
    """The places that an integer tensor holds, followed through the operators by which exporters count them out."""
    constant = constant_values(tensor)
    if constant is not None:
        values = array_of(constant)
        return Places(values.astype(np.int64)) if values.dtype.kind in "iu" else None
    if len(tensor.inputs) != 1:
        return None
    node = tensor.inputs[0]
    if node.op == "Range":
        first, _, step = (constant_values(t) for t in node.inputs)
        if first is None or step is None or array_of(first) != 0 or array_of(step) != 1:
            return None
        return Places(np.zeros(1, np.int64), 0, 1)
    parts = [places_of(t) for t in node.inputs]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or not known:
        return None
    if node.op == "Add":
        return _sum(*known)
    if node.op == "Mul":
        return _product(*known)
    if node.op == "Unsqueeze":
        axes = node.attrs["axes"] if len(known) == 1 else known[1].fixed.reshape(-1).tolist()
        return _unsqueezed(known[0], axes)
    return known[0] if node.op in ("Identity", "Cast") else None


def _sum(a: Places, b: Places) -> Places | None:
    opened = [part for part in (a, b) if part.axis is not None]
    if len(opened) > 1 or a.fixed.ndim != b.fixed.ndim:
        return None
    fixed = a.fixed + b.fixed
    if not opened:
        return Places(fixed)
    axis = opened[0].axis
    assert axis is not None
    return Places(fixed, axis, opened[0].stride) if fixed.shape[axis] == 1 else None


def _product(a: Places, b: Places) -> Places | None:
    places, factor = (a, b) if b.axis is None and b.fixed.ndim == 0 else (b, a)
    if factor.axis is not None or factor.fixed.ndim != 0:
        return None
    return Places(places.fixed * factor.fixed, places.axis, places.stride * int(factor.fixed))


def _unsqueezed(places: Places, axes: Sequence[int]) -> Places:
    fixed = np.expand_dims(places.fixed, tuple(axes))
    if places.axis is None:
        return Places(fixed)
    added = {axis % fixed.ndim for axis in axes}
    old = [axis for axis in range(fixed.ndim) if axis not in added]
    return Places(fixed, old[places.axis], places.stride)


def arrangement_of(places: Places) -> Arrangement | None:
    """How every place from 0 on occurs exactly once, as a sum of steps along axes; None if that is not so."""
    fixed = places.fixed
    if not fixed.size or fixed.flat[0] != 0:
        return None
    sizes = tuple(-1 if axis == places.axis else n for axis, n in enumerate(fixed.shape))
    strides = [int(np.take(fixed, 1, axis).flat[0]) if n > 1 else 0 for axis, n in enumerate(sizes)]
    if places.axis is not None:
        strides[places.axis] = places.stride
    stepping = [axis for axis, n in enumerate(sizes) if n != 1]
    order = sorted(stepping, key=lambda axis: -strides[axis])
    if places.axis is not None and order[0] != places.axis:
        return None
    behind = 1
    for axis in reversed(order):
        if strides[axis] != behind:
            return None
        behind *= sizes[axis]
    counted = np.zeros_like(fixed)
    for axis, (stride, n) in enumerate(zip(strides, fixed.shape, strict=True)):
        counted += stride * np.arange(n).reshape([-1 if i == axis else 1 for i in range(fixed.ndim)])
    if not np.array_equal(fixed, counted):
        return None
    if order == stepping:
        return Arrangement(sizes, tuple(range(len(sizes))))
    return Arrangement(sizes, (*order, *(axis for axis, n in enumerate(sizes) if n == 1)))
