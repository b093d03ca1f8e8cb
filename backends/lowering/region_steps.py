"""The steps of a region while rules make fewer of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import Conv, Pool, Spec

__all__ = ["Merged", "RegionSteps", "Rule", "merged"]

# A step, and those that it makes superfluous.
Merged = tuple[Step, list[Step]] | None


class RegionSteps:
    """Steps that shrink; each rule sees the producers and readers as they are by then.

    Attributes:
        steps: in order.
        outputs: values that leave the region.
        pools_at_once: whether the back end has one operator for a convolution and the pooling after it.
    """

    def __init__(
        self, steps: Sequence[Step], outputs: Collection[str], pools_at_once: Callable[[Conv, Pool], bool]
    ) -> None:
        """All of ``steps``."""
        self.outputs = frozenset(outputs)
        self.pools_at_once = pools_at_once
        self._set(steps)

    def _set(self, steps: Sequence[Step]) -> None:
        self.steps = list(steps)
        self._makers = {step.output: step for step in steps}
        self._reads = Counter(name for step in steps for name in step.inputs)

    def apply(self, rule: Rule) -> None:
        """Offer every step to ``rule`` in order; what it returns takes the place of the step and of those merged.

        Steps that nothing reads any longer go first: they would count as readers.
        """
        self._set(self.needed())
        i = 0
        while i < len(self.steps):
            before = self.steps[i]
            found = rule(self, before)
            if found is None:
                i += 1
                continue
            step, gone = found
            self._forget(before)
            for other in gone:
                self._forget(other)
            self._know(step)
            self.steps[self.place(before)] = step
            left = {id(other) for other in gone}
            self.steps = [own for own in self.steps if id(own) not in left]
            i = self.place(step)

    def _forget(self, step: Step) -> None:
        if self._makers.get(step.output) is step:
            del self._makers[step.output]
        self._reads.subtract(step.inputs)

    def _know(self, step: Step) -> None:
        self._makers[step.output] = step
        self._reads.update(step.inputs)

    def needed(self) -> list[Step]:
        """The steps whose results are read; slices that were joined again, say, may have no reader left."""
        wanted = set(self.outputs)
        kept = []
        for step in reversed(self.steps):
            if step.output in wanted:
                wanted.update(step.inputs)
                kept.append(step)
        return kept[::-1]

    def insert_before(self, reader: Step, step: Step) -> None:
        """Put a step in; what it makes is for ``reader``."""
        self.steps.insert(self.place(reader), step)
        self._know(step)

    def place(self, step: Step) -> int:
        """The step's place in the order."""
        # By identity: specs hold arrays, which do not compare.
        return next(i for i, own in enumerate(self.steps) if own is step)

    def producer(self, name: str) -> Step | None:
        """The step that makes ``name``."""
        return self._makers.get(name)

    def sole_producer(self, name: str, reader: Step) -> Step | None:
        """The step that makes ``name``, if the value is sole."""
        if self._reads[name] != 1 or name in self.outputs:
            return None
        step = self._makers.get(name)
        return step if step is not None and step.result_view == reader.view else None


Rule = Callable[[RegionSteps, Step], Merged]


def merged(before: Step, step: Step, spec: Spec) -> tuple[Step, list[Step]]:
    """``before`` with ``spec`` in the place of ``step``."""
    made = replace(
        before,
        spec=spec,
        output=step.output,
        result_view=step.result_view,
        nodes=(*before.nodes, *step.nodes),
        result_dtype=step.result_dtype,
    )
    return made, [before]
