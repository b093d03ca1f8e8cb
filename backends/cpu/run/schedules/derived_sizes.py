"""Sizes of all values of a region for further sizes of its inputs, without a walk over its steps.

The walk is done once, with names for the open axes of the inputs: the axes that have the same size share a name, and
those of one position are taken to have one position always. What it finds holds for all inputs of which that is true
as well, and each request is compared with it. A walk over the steps of a transformer takes a tenth of a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from sift_onnx.backends.cpu.lower.region import Region
from sift_onnx.backends.cpu.run.schedules.batches import are_operands_of
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import Sizes, input_key
from sift_onnx.backends.lowering.dims import Dim, Dims, bound, product
from sift_onnx.backends.lowering.resampling import Padding
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import (
    ArgExtreme,
    GatherElements,
    OpenJoined,
    OpenSliced,
    PixelCopy,
    Recurrent,
    Repeated,
    Reshaped,
    ScatterElements,
    Sliced,
    Spec,
    TopK,
    result_dims,
)

__all__ = ["DerivedSizes"]

# What a run decides by numbers.
_OF_NUMBERS = (ArgExtreme, GatherElements, OpenJoined, OpenSliced, Recurrent, ScatterElements, TopK)


class DerivedSizes:
    """Sizes of a region's values as expressions of its inputs' open axes; see :meth:`derive`."""

    def __init__(self, inputs: Sequence[Dims], values: dict[str, Dims]) -> None:
        """Take the sizes of the inputs, in order, and of all values, by name."""
        self._inputs = tuple(inputs)
        self._distinct = tuple(dict.fromkeys(values.values()))
        numbers = {dims: number for number, dims in enumerate(self._distinct)}
        self._values = {name: numbers[dims] for name, dims in values.items()}

    @classmethod
    def derive(cls, region: Region, sizes: Sequence[Sizes]) -> DerivedSizes | None:
        """What follows from inputs of ``sizes``, which fit each other; None where numbers have to be known.

        Args:
            region: whose values.
            sizes: of its inputs, in order.
        """
        names: dict[int, str] = {}
        known: dict[Dim, Dim] = {}
        inputs: list[Dims] = []
        for (name, _), own in zip(region.inputs, sizes, strict=True):
            declared = region.symbols.get(name, ())
            if len(declared) != len(own):
                declared = own
            dims = tuple(
                size if isinstance(axis, int) or size < 2 else names.setdefault(size, f"axis of {size}")
                for axis, size in zip(declared, own, strict=True)
            )
            known.update((axis, dim) for axis, dim in zip(declared, dims, strict=True) if not isinstance(axis, int))
            inputs.append(dims)
        if not names:
            return None
        values = {input_key(name, view): dims for (name, view), dims in zip(region.inputs, inputs, strict=True)}
        for step in region.steps:
            operands = [values[name] if name in values else values[input_key(name, step.view)] for name in step.inputs]
            result = _result(step, operands, known)
            if result is None:
                return None
            values[step.output] = result
        return cls(inputs, values)

    def of(self, sizes: Sequence[Sizes]) -> dict[str, Sizes] | None:
        """Sizes of all values, by name, for inputs of ``sizes``; None where they may be others."""
        known: dict[str, Dim] = {}
        for dims, own in zip(self._inputs, sizes, strict=True):
            if len(dims) != len(own):
                return None
            for dim, size in zip(dims, own, strict=True):
                if dim != size and (not isinstance(dim, str) or size < 2 or known.setdefault(dim, size) != size):
                    return None
        found: list[Sizes] = []
        for dims in self._distinct:
            made = tuple([dim if isinstance(dim, int) else bound(dim, known) for dim in dims])
            numbers = tuple([size for size in made if isinstance(size, int) and size > 0])
            if len(numbers) != len(made):
                return None
            found.append(numbers)
        return {name: found[number] for name, number in self._values.items()}


def _result(step: Step, operands: Sequence[Dims], known: dict[Dim, Dim]) -> Dims | None:
    """What a step makes of operands of these sizes; None where that depends on numbers, or is empty."""
    spec = step.spec
    if isinstance(spec, _OF_NUMBERS):
        return None
    if isinstance(spec, PixelCopy) and any(isinstance(axis, Padding) for axis in (spec.height, spec.width)):
        return None
    if isinstance(spec, (Reshaped, Repeated)):
        spec = spec.bound(known)
    result = result_dims(spec, *operands[:2])
    return result if 0 not in result and _fit(spec, operands, result) else None


def _fit(spec: Spec, operands: Sequence[Dims], result: Dims) -> bool:
    """Whether an operator takes operands of these sizes, whatever their names stand for."""
    match spec:
        case Reshaped():
            return product(operands[0]) == product(result)
        case Repeated(sizes=sizes):
            return all(operands[0][axis] == 1 for axis, _ in sizes)
        case Sliced(ranges=ranges, drops=drops):
            return not drops or all(taken.is_one for taken in ranges)
    # The others compare sizes with each other alone: names that are the same, or numbers.
    return are_operands_of(spec, cast("Sequence[Sizes]", operands), cast("Sizes", result))
