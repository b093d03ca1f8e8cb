"""The steps of a region while rules make fewer of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import Conv, Pool, Spec

__all__ = ["Merged", "RegionSteps", "Rule", "merged"]

# A step, and those that it makes superfluous.
Merged = tuple[Step, list[Step]] | None


@dataclass
class RegionSteps:
    """Steps that shrink; each rule sees the producers and readers as they are by then."""

    steps: list[Step]
    outputs: frozenset[str]
    pools_at_once: Callable[[Conv, Pool], bool]

    def apply(self, rule: Rule) -> None:
        """Offer every step to ``rule`` in order; what it returns takes the place of the step and of those merged.

        Steps that nothing reads any longer go first: they would count as readers.
        """
        self.steps = self.needed()
        i = 0
        while i < len(self.steps):
            before = self.steps[i]
            found = rule(self, before)
            if found is None:
                i += 1
                continue
            step, gone = found
            self.steps[self.place(before)] = step
            self.steps = [s for s in self.steps if not any(s is g for g in gone)]
            i = self.place(step)

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

    def place(self, step: Step) -> int:
        """The step's place in the order."""
        # By identity: specs hold arrays, which do not compare.
        return next(i for i, own in enumerate(self.steps) if own is step)

    def producer(self, name: str) -> Step | None:
        """The step that makes ``name``."""
        return next((step for step in self.steps if step.output == name), None)

    def sole_producer(self, name: str, reader: Step) -> Step | None:
        """The step that makes ``name``, if the value is sole."""
        reads = Counter(n for step in self.steps for n in step.inputs)
        if reads[name] != 1 or name in self.outputs:
            return None
        return next((step for step in self.steps if step.output == name and step.result_view == reader.view), None)


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
