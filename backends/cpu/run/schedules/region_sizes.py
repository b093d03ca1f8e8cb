"""Sizes of all values of a region, from those of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from sift_onnx.backends.cpu.lower.region import Region
from sift_onnx.backends.cpu.run.schedules.batches import are_operands_of
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import Sizes, input_key
from sift_onnx.backends.cpu.run.schedules.resolved import resolved
from sift_onnx.backends.lowering.dims import Dim, Dims
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import (
    Conv,
    Joined,
    LayerNormalization,
    LinearResize,
    Matmul,
    OpenSliced,
    PixelCopy,
    Repeated,
    Reshaped,
    ScatterElements,
    Sliced,
    Spec,
    Transposed,
    result_dims,
)
from sift_onnx.errors import UsageError

__all__ = ["sizes_of_values", "with_bounds"]

# What fits any one operand, and makes something of it.
_FITTING = (Matmul, LayerNormalization, Transposed)


def sizes_of_values(region: Region, sizes: Sequence[Sizes]) -> dict[str, Sizes]:
    """Sizes of all values of ``region``, by name; of inputs, by name and view.

    Args:
        region: whose values.
        sizes: of its inputs, in order.

    Raises:
        UsageError: inputs do not fit each other, or are too small for a window.
    """
    dims: dict[str, Sizes] = {
        input_key(name, view): tuple(size) for (name, view), size in zip(region.inputs, sizes, strict=True)
    }
    names = _named_sizes(region, dims)
    for step, name_of_step in zip(region.steps, region.names, strict=True):
        operands = [dims[name] if name in dims else dims[input_key(name, step.view)] for name in step.inputs]
        if len(operands) == 1 and isinstance(step.spec, _FITTING):
            dims[step.output] = cast("Sizes", result_dims(step.spec, operands[0]))
            continue
        whole = resolved(step, operands)
        if whole is not step:
            operands = [operands[step.inputs.index(name)] for name in whole.inputs]
            step = whole
        spec = step.spec.bound(names) if isinstance(step.spec, (Reshaped, Repeated, ScatterElements)) else step.spec
        result = result_dims(spec, *operands[:2])
        if {*map(type, result)} - {int}:
            raise _unfit(step, name_of_step, operands, result)
        made = cast("Sizes", result)
        if not are_operands_of(spec, operands, made):
            raise _unfit(step, name_of_step, operands, result)
        if 0 in made[1:] and 0 not in operands[0] and not _may_be_empty(spec):
            raise _too_small(step, name_of_step, operands[0])
        dims[step.output] = made
    return dims


def with_bounds(region: Region, sizes: Sequence[Sizes]) -> Region:
    """``region`` with numbers for the bounds of slices and pads that only a run knows; itself without such.

    They are those of the whole batch, also where that is cut into slabs.
    """
    if not any(
        isinstance(step.spec, (LinearResize, OpenSliced, PixelCopy)) and step.spec.names() for step in region.steps
    ):
        return region
    names = _named_sizes(
        region, {input_key(name, view): size for (name, view), size in zip(region.inputs, sizes, strict=True)}
    )
    steps = [
        replace(step, spec=step.spec.bound(names))
        if isinstance(step.spec, (LinearResize, OpenSliced, PixelCopy))
        else step
        for step in region.steps
    ]
    return replace(region, steps=tuple(steps))


def _may_be_empty(spec: Spec) -> bool:
    """Whether an operator that only moves values makes nothing of some, as ONNX specifies."""
    if isinstance(spec, Sliced):
        return not any(taken.is_one for taken in spec.ranges)
    return isinstance(spec, (Repeated, Joined))


def _named_sizes(region: Region, dims: Mapping[str, Sizes]) -> dict[Dim, int]:
    """What the names, and the expressions, of sizes of the region's inputs stand for."""
    return {
        symbol: size
        for name, view in region.inputs
        for symbol, size in zip(region.symbols.get(name, ()), dims[input_key(name, view)], strict=False)
        if not isinstance(symbol, int)
    }


def _unfit(step: Step, name: str, operands: Sequence[Sequence[int]], result: Dims) -> UsageError:
    if step.view == "image" and all(len(sizes) == 4 for sizes in operands):
        listed = ", ".join(str(list(sizes[2:])) for sizes in operands)
        return UsageError(f"node {name!r}: its operands are images of {listed}")
    listed = " and ".join(str(list(sizes)) for sizes in operands)
    return UsageError(f"node {name!r} cannot make {list(result)} of {listed}")


def _too_small(step: Step, name: str, dims: Dims) -> UsageError:
    where = f"node {name!r}"
    if isinstance(step.spec, Conv) and step.spec.pool is not None:
        convolved = result_dims(replace(step.spec, pool=None), dims)
        if 0 not in convolved[1:]:
            where, dims = f"the pooling behind {where}", convolved
    return UsageError(f"{where}: its window does not fit an input of {list(dims)}; feed a larger one")
