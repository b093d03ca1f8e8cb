"""A stored weight as the matrices that patterns are stated on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.weights.sparse import index_dtype

__all__ = ["WeightMatrix", "ascending"]

Array = npt.NDArray[Any]
Positions = npt.NDArray[np.signedinteger[Any]]


@dataclass(frozen=True)
class WeightMatrix:
    """Where the rows and columns of a layer's weight matrix lie in the tensor as it is stored.

    A layer multiplies by a matrix ``[out features, in features]`` at each position of its kernel, and with each member
    of a stack. Patterns are stated on these matrices, the *slices*: a convolution ``[O, C, kh, kw]`` has ``kh * kw`` of
    them, so that a group of consecutive weights runs along its input channels and never from one kernel position to the
    next (NVIDIA's convention for KCRS kernels: apex ``sparse_masklib.py`` permutes to RSKC before it forms groups). Of
    a convolution with groups, the input features are those of one group.

    Attributes:
        shape: of the tensor.
        out_axis: its axis of output features.
        in_axis: its axis of input features.
    """

    shape: tuple[int, ...]
    out_axis: int
    in_axis: int

    def __post_init__(self) -> None:
        axes = {self.out_axis, self.in_axis}
        if len(axes) != 2 or not axes <= set(range(len(self.shape))):
            raise ValueError(f"axes {self.out_axis} and {self.in_axis} are not two axes of a weight {list(self.shape)}")

    @classmethod
    def of(cls, shape: Sequence[int], out_axis: int, in_axis: int | None = None) -> WeightMatrix:
        """The matrices of a weight; ``in_axis`` is the first axis other than ``out_axis`` unless it is given.

        Raises:
            ValueError: there are no such two axes.
        """
        if in_axis is None:
            in_axis = 1 if out_axis == 0 else 0
        return cls(tuple(shape), out_axis, in_axis)

    @property
    def outputs(self) -> int:
        """Rows of a slice."""
        return self.shape[self.out_axis]

    @property
    def inputs(self) -> int:
        """Columns of a slice."""
        return self.shape[self.in_axis]

    @property
    def size(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)

    @property
    def slices(self) -> int:
        """Number of matrices."""
        return math.prod(n for i, n in enumerate(self.shape) if i not in (self.out_axis, self.in_axis))

    def stride(self, axis: int) -> int:
        """Distance in the flat tensor between neighbours along ``axis``."""
        return math.prod(self.shape[axis + 1 :])

    def origins(self) -> npt.NDArray[np.int64]:
        """Flat position of the first weight of each slice, ascending; a vector ``[slices]``."""
        origins = np.zeros(1, dtype=np.int64)
        for axis, n in enumerate(self.shape):
            if axis not in (self.out_axis, self.in_axis):
                origins = (origins[:, None] + np.arange(n, dtype=np.int64) * self.stride(axis)).reshape(-1)
        return origins

    def planes(self, tensor: Array) -> Iterator[Array]:
        """The slices of a tensor of this shape as views ``[outputs, inputs]``, in the order of :meth:`origins`."""
        view = np.moveaxis(tensor.reshape(self.shape), (self.out_axis, self.in_axis), (-2, -1))
        for index in np.ndindex(view.shape[:-2]):
            yield view[index]


def ascending(parts: Sequence[Positions], size: int) -> Positions:
    """Flat positions in a tensor of ``size`` elements, put together and sorted; int32 where that holds them."""
    dtype = index_dtype(size)
    positions: Positions = np.concatenate([part.astype(dtype, copy=False) for part in [np.empty(0, dtype), *parts]])
    positions.sort()
    return positions
