"""Fusion of normalization, residual, activation, padding and pooling into the convolution or product beside them.

Eight rules, applied to the steps of one region until none applies; those of ``quantized_fusion`` come after them, and
``flattened_rows`` before them.
"Sole" is a value that one step reads, once and in the view that it was made in, and that does not leave the region.

1. A step per channel after a sole result without activation is folded into weights and bias, or, after a layer of
   integers, into the scale and the shift of its sums. Zeros stay zeros.
2. x * sigmoid(x) is silu(x), x * hard_sigmoid(x; 1/6, 1/2) is hard_swish(x).
3. An addition to a sole result without activation becomes that operator's second operand.
4. An activation after a sole result without activation is applied where the result is stored.
5. Padding with zeros before a convolution joins its own.
6. Slices that are concatenated again to the whole of what they were cut from, are that.
7. A concatenation of one operand is that operand.
8. Max pooling after the sole result of a convolution joins it where one operator does both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from sift_onnx.backends.lowering.dims import Dims
from sift_onnx.backends.lowering.flattened_rows import before_reshapes
from sift_onnx.backends.lowering.names import made_name
from sift_onnx.backends.lowering.quantized_fusion import QUANTIZED_RULES, with_dynamic_bytes
from sift_onnx.backends.lowering.region_steps import Merged, RegionSteps, merged
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.rules.flat_images import APART, TOGETHER
from sift_onnx.backends.lowering.specs import (
    NO_ACTIVATION,
    Activation,
    ChannelCombine,
    ChannelScale,
    Conv,
    DepthToSpace,
    Depthwise,
    Elementwise,
    GroupNormalization,
    Joined,
    LinearLayer,
    Matmul,
    PixelCopy,
    Pool,
    QuantizedMatmul,
    Reshaped,
    Sliced,
)

__all__ = ["fuse"]

# Operators that apply an activation where they store their result.
_ACTIVATED = (Conv, Depthwise, Matmul, Elementwise, ChannelCombine, ChannelScale, QuantizedMatmul)


def fuse(
    steps: Sequence[Step],
    outputs: Collection[str],
    pools_at_once: Callable[[Conv, Pool], bool],
    dims_of: Callable[[str], Dims | None] = lambda _: None,
) -> list[Step]:
    """Fewer steps that compute the same.

    Args:
        steps: of one region, in topological order.
        outputs: values that leave the region.
        pools_at_once: whether the back end has one operator for a convolution and the pooling after it.
        dims_of: sizes of a value by its name, where they are known.
    """
    straight = before_reshapes(_without_detours(steps, outputs), outputs, dims_of)
    region = RegionSteps(straight, outputs, pools_at_once)
    for rule in (_fold_scale, _gate, _add_residual, _activate, _pad, _join_slices, _pool, *QUANTIZED_RULES):
        region.apply(rule)
    return with_dynamic_bytes([part for step in region.needed() for part in _unfolded(step)])


def _without_detours(steps: Sequence[Step], outputs: Collection[str]) -> list[Step]:
    """Readers of what was an image of height one, and is made one again, read the first one."""
    sources: dict[str, str] = {}
    names: dict[str, str] = {}
    for step in steps:
        if step.spec == Reshaped(TOGETHER) and step.view == "image":
            sources[step.output] = step.inputs[0]
        elif step.spec == Reshaped(APART) and step.inputs[0] in sources:
            names[step.output] = sources[step.inputs[0]]
    return [replace(step, inputs=tuple(names.get(name, name) for name in step.inputs)) for step in steps]


def _unfolded(step: Step) -> list[Step]:
    """A transposed convolution as one of single pixels, and the blocks that its channels become."""
    spec = step.spec
    if not isinstance(spec, Conv) or spec.block == (1, 1):
        return [step]
    name = made_name(step.output, "channels")
    return [
        replace(step, spec=replace(spec, block=(1, 1)), output=name),
        replace(step, spec=DepthToSpace(spec.block), inputs=(name,)),
    ]


def _fold_scale(region: RegionSteps, step: Step) -> Merged:
    if not isinstance(step.spec, ChannelScale):
        return None
    before = region.sole_producer(step.inputs[0], step)
    if before is None or len(before.inputs) != 1:
        return None
    spec = before.spec
    scale, shift = step.spec.scale, step.spec.shift
    if isinstance(spec, ChannelScale) and spec.activation == NO_ACTIVATION:
        combined = replace(step.spec, scale=spec.scale * scale, shift=spec.shift * scale + shift)
        return merged(before, step, combined)
    if isinstance(spec, GroupNormalization) and step.spec.slopes is None and step.spec.activation == NO_ACTIVATION:
        return merged(before, step, replace(spec, scale=spec.scale * scale, shift=spec.shift * scale + shift))
    if not isinstance(spec, (LinearLayer, QuantizedMatmul)):
        return None
    if spec.activation != NO_ACTIVATION or step.spec.slopes is not None:
        return None
    if isinstance(spec, QuantizedMatmul):
        made = _of_sums(spec, step.spec)
        return None if made is None else merged(before, step, made)
    if isinstance(spec, Conv):
        scale, shift = (np.repeat(values, math.prod(spec.block)) for values in (scale, shift))
    bias = shift if spec.bias is None else spec.bias * scale + shift
    weights = spec.weights if np.all(scale == 1) else spec.weights.scaled(scale)
    return merged(before, step, replace(spec, weights=weights, bias=bias, activation=step.spec.activation))


def _of_sums(layer: QuantizedMatmul, after: ChannelScale) -> QuantizedMatmul | None:
    """A layer of integers with floats as its result, whose scale and shift contain ``after``."""
    # Where the model rounds floats between the two, the layer does so as well.
    if layer.y is not None or layer.is_divided or not np.isfinite([after.scale, after.shift]).all():
        return None
    if after.activation[0] not in ("none", "clip"):
        return None
    shift = after.shift if layer.shift is None else layer.shift * after.scale + after.shift
    return replace(layer, scale=layer.scale * after.scale, shift=shift, activation=after.activation)


def _gate(region: RegionSteps, step: Step) -> Merged:
    if step.spec != Elementwise("multiply"):
        return None
    for x, gate in (step.inputs, step.inputs[::-1]):
        before = region.sole_producer(gate, step)
        if before is None or before.inputs != (x,) or not isinstance(before.spec, Elementwise):
            continue
        activation = _gated(before.spec)
        if activation is not None:
            nodes = (*step.nodes, *before.nodes)
            return replace(before, spec=Elementwise("first", activation), output=step.output, nodes=nodes), [before]
    return None


def _gated(spec: Elementwise) -> Activation | None:
    if spec == Elementwise("first", ("sigmoid", 0.0, 0.0)):
        return ("silu", 0.0, 0.0)
    kind, a, b = spec.activation
    hard = spec.kind == "first" and kind == "hard_sigmoid" and abs(a - 1 / 6) < 1e-6 and b == 0.5
    return ("hard_swish", 0.0, 0.0) if hard else None


def _add_residual(region: RegionSteps, step: Step) -> Merged:
    if not isinstance(step.spec, Elementwise) or step.spec.kind != "add" or step.spec.broadcasts:
        return None
    # The later of the two: the other one's result is there by then, and lives no longer than it did.
    order = {id(s): i for i, s in enumerate(region.steps)}
    found = []
    # An operand that is repeated does not have the result's sizes.
    for value, other in (step.inputs,) if step.spec.repeats else (step.inputs, step.inputs[::-1]):
        before = region.sole_producer(value, step)
        if before is None or not isinstance(before.spec, (Conv, Matmul)) or len(before.inputs) != 1:
            continue
        if isinstance(before.spec, Conv) and before.spec.block != (1, 1):
            continue
        if before.spec.activation == NO_ACTIVATION and value != other:
            found.append((order[id(before)], before, other))
    if not found:
        return None
    _, before, other = max(found, key=lambda item: item[0])
    assert isinstance(before.spec, (Conv, Matmul))
    made, gone = merged(before, step, replace(before.spec, activation=step.spec.activation))
    return replace(made, inputs=(before.inputs[0], other)), gone


def _activate(region: RegionSteps, step: Step) -> Merged:
    if not isinstance(step.spec, Elementwise) or step.spec.kind != "first":
        return None
    before = region.sole_producer(step.inputs[0], step)
    if before is None or not isinstance(before.spec, _ACTIVATED):
        return None
    if isinstance(before.spec, QuantizedMatmul) and (before.spec.y or step.spec.activation[0] != "clip"):
        return None
    if before.spec.activation != NO_ACTIVATION:
        return None
    return merged(before, step, replace(before.spec, activation=step.spec.activation))


def _pad(region: RegionSteps, step: Step) -> Merged:
    if not isinstance(step.spec, (Conv, Depthwise)):
        return None
    before = region.sole_producer(step.inputs[0], step)
    if before is None or not isinstance(before.spec, PixelCopy) or before.spec.fill != 0:
        return None
    pads = before.spec.pads
    if pads is None:
        return None
    spec = replace(step.spec, geometry=step.spec.geometry.padded(pads))
    nodes = (*step.nodes, *before.nodes)
    return replace(step, spec=spec, inputs=(before.inputs[0], *step.inputs[1:]), nodes=nodes), [before]


def _join_slices(region: RegionSteps, step: Step) -> Merged:
    spec = step.spec
    if not isinstance(spec, Joined):
        return None
    makers = {maker.output: maker for maker in region.steps}
    order = sorted(range(len(step.inputs)), key=lambda operand: spec.starts[operand])
    names = [step.inputs[operand] for operand in order]
    # Operands by the places where they begin; the one that has the result's sizes stays the first one.
    inputs: dict[int, str] = {}
    first = 0
    i = 0
    while i < len(names):
        whole, count = _whole_of(names[i:], makers, spec.axis)
        start = spec.starts[order[i]]
        if 0 in order[i : i + count]:
            first = start
        inputs[start] = whole or names[i]
        i += count
    if len(inputs) == 1 and makers.get(inputs[first], step).result_view == step.view:
        return replace(step, spec=Reshaped(), inputs=(inputs[first],)), []
    if len(inputs) == len(names):
        return None
    starts = (first, *(start for start in inputs if start != first))
    repeated = {spec.starts[operand] for operand in spec.repeated}
    left = tuple(operand for operand, start in enumerate(starts) if start in repeated)
    joined = replace(spec, starts=starts, repeated=left)
    return replace(step, spec=joined, inputs=tuple(inputs[start] for start in starts)), []


def _whole_of(names: Sequence[str], makers: Mapping[str, Step], axis: int) -> tuple[str, int]:
    """The value that the first few of ``names`` are slices of, without a gap, and how many they are; or ("", 1)."""
    end = 0
    for count, name in enumerate(names, 1):
        maker = makers.get(name)
        first = makers.get(names[0])
        if maker is None or first is None or maker.inputs[0] != first.inputs[0]:
            break
        spec = maker.spec
        if not isinstance(spec, Sliced) or len(spec.ranges) != 1 or spec.drops:
            break
        taken = spec.ranges[0]
        if taken.axis != axis or taken.start != end or taken.step != 1 or taken.of is None or taken.stop is None:
            break
        end = taken.stop
        if end == taken.of:
            return maker.inputs[0], count
    return "", 1


def _pool(region: RegionSteps, step: Step) -> Merged:
    if not isinstance(step.spec, Pool):
        return None
    before = region.sole_producer(step.inputs[0], step)
    if before is None or not isinstance(before.spec, Conv) or len(before.inputs) != 1:
        return None
    if before.spec.pool is not None or not region.pools_at_once(before.spec, step.spec):
        return None
    return merged(before, step, replace(before.spec, pool=step.spec))
