"""Whether a region is faster in the kernels than in onnxruntime, before anything has run.

Estimates are made from measured rates (``costs``), and may be off by a factor. A plan whose estimates are closer than
that to each other is timed against onnxruntime when it first runs (``run/trials.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sift_onnx.backends.cpu.lower.costs import Estimate, region_estimate
from sift_onnx.backends.cpu.lower.rates import Rates
from sift_onnx.backends.cpu.lower.weights import LIVE_BELOW, pays
from sift_onnx.backends.lowering.dims import Dim, Dims
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import (
    Conv,
    LinearResize,
    Matmul,
    OpenJoined,
    OpenSliced,
    PixelCopy,
    QuantizedMatmul,
    Recurrent,
    Repeated,
    Reshaped,
    ScatterElements,
)

__all__ = ["MARGIN", "Setting", "is_certain", "is_sparse", "region_estimates", "sizes_to_expect", "why_not_profitable"]

# How far estimates may be off, either way. Of generated models whose estimates were below half of onnxruntime's time,
# none took more than nine tenths of it (one thread of a Xeon).
MARGIN = 2.0
# Images or sequences, where their number is open.
_BATCHES = (1, 16)
# Of other sizes that only a run knows: a length that is usual.
_UNKNOWN_SIZE = 128

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Setting:
    """What regions are weighed with.

    Attributes:
        rates: of the machine.
        sizes: of open axes, by name, once for each kind of request to expect; a region must pay for one of them.
        slack: times onnxruntime's estimate that a region may take.
    """

    rates: Rates
    sizes: Sequence[Sizes] = field(default_factory=lambda: ({},))
    slack: float = 1.0


def is_sparse(step: Step) -> bool:
    """Whether enough of the step's weights are zero, of integers enough quads, or their values take few bytes."""
    if isinstance(step.spec, QuantizedMatmul):
        return step.spec.weights.quad_density <= LIVE_BELOW
    return isinstance(step.spec, (Conv, Matmul, Recurrent)) and pays(step.spec.weights)


def is_certain(estimate: Estimate, measured: float = 0.0) -> bool:
    """Whether the kernels are faster even if the estimate is off.

    Args:
        estimate: of both ways.
        measured: seconds of a first run in the kernels, packing included. One that takes longer than onnxruntime is
            expected to shows that something was not estimated.
    """
    return estimate.kernels * MARGIN < estimate.onnxruntime and measured <= estimate.onnxruntime


def sizes_to_expect(
    graph: GraphView, batch: int | None = None, input_shapes: Mapping[str, Sequence[int]] | None = None
) -> tuple[Sizes, ...]:
    """Sizes of the open axes of ``graph``, once for each kind of request that is likely.

    Args:
        graph: the model.
        batch: images or sequences per run, if known; otherwise one of them, and as many as there are lanes.
        input_shapes: shapes of inputs that are known, by name.
    """
    given: dict[str, int] = {}
    for name in graph.inputs:
        shape = (input_shapes or {}).get(name, ())
        given.update((dim, n) for dim, n in zip(graph.dims(name) or (), shape, strict=False) if isinstance(dim, str))
    firsts = (dims[0] for name in graph.inputs if (dims := graph.dims(name)))
    symbol = next((dim for dim in firsts if isinstance(dim, str)), None)
    if symbol is None or symbol in given:
        return (given,)
    return tuple(given | {symbol: size} for size in ((batch,) if batch is not None else _BATCHES))


def why_not_profitable(
    steps: Sequence[Step],
    dims: Mapping[str, Dims],
    inputs: Sequence[str],
    outputs: Sequence[str],
    setting: Setting,
    is_alone: bool = False,
) -> str:
    """Why a region is left to onnxruntime; empty if it is not.

    Args:
        steps: of the region, as they would run.
        dims: sizes of the values that enter it.
        inputs: these values; masks and targets of reshapes may be among them.
        outputs: values that leave it.
        setting: rates and sizes.
        is_alone: whether it is the whole model. Otherwise it cuts what onnxruntime has into more sessions.
    """
    if not any(is_sparse(step) for step in steps):
        return "no sparse layer near it runs in the kernels"
    own, other = setting.rates.kernels, setting.rates.onnxruntime
    if is_alone:
        calls = Estimate(own.call_seconds, other.call_seconds)
    else:
        calls = Estimate(own.turn_seconds + other.turn_seconds, 0.0)
    estimates = [steps_of + calls for steps_of in region_estimates(steps, dims, inputs, outputs, setting)]
    if any(estimate.kernels < setting.slack * estimate.onnxruntime for estimate in estimates):
        return ""
    first = estimates[0]
    return (
        f"its region has sparse layers, but would take {1e3 * first.kernels:.3g} ms in the kernels against "
        f"{1e3 * first.onnxruntime:.3g} ms (estimates for batch 1)"
    )


def region_estimates(
    steps: Sequence[Step], dims: Mapping[str, Dims], inputs: Sequence[str], outputs: Sequence[str], setting: Setting
) -> list[Estimate]:
    """Estimates for each of the sizes of ``setting``; arguments as of :func:`why_not_profitable`."""
    read = {name for step in steps for name in step.inputs}
    return [
        region_estimate(
            [_bound(step, sizes) for step in steps],
            {name: tuple(_size(dim, sizes) for dim in dims[name]) for name in inputs if name in read},
            outputs,
            setting.rates,
        )
        for sizes in setting.sizes
    ]


def _bound(step: Step, sizes: Sizes) -> Step:
    """The step with numbers for sizes that only a run knows."""
    spec = step.spec
    if isinstance(spec, OpenJoined):
        return replace(step, spec=replace(spec, size=_size(spec.size, sizes)))
    if isinstance(spec, OpenSliced):
        return replace(step, spec=OpenSliced(tuple(replace(own, count=_size(own.count, sizes)) for own in spec.ranges)))
    if isinstance(spec, (LinearResize, PixelCopy)):
        return replace(step, spec=spec.bound({name: _size(name, sizes) for name in spec.names()}))
    if not isinstance(spec, (Reshaped, Repeated, ScatterElements)):
        return step
    return replace(step, spec=spec.bound({name: _size(name, sizes) for name in spec.names()}))


def _size(dim: Dim, sizes: Sizes) -> int:
    if isinstance(dim, int):
        return dim
    if isinstance(dim, str):
        return sizes.get(dim, _UNKNOWN_SIZE)
    match dim:
        case ("product", int(factor), *symbols):
            return factor * math.prod(_size(symbol, sizes) for symbol in symbols)
        case ("sum", int(number), *symbols):
            return number + sum(_size(symbol, sizes) for symbol in symbols)
        case ("quotient", total, part):
            return _size(total, sizes) // max(_size(part, sizes), 1)
        case ("broadcast", first, second):
            return max(_size(first, sizes), _size(second, sizes))
        case ("window", size, int(stride), int(pads), _):
            return max((_size(size, sizes) + pads) // stride + 1, 0)
        case ("cut" | "smaller", first, second):
            return min(_size(first, sizes), _size(second, sizes))
    return _UNKNOWN_SIZE
