"""Steps of a region that run on all of a batch before later ones do: all steps, or those of a stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.layouts import Layout
from sift_onnx.backends.cpu.lower.region import Region
from sift_onnx.backends.cpu.run.region_operators import RegionOperators
from sift_onnx.backends.cpu.run.schedules.region_schedules import RegionSchedules
from sift_onnx.backends.cpu.run.schedules.slabs import Slab

__all__ = ["RegionStage"]

Array = npt.NDArray[Any]


class RegionStage:
    """How the steps run, slab after slab.

    Attributes:
        region: of these steps alone.
        first: index of the first one in the region that they are of.
        reads: names of its inputs, and the values of constants.
        schedules: by the sizes of its inputs.
    """

    def __init__(self, region: Region, operators: RegionOperators, threads: int, isa: str, first: int = 0) -> None:
        """Take the ``operators`` of the region that the steps are of."""
        self.region, self.first = region, first
        self.reads = tuple((name, region.constants.get(name)) for name, _ in region.inputs)
        self.schedules = RegionSchedules(region, _StageOperators(operators, first), threads, isa)

    def ranges(self, slab: Slab, arrays: Sequence[Array]) -> list[Array]:
        """A slab of all arrays but constants: images and rows are consecutive, so it is a range of their elements."""
        shared = [constant is not None for _, constant in self.reads]
        shared += [False] * (len(arrays) - len(shared))
        return [
            array
            if is_shared
            else array.reshape(-1)[slab.first * (size := array.size // slab.of) :][: slab.count * size]
            for array, is_shared in zip(arrays, shared, strict=True)
        ]


class _StageOperators:
    """The operators of a region by their index in a stage, which begins with step ``first`` of the region."""

    def __init__(self, operators: RegionOperators, first: int) -> None:
        self._operators, self._first = operators, first

    @property
    def superseded(self) -> int:
        """See :class:`RegionOperators`."""
        return self._operators.superseded

    def op(self, step: int, layout: Layout) -> _kernels.Op:
        """The operator of a step in a layout."""
        return self._operators.op(self._first + step, layout)
