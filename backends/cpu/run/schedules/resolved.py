"""Steps with the sizes of a run, where only that knows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sift_onnx.backends.cpu.lower.region import Region
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import Sizes, operand_key
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import Joined, OpenJoined

__all__ = ["resolved", "resolved_region"]


def resolved(step: Step, operands: Sequence[Sizes]) -> Step:
    """The step with what it does to operands of these sizes; those that are empty may be left out."""
    spec = step.spec
    if not isinstance(spec, OpenJoined):
        return step
    counts = [sizes[spec.axis] for sizes in operands]
    kept = [operand for operand, count in enumerate(counts) if count]
    # What is repeated has not the sizes of the result; the first operand has, also where it is empty.
    first = next((operand for operand in kept if operand not in spec.repeated), 0)
    kept = [first, *(operand for operand in kept if operand != first)]
    starts = [
        sum(counts[other] for other in range(len(counts)) if spec.places[other] < spec.places[operand])
        for operand in kept
    ]
    if not counts[first]:
        starts[0] = sum(counts)
    repeated = tuple(place for place, operand in enumerate(kept) if operand in spec.repeated)
    joined = Joined(spec.axis, tuple(starts), sum(counts), repeated)
    return replace(step, spec=joined, inputs=tuple(step.inputs[operand] for operand in kept))


def resolved_region(region: Region, dims: Mapping[str, Sizes]) -> Region:
    """``region`` for values of these sizes, by name, or by name and view."""
    if not any(isinstance(step.spec, OpenJoined) for step in region.steps):
        return region
    steps = [
        resolved(step, [dims[operand_key(step, position, dims)] for position in range(len(step.inputs))])
        for step in region.steps
    ]
    return replace(region, steps=tuple(steps))
