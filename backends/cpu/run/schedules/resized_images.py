"""The schedule of images of another size, made of one that is there.

Where no value but images in planes or in lanes is between the operators, nothing about a schedule depends on the size
of the images but the shapes of tensors, where they lie, what resizes them, and which layers run in bands. Shapes follow
from those of the inputs, operator by operator, and places from the shapes. So the first request of a new size is not
planned step by step. Whether that holds is checked with the plan of a second size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.bands import Chain
from sift_onnx.backends.cpu.lower.layouts import Layout
from sift_onnx.backends.cpu.lower.region import Region
from sift_onnx.backends.cpu.run.operators import build_for_size
from sift_onnx.backends.cpu.run.schedules.bands import banded, in_bands
from sift_onnx.backends.cpu.run.schedules.calls import Schedule, bytes_of
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import Shape, Sizes, input_key, kernel_shape, operand_key
from sift_onnx.backends.cpu.run.schedules.placement import Arrangement, Call, arranged
from sift_onnx.backends.cpu.run.schedules.slabs import Slab
from sift_onnx.backends.cpu.run.schedules.values import Values, array_sizes
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.names import stored_key
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import LinearResize, PixelCopy

__all__ = ["ResizedImages"]

# Operators that know no size but that of their weights.
_OF_ANY_SIZE = (
    _kernels.AveragePool,
    _kernels.ChannelCombine,
    _kernels.ChannelCopy,
    _kernels.ChannelScale,
    _kernels.Conv,
    _kernels.DenseProduct,
    _kernels.DepthToSpace,
    _kernels.Depthwise,
    _kernels.Elementwise,
    _kernels.GlobalAveragePool,
    _kernels.GroupNormalization,
    _kernels.LayerNormalization,
    _kernels.Matmul,
    _kernels.MaxPool,
    _kernels.PooledWinograd,
    _kernels.Reorder,
    _kernels.Softmax,
    _kernels.Winograd,
)
_OF_ONE_SIZE = (_kernels.LinearResize, _kernels.PixelCopy)
# Each plan has its own of these operators. The others are those of the region, which all plans share.
_MADE_EACH_TIME = (
    *_OF_ONE_SIZE,
    _kernels.BandedDepthwise,
    _kernels.ChannelCopy,
    _kernels.Elementwise,
    _kernels.Reorder,
)
# Numbers of images that schedules are kept for, and plans that may differ from what was expected of them.
_MOST_BATCHES, _MOST_TRIES = 4, 3


@dataclass(frozen=True)
class _Banded:
    """Layers that may run in bands.

    Attributes:
        chain: the layers.
        op: what runs them in bands.
        layers: what runs each of them.
        call: the number of the call that reads what they read.
        pays: whether they run in bands.
    """

    chain: Chain
    op: _kernels.BandedDepthwise
    layers: tuple[_kernels.Op, ...]
    call: int
    pays: bool


@dataclass(frozen=True)
class _Sized:
    """What resizes images: the number of its call, its step, and the layout of its operand."""

    call: int
    step: Step
    index: int
    layout: Layout

    def op(self, dims: Mapping[str, Sizes]) -> _kernels.Op:
        """The operator for values of these sizes."""
        step = self.step
        assert isinstance(step.spec, (PixelCopy, LinearResize))
        operand, result = dims[operand_key(step, 0, dims)], dims[step.output]
        return build_for_size(step.spec, operand[2:], result[2:], self.layout)


class ResizedImages:
    """Schedules of whole batches, for further sizes of images; of each number of images apart."""

    def __init__(self) -> None:
        """None is known."""
        self._known: dict[int, _Known] = {}

    def forget(self) -> None:
        """What is known: operators have been given up for others."""
        self._known.clear()

    def schedule(self, dims: Mapping[str, Sizes]) -> tuple[Slab, Schedule] | None:
        """The schedule for values of ``dims``, by name, and the batch; None where it has to be planned."""
        for images, known in self._known.items():
            if known.is_checked and known.resizable is not None:
                found = known.resizable.resized(dims)
                if found is not None:
                    return Slab(0, images, images, known.layout), found
        return None

    def learn(self, slab: Slab, values: Values, made: Schedule) -> None:
        """Take a schedule of a whole batch that has been planned step by step.

        Args:
            slab: the batch.
            values: what the schedule was made of.
            made: the schedule.
        """
        known = self._known.get(slab.count)
        if known is None:
            if len(self._known) < _MOST_BATCHES:
                self._known[slab.count] = _Known(slab.layout, _Resizable.of(values, made))
            return
        if known.resizable is None or known.is_checked:
            return
        found = known.resizable.resized(values.dims)
        if found is not None and _are_equal(found, made):
            known.is_checked = True
            return
        known.tries += 1
        known.resizable = _Resizable.of(values, made) if known.tries < _MOST_TRIES else None


@dataclass
class _Known:
    """What is known of batches of one size.

    Attributes:
        layout: between inputs and outputs.
        resizable: a schedule that others may follow from; None if none do.
        is_checked: whether one that follows from it is the one that was planned.
        tries: how often one was another one.
    """

    layout: Layout
    resizable: _Resizable | None
    is_checked: bool = False
    tries: int = 0


@dataclass(frozen=True)
class _Resizable:
    """A schedule that others follow from; see :meth:`of`.

    Attributes:
        made: the schedule.
        region: that it is of.
        threads: that run it.
        sequence: of its operators.
        sized: those of them that know sizes of images.
        bands: layers that may run in bands.
    """

    made: Schedule
    region: Region
    threads: int
    sequence: _kernels.ResizableSequence
    sized: tuple[_Sized, ...]
    bands: tuple[_Banded, ...]

    @classmethod
    def of(cls, values: Values, made: Schedule) -> _Resizable | None:
        """A schedule as one that others follow from; None where none do. ``values`` are what it was made of."""
        region, calls, threads = values.region, values.calls, values.threads
        if region.caches or calls.attentions or not _are_floats(region):
            return None
        if not all(_is_of_any_size(call, region.steps) for call in calls.calls):
            return None
        run = in_bands(calls.calls, region.chains, calls.places, threads)
        kept = arranged(run, calls.nbytes, calls.places)
        sequence = _sequence(values, run, kept)
        if sequence is None:
            return None
        sized = (
            _Sized(number, region.steps[call.step], call.step, cast(Layout, call.op.input_layout))
            for number, call in enumerate(run)
            if call.step is not None and isinstance(call.op, _OF_ONE_SIZE)
        )
        steps = [call.step for call in kept.calls]
        bands = (
            _Banded(
                chain,
                op,
                tuple(calls.calls[number].op for number in numbers),
                steps.index(chain.steps[0]),
                op.pays(calls.calls[numbers[0]].shape, threads),
            )
            for chain, numbers, op in banded(calls.calls, region.chains, calls.places)
        )
        return cls(made, region, threads, sequence, tuple(sized), tuple(bands))

    def resized(self, dims: Mapping[str, Sizes]) -> Schedule | None:
        """The schedule for values of other sizes, of the whole batch; None where it might be another one.

        Args:
            dims: sizes of all values of the region, by name.
        """
        region = self.region
        inputs = [kernel_shape(dims[input_key(name, view)], view) for name, view in region.inputs]
        replaced = [(one.call, one.op(dims)) for one in self.sized]
        found = self.sequence.resized(inputs, replaced, array_sizes(region, dims))
        if found is None:
            return None
        sequence, shapes = found
        together = dict(self.made.together)
        for one in self.bands:
            if one.op.pays(shapes[one.call], self.threads) != one.pays:
                return None
            if one.pays:
                together[one.call] = tuple(zip(one.chain.steps, _shapes(one.layers, shapes[one.call]), strict=True))
        ops = self.made.ops
        if replaced:
            new = dict(zip((one.index for one in self.sized), (op for _, op in replaced), strict=True))
            pairs = zip(self.made.steps, ops, strict=True)
            ops = tuple(new.get(step, op) if isinstance(op, _OF_ONE_SIZE) else op for step, op in pairs)  # type: ignore[arg-type]
        return replace(self.made, sequence=sequence, shapes=tuple(shapes), ops=ops, together=together)


def _sequence(values: Values, run: Sequence[Call], kept: Arrangement) -> _kernels.ResizableSequence | None:
    """Calls as a sequence for any size; None where tensors lie otherwise than by channels, or are read otherwise."""
    inputs: dict[str, Shape] = {}
    for name, view in values.region.inputs:
        key = input_key(name, view)
        inputs[stored_key(key, "array")] = kernel_shape(values.dims[key], view)
    shapes, layouts = dict(inputs), dict.fromkeys(inputs, "planes")
    for call in run:
        shapes[call.output] = call.op.output_shape(call.shape)
        layouts[call.output] = call.op.output_layout
    numbers = {name: number for number, name in enumerate(shapes)}
    tensors = []
    for name, (n, _, h, w) in shapes.items():
        root, offset = kept.roots.get(name, (name, 0))
        channel = bytes_of((n, 1, h, w), cast(Layout, layouts[name]), DType.FLOAT32)
        start, rest = divmod(offset, max(channel, 1))
        array, begin = values.calls.places.get(name, (-1, 0))
        if rest or begin or root not in numbers:
            return None
        tensors.append((array, numbers[root], start, numbers[kept.homes.get(root, root)]))
    left = {id(call) for call in kept.calls}
    calls = []
    for call in run:
        first, second, third = (*(numbers[name] for name in call.inputs), None, None)[:3]
        assert first is not None
        calls.append((call.op, call.shape, first, second, third, numbers[call.output], id(call) not in left))
    try:
        return _kernels.ResizableSequence(tensors, calls, [(numbers[name], shape) for name, shape in inputs.items()])
    except ValueError:
        return None


def _are_equal(one: Schedule, other: Schedule) -> bool:
    """Whether two schedules run the same operators on the same shapes."""
    return (
        one.steps == other.steps
        and one.shapes == other.shapes
        and one.layouts == other.layouts
        and one.together == other.together
        and all(
            own is others or (isinstance(own, _MADE_EACH_TIME) and type(own) is type(others))
            for own, others in zip(one.ops, other.ops, strict=True)
        )
    )


def _are_floats(region: Region) -> bool:
    """Whether all values are floats, and all inputs images or rows."""
    return all(view in ("image", "rows") for _, view in region.inputs) and all(
        dtype is DType.FLOAT32 for dtype in region.dtypes.values()
    )


def _is_of_any_size(call: Call, steps: Sequence[Step]) -> bool:
    """Whether a call's operator is the same for images of any size, or follows from them."""
    if call.mask:
        return False
    if isinstance(call.op, _OF_ONE_SIZE):
        return call.step is not None and isinstance(steps[call.step].spec, (PixelCopy, LinearResize))
    return isinstance(call.op, _OF_ANY_SIZE)


def _shapes(layers: Sequence[_kernels.Op], shape: Shape) -> list[Shape]:
    """Of the operands of layers one after the other, the first of which reads ``shape``."""
    shapes = [shape]
    for layer in layers[:-1]:
        shapes.append(layer.output_shape(shapes[-1]))
    return shapes
