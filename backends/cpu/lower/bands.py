"""Layers that may run in bands of rows: a depthwise layer and the pointwise layers before and after it.

Inverted bottlenecks and depthwise separable convolutions consist of them. What lies between the layers is several
times as large as input and output. In bands of rows, it stays in a cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import Conv, Depthwise, Geometry

__all__ = ["Chain", "chains_of"]

_POINTWISE = Geometry((1, 1))


@dataclass(frozen=True)
class Chain:
    """Steps of a region whose results no other step reads, but for the last one's.

    Attributes:
        before: index of the pointwise layer that the depthwise one reads; None if there is none.
        depthwise: index of the depthwise layer.
        after: index of the pointwise layer that reads the depthwise one; None if there is none. One of both there is.
    """

    before: int | None
    depthwise: int
    after: int | None

    @property
    def steps(self) -> tuple[int, ...]:
        """The indices of its steps, in order."""
        return tuple(step for step in (self.before, self.depthwise, self.after) if step is not None)


def chains_of(steps: Sequence[Step], outputs: Sequence[str]) -> tuple[Chain, ...]:
    """The chains of a region, in order; no step is in two of them.

    Args:
        steps: of the region.
        outputs: values that are read outside.
    """
    reads = Counter(name for step in steps for name in (*step.inputs, step.mask))
    reads.update(outputs)
    makers = {step.output: number for number, step in enumerate(steps)}
    readers = {step.inputs[0]: number for number, step in enumerate(steps) if step.inputs}
    found: list[Chain] = []
    taken: set[int] = set()
    for number, step in enumerate(steps):
        if not isinstance(step.spec, Depthwise) or step.dtype is not DType.FLOAT32:
            continue
        before, after = makers.get(step.inputs[0]), readers.get(step.output)
        if before is not None and (
            reads[step.inputs[0]] > 1
            or before in taken
            or not _is_pointwise(steps[before])
            or len(steps[before].inputs) > 1
        ):
            before = None
        if after is not None and (reads[step.output] > 1 or not _is_pointwise(steps[after])):
            after = None
        if before is not None or after is not None:
            found.append(Chain(before, number, after))
            taken.update(found[-1].steps)
    return tuple(found)


def _is_pointwise(step: Step) -> bool:
    spec = step.spec
    return (
        isinstance(spec, Conv)
        and (spec.geometry, spec.groups, spec.pool, spec.block) == (_POINTWISE, 1, None, (1, 1))
        and step.dtype is DType.FLOAT32
    )
