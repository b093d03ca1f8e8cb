"""What is known of sizes while they are followed through a graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from sift_onnx.backends.lowering.assumed_sizes import AssumedSizes, SizeProbe
from sift_onnx.backends.lowering.dims import Dim, Dims, bound
from sift_onnx.graphs.constants import array_of

__all__ = ["MOST_ELEMENTS", "KnownSizes", "SmallTensor"]

# Larger constants are no shapes.
MOST_ELEMENTS = 16


@dataclass(frozen=True)
class SmallTensor:
    """An integer tensor that follows from sizes.

    Attributes:
        elements: in row-major order.
        shape: its own sizes.
    """

    elements: tuple[Dim, ...]
    shape: tuple[int, ...]

    def integers(self) -> npt.NDArray[np.int64] | None:
        """The tensor, where all elements are numbers."""
        numbers = [size for size in self.elements if isinstance(size, int)]
        return np.array(numbers, np.int64).reshape(self.shape) if len(numbers) == len(self.elements) else None


class KnownSizes:
    """What is known so far of the sizes and the small integer tensors of a graph.

    Attributes:
        fixed: numbers that open names turned out to stand for.
        numbers: tensors of one number that the graph computes, by name.
    """

    def __init__(
        self,
        inferred: Callable[[str], Dims | None],
        constants: Mapping[str, gs.Constant],
        evaluated: Mapping[str, npt.NDArray[Any]],
        assumed: AssumedSizes | SizeProbe | None = None,
    ) -> None:
        """Nothing is known but what ONNX's inference has found; arguments as of :class:`Sizes`."""
        self.fixed: dict[str, int] = {}
        self.numbers: dict[str, float] = {}
        self._dims: dict[str, Dims] = {}
        self._vectors: dict[str, tuple[Dim, ...]] = {}
        self._tables: dict[str, SmallTensor] = {}
        self._inferred_dims = inferred
        self._constants = constants
        self._evaluated = evaluated
        self._assumed = assumed

    def forget(self) -> None:
        """All but what is fixed: sizes that followed from an open name are other ones now."""
        for known in (self._dims, self._vectors, self._tables, self.numbers):
            known.clear()

    def _inferred(self, name: str) -> Dims | None:
        dims = self._inferred_dims(name)
        return tuple(bound(size, self.fixed) for size in dims) if dims and self.fixed else dims

    def dims(self, name: str) -> Dims | None:
        """Sizes of a tensor; None if not even its rank is known."""
        return self._dims.get(name) or self._inferred(name)

    def vector(self, name: str) -> tuple[Dim, ...] | None:
        """Elements of an integer tensor of one axis, or of none; None for what is none, or unknown."""
        found = self._vectors.get(name)
        values = self.constant(name) if found is None else None
        if values is None or values.ndim > 1 or values.dtype.kind not in "iu":
            return found
        return tuple(int(n) for n in values.reshape(-1))

    def tensor(self, name: str) -> SmallTensor | None:
        """An integer tensor of any number of axes; None for what is none, or unknown."""
        if name in self._tables:
            return self._tables[name]
        vector = self.vector(name)
        if vector is not None:
            dims = self.dims(name)
            return SmallTensor(vector, (len(vector),) if dims else ()) if dims is not None else None
        values = self.constant(name)
        if values is None or values.dtype.kind not in "iu":
            return None
        return SmallTensor(tuple(int(n) for n in values.reshape(-1)), values.shape)

    def number(self, name: str) -> float | None:
        """The number that a tensor of one element is; None for what is none, or unknown."""
        if name in self.numbers:
            return self.numbers[name]
        values = self.constant(name)
        if values is not None and values.size == 1:
            return float(values.reshape(-1)[0])
        vector = self._vectors.get(name, ())
        return float(vector[0]) if len(vector) == 1 and isinstance(vector[0], int) else None

    def constant(self, name: str) -> npt.NDArray[Any] | None:
        """Values of a small constant, or of what the graph computes of such; None for others."""
        evaluated, constant = self._evaluated.get(name), self._constants.get(name)
        if evaluated is not None:
            return evaluated if evaluated.size <= MOST_ELEMENTS else None
        return array_of(constant) if constant is not None and math.prod(constant.shape) <= MOST_ELEMENTS else None

    def integers(self, name: str) -> list[int] | None:
        """Elements of an integer tensor of one axis, where all are numbers."""
        vector = self.vector(name)
        if vector is None or not all(isinstance(size, int) for size in vector):
            return None
        return [size for size in vector if isinstance(size, int)]

    def is_float(self, name: str) -> bool:
        """Whether it is a float32 tensor of one number."""
        values = self.constant(name)
        return name in self.numbers or (values is not None and values.dtype == np.float32)

    def know_dims(self, name: str, dims: Sequence[Dim | None] | None) -> None:
        """Keep sizes that a rule found, where nothing better is known; None is unknown."""
        known = self._inferred(name)
        if dims is None or (known is not None and len(known) != len(dims)):
            return
        unknown = known or [f"{name}[{axis}]" for axis in range(len(dims))]
        self._dims[name] = tuple(
            other if size is None or isinstance(other, int) else self.usual(size)
            for size, other in zip(dims, unknown, strict=True)
        )

    def usual(self, size: Dim) -> Dim:
        """What a size is in the runs that are assumed."""
        return size if self._assumed is None else self._assumed.simplified(size)

    def know_vector(self, name: str, vector: tuple[Dim, ...] | None) -> None:
        """Keep the elements of an integer tensor that a rule found; None is unknown."""
        if vector is not None and len(vector) <= MOST_ELEMENTS:
            self._vectors[name] = tuple(map(self.usual, vector))

    def know_tensor(self, name: str, tensor: SmallTensor | None) -> None:
        """Keep an integer tensor that a rule found; None is unknown."""
        if tensor is None or len(tensor.elements) > MOST_ELEMENTS:
            return
        self.know_dims(name, tensor.shape)
        if len(tensor.shape) <= 1:
            self._vectors[name] = tuple(map(self.usual, tensor.elements))
        else:
            self._tables[name] = tensor

    def know_number(self, name: str, number: float | None) -> None:
        """Keep the number that a tensor of one element is; None is unknown."""
        if number is not None and math.isfinite(number):
            self.numbers[name] = number
