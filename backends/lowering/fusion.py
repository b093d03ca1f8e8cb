"""Fusion of normalization, residual, activation and pooling into the convolution or matrix product before them.

Five rules, applied to the steps of one region until none applies. "Sole" is a value that one step reads, once, and that
does not leave the region.

1. A step per channel after a sole result without activation is folded into weights and bias. Zeros stay zeros.
2. x * sigmoid(x) is silu(x), x * hard_sigmoid(x; 1/6, 1/2) is hard_swish(x).
3. An addition to a sole result without activation becomes that operator's second operand.
4. An activation after a sole result without activation is applied where the result is stored.
5. Max pooling after the sole result of a convolution joins it where one operator does both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import (
    NO_ACTIVATION,
    Activation,
    ChannelScale,
    Conv,
    Depthwise,
    Elementwise,
    LinearLayer,
    Matmul,
    Pool,
    Spec,
)

__all__ = ["fuse"]


def fuse(steps: Sequence[Step], outputs: Collection[str], pools_at_once: Callable[[Conv, Pool], bool]) -> list[Step]:
    """Fewer steps that compute the same.

    Args:
        steps: of one region, in topological order.
        outputs: values that leave the region.
        pools_at_once: whether the back end has one operator for a convolution and the pooling after it.
    """
    region = _Region(list(steps), frozenset(outputs), pools_at_once)
    for rule in (_fold_scale, _gate, _add_residual, _activate, _pool):
        region.apply(rule)
    return region.steps


@dataclass
class _Region:
    """Steps that shrink; each rule sees the producers and readers as they are by then."""

    steps: list[Step]
    outputs: frozenset[str]
    pools_at_once: Callable[[Conv, Pool], bool]

    def apply(self, rule: _Rule) -> None:
        """Offer every step to ``rule`` in order; what it returns takes the place of the step and of those merged."""
        i = 0
        while i < len(self.steps):
            merged = rule(self, self.steps[i])
            if merged is None:
                i += 1
                continue
            step, gone = merged
            self.steps[i] = step
            self.steps = [s for s in self.steps if not any(s is g for g in gone)]
            i = next(k for k, s in enumerate(self.steps) if s is step)

    def sole_producer(self, name: str) -> Step | None:
        """The step that makes ``name``, if the value is sole."""
        reads = Counter(n for step in self.steps for n in step.inputs)
        if reads[name] != 1 or name in self.outputs:
            return None
        return next((step for step in self.steps if step.output == name), None)


# A step, and those that it makes superfluous.
_Merged = tuple[Step, list[Step]] | None
_Rule = Callable[[_Region, Step], _Merged]


def _fold_scale(region: _Region, step: Step) -> _Merged:
    if not isinstance(step.spec, ChannelScale):
        return None
    before = region.sole_producer(step.inputs[0])
    if before is None or len(before.inputs) != 1:
        return None
    spec = before.spec
    scale, shift = step.spec.scale, step.spec.shift
    if isinstance(spec, ChannelScale) and spec.activation == NO_ACTIVATION:
        combined = ChannelScale(spec.scale * scale, spec.shift * scale + shift, step.spec.activation)
        return _merge(before, step, combined)
    if not isinstance(spec, LinearLayer) or spec.activation != NO_ACTIVATION:
        return None
    bias = shift if spec.bias is None else spec.bias * scale + shift
    weights = spec.weights if np.all(scale == 1) else spec.weights.scaled(scale)
    return _merge(before, step, replace(spec, weights=weights, bias=bias, activation=step.spec.activation))


def _gate(region: _Region, step: Step) -> _Merged:
    if step.spec != Elementwise("multiply"):
        return None
    for x, gate in (step.inputs, step.inputs[::-1]):
        before = region.sole_producer(gate)
        if before is None or before.inputs != (x,) or not isinstance(before.spec, Elementwise):
            continue
        activation = _gated(before.spec)
        if activation is not None:
            merged = replace(before, spec=Elementwise("first", activation), output=step.output)
            return replace(merged, nodes=(*step.nodes, *before.nodes)), [before]
    return None


def _gated(spec: Elementwise) -> Activation | None:
    if spec == Elementwise("first", ("sigmoid", 0.0, 0.0)):
        return ("silu", 0.0, 0.0)
    kind, a, b = spec.activation
    hard = spec.kind == "first" and kind == "hard_sigmoid" and abs(a - 1 / 6) < 1e-6 and b == 0.5
    return ("hard_swish", 0.0, 0.0) if hard else None


def _add_residual(region: _Region, step: Step) -> _Merged:
    if not isinstance(step.spec, Elementwise) or step.spec.kind != "add":
        return None
    # The later of the two: the other one's result is there by then, and lives no longer than it did.
    order = {id(s): i for i, s in enumerate(region.steps)}
    found = []
    for value, other in (step.inputs, step.inputs[::-1]):
        before = region.sole_producer(value)
        if before is None or not isinstance(before.spec, (Conv, Matmul)) or len(before.inputs) != 1:
            continue
        if before.spec.activation == NO_ACTIVATION and value != other:
            found.append((order[id(before)], before, other))
    if not found:
        return None
    _, before, other = max(found, key=lambda item: item[0])
    assert isinstance(before.spec, (Conv, Matmul))
    merged = _merge(before, step, replace(before.spec, activation=step.spec.activation))
    return replace(merged[0], inputs=(before.inputs[0], other)), merged[1]


def _activate(region: _Region, step: Step) -> _Merged:
    if not isinstance(step.spec, Elementwise) or step.spec.kind != "first":
        return None
    before = region.sole_producer(step.inputs[0])
    if before is None or not isinstance(before.spec, (Conv, Depthwise, Matmul, Elementwise, ChannelScale)):
        return None
    if before.spec.activation != NO_ACTIVATION:
        return None
    return _merge(before, step, replace(before.spec, activation=step.spec.activation))


def _pool(region: _Region, step: Step) -> _Merged:
    if not isinstance(step.spec, Pool):
        return None
    before = region.sole_producer(step.inputs[0])
    if before is None or not isinstance(before.spec, Conv) or len(before.inputs) != 1:
        return None
    if before.spec.pool is not None or not region.pools_at_once(before.spec, step.spec):
        return None
    return _merge(before, step, replace(before.spec, pool=step.spec))


def _merge(before: Step, step: Step, spec: Spec) -> tuple[Step, list[Step]]:
    """``before`` with ``spec`` in the place of ``step``."""
    merged = replace(before, spec=spec, output=step.output, result_view=step.result_view)
    return replace(merged, nodes=(*before.nodes, *step.nodes)), [before]
