"""A region for a number of images or rows: the sequence of operators, and where each tensor lies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.layouts import LANES, Layout
from sift_onnx.backends.cpu.lower.plan import Region
from sift_onnx.backends.cpu.run.byte_calls import ByteCalls, is_on_quads, position_copy, positions_read
from sift_onnx.backends.cpu.run.calls import Calls, Schedule, bytes_of, words_of
from sift_onnx.backends.cpu.run.operators import build, build_attention, build_cached_attention, build_for_size
from sift_onnx.backends.cpu.run.placed_views import (
    PlacedView,
    Shape,
    Stored,
    by_head,
    input_key,
    kernel_shape,
    lane_offsets,
    mean_run,
    moved,
    of_tokens,
    operand_key,
    placed_part,
)
from sift_onnx.backends.cpu.run.placement import Part
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.rules import Step, View
from sift_onnx.backends.lowering.specs import (
    Attention,
    Channels,
    Conv,
    Elementwise,
    GlobalPool,
    Joined,
    LinearResize,
    Matmul,
    Moving,
    PixelCopy,
    Reshaped,
    Sliced,
)
from sift_onnx.backends.lowering.specs.decoding import CachedAttention, Rotated
from sift_onnx.errors import BackendError

__all__ = ["Schedule", "schedule"]

_COPY = Elementwise("first")
# Lanes that a copy takes from neighbours, on average.
_LEAST_RUN = 3.0
Sizes = tuple[int, ...]


def schedule(
    region: Region,
    dims: Mapping[str, Sizes],
    layout_of: Callable[[int], Layout],
    op_of: Callable[[int, Layout], _kernels.Op],
    isa: str,
) -> Schedule:
    """The schedule of ``region``.

    The caller's arrays are the region's inputs, in order, then its outputs; all in planes.

    Args:
        region: to be run.
        dims: sizes of each value, by name; of the region's inputs, under :func:`input_key`.
        layout_of: the layout, between inputs and outputs, of tensors with a given number of images or rows.
        op_of: the operator of a step in a layout, but of attention; the schedules of a region share them.
        isa: instruction set.
    """
    return _Scheduler(region, dims, layout_of, op_of, isa).run()


class _Scheduler:
    """Follows the steps of a region, and copies values where an operator needs them in another place."""

    def __init__(
        self,
        region: Region,
        dims: Mapping[str, Sizes],
        layout_of: Callable[[int], Layout],
        op_of: Callable[[int, Layout], _kernels.Op],
        isa: str,
    ) -> None:
        self.region, self.layout_of, self.op_of, self.isa = region, layout_of, op_of, isa
        self.dims = dict(dims)
        self.calls = Calls()
        self.dtypes = region.dtypes
        self.views: dict[str, PlacedView] = {}
        self.copies: dict[tuple[PlacedView, Shape, Layout], Stored] = {}
        self.masks: dict[str, str] = {}
        self.bytes = ByteCalls(self.calls, isa)
        self.movers = {step.output: i for i, step in enumerate(region.steps) if isinstance(step.spec, Moving)}
        keys = [input_key(name, view) for name, view in region.inputs]
        self.direct = {name: f"{name}:array" for name in region.outputs}
        for number, (key, (name, view)) in enumerate(zip(keys, region.inputs, strict=True)):
            array = f"{key}:array"
            self.calls.places[array] = (number, 0)
            if view == "array":
                self.masks[name] = array
            elif self.dtypes[name].is_bytes:
                self.bytes.stored[key] = Stored(array, kernel_shape(dims[key], view), "bytes")
                if name in region.signed:
                    self.bytes.signed.add(key)
            else:
                stored = Stored(array, kernel_shape(dims[key], view), "planes")
                self.views[key] = PlacedView.of(stored, dims[key])
        first = len(keys)
        self.calls.places.update((array, (first + i, 0)) for i, array in enumerate(self.direct.values()))
        names = (*((key, name) for key, (name, _) in zip(keys, region.inputs, strict=True)),
                 *((name, name) for name in region.outputs))  # fmt: skip
        self.array_sizes = [words_of(math.prod(dims[key]), region.array_dtype(name)) for key, name in names]

    def run(self) -> Schedule:
        for index, step in enumerate(self.region.steps):
            self._run_step(index, step)
            if step.output in self.direct:
                self._deliver(step)
        return self.calls.scheduled(self.array_sizes)

    def _run_step(self, index: int, step: Step) -> None:
        if step.dtype.is_bytes or step.result_dtype.is_bytes:
            self._compute_bytes(index, step)
        elif isinstance(step.spec, Joined):
            self._join(index, step)
        elif isinstance(step.spec, Moving):
            self._move(step, step.spec)
        elif isinstance(step.spec, GlobalPool) and step.view == "rows":
            self._pool_rows(index, step, step.spec)
        elif isinstance(step.spec, Attention):
            self._attend(index, step, step.spec)
        elif isinstance(step.spec, CachedAttention):
            self._attend_to_cache(index, step, step.spec)
        elif isinstance(step.spec, Rotated):
            self._rotate(index, step, step.spec)
        else:
            self._compute(index, step)

    def _view(self, step: Step, position: int) -> PlacedView:
        return self.views[operand_key(step, position, self.views)]

    def _operand(self, step: Step, position: int, view: PlacedView, read_as: View, layout: Layout) -> Stored:
        return self._stored(view, read_as, layout, step.dtype, self.movers.get(step.inputs[position]))

    def _compute_bytes(self, index: int, step: Step) -> None:
        """A step that reads or makes quantized values."""
        spec, dims = step.spec, self.dims[step.output]
        shape = kernel_shape(dims, step.result_view)
        if isinstance(spec, (PixelCopy, Moving)):
            self._move_bytes(index, step, spec)
            return
        key = f"{step.output}:quads"
        layout: Layout = "quads"
        if not step.dtype.is_bytes:
            view = self._view(step, 0)
            plain = kernel_shape(view.dims, step.view)
            layout = self._layout_of_floats(view, plain)
            operands = [self._operand(step, 0, view, step.view, layout)]
        else:
            operands = [self._quads(step, position) for position in range(len(step.inputs))]
            if not step.result_dtype.is_bytes:
                layout = "planes" if step.output in self.direct else self.layout_of(shape[0])
                in_place = layout == "planes" and step.output in self.direct
                key = self.direct[step.output] if in_place else f"{step.output}:{layout}"
        read = tuple(stored.key for stored in operands)
        op = self.op_of(index, layout)
        made = self.calls.call(op, operands[0].shape, read, key, step.result_dtype, index)
        if made != shape:
            raise BackendError(f"{step.output!r} comes out as {made}, and {dims} was expected")
        if step.result_dtype.is_bytes:
            self.bytes.stored[step.output] = Stored(key, made, "quads")
        else:
            self.views[step.output] = PlacedView.of(Stored(key, made, layout), dims)

    def _layout_of_floats(self, view: PlacedView, shape: Shape) -> Layout:
        """The layout that floats to be quantized are read in: theirs, where they need no copy for that."""
        stored = view.stored
        return stored.layout if view.is_whole and stored.shape[:2] == shape[:2] else self.layout_of(shape[0])

    def _quads(self, step: Step, position: int) -> Stored:
        """An operand of bytes."""
        key = operand_key(step, position, (*self.bytes.stored, *self.bytes.floats))
        shape = kernel_shape(self.dims[key], step.view)
        return self.bytes.quads(key, shape, self._as_plain(step.view))

    def _plain(self, view: PlacedView, read_as: View) -> Stored:
        shape = kernel_shape(view.dims, read_as)
        return self._stored(view, read_as, self._layout_of_floats(view, shape), DType.FLOAT32)

    def _move_bytes(self, index: int, step: Step, spec: Moving | PixelCopy) -> None:
        dims = self.dims[step.output]
        if isinstance(spec, Moving) and is_on_quads(spec, dims, step.result_view):
            if isinstance(spec, Reshaped):
                self.bytes.stored[step.output] = self._quads(step, 0)
                return
            shape = kernel_shape(dims, step.result_view)
            key = f"{step.output}:quads"
            for position in range(len(step.inputs)):
                own = self._quads(step, position)
                if isinstance(spec, Joined):
                    ends = (0, own.shape[1], spec.starts[position], spec.size)
                else:
                    assert isinstance(spec, Sliced)
                    places = spec.ranges[0].places(own.shape[1])
                    ends = (places.start, places.stop, 0, len(places))
                self.calls.call(_kernels.QuadChannels(*ends), own.shape, (own.key,), key, step.result_dtype, index)
            self.bytes.stored[step.output] = Stored(key, shape, "quads")
            return
        positions = positions_read(step, self.dims[operand_key(step, 0, (*self.bytes.stored, *self.bytes.floats))])
        if positions is None:
            self._move_as_floats(index, step)
            return
        own, shape = self._quads(step, 0), kernel_shape(dims, step.result_view)
        op, source = position_copy(positions, own.shape, shape, self.isa)
        key = f"{step.output}:quads"
        # Words, as large as floats.
        self.calls.call(op, source, (own.key,), key, DType.FLOAT32, index)
        self.bytes.stored[step.output] = Stored(key, shape, "quads")

    def _move_as_floats(self, index: int, step: Step) -> None:
        """A step that moves bytes, on floats of the same numbers."""
        names = []
        for position in range(len(step.inputs)):
            found = operand_key(step, position, (*self.bytes.stored, *self.bytes.floats))
            name = f"{step.inputs[position]}:numbers"
            if name not in self.views:
                sizes = self.dims[found]
                shape = kernel_shape(sizes, step.view)
                own = self.bytes.floats.get(found)
                if own is None:
                    plain = self.bytes.numbers(found, shape, self.layout_of(shape[0]), self._as_plain(step.view))
                    own = PlacedView.of(plain, sizes)
                self.views[name], self.dims[name] = own, sizes
            names.append(name)
        made = f"{step.output}:numbers"
        self.dims[made] = self.dims[step.output]
        moved_step = replace(step, inputs=tuple(names), output=made, dtype=DType.FLOAT32, result_dtype=DType.FLOAT32)
        self._run_step(index, moved_step)
        self.bytes.floats[step.output] = self.views[made]

    def _as_plain(self, read_as: View) -> Callable[[PlacedView], Stored]:
        return lambda view: self._plain(view, read_as)

    def _compute(self, index: int, step: Step) -> None:
        spec, dims = step.spec, self.dims[step.output]
        views = [self._view(step, position) for position in range(len(step.inputs))]
        if isinstance(spec, (PixelCopy, LinearResize)):
            # What a resize follows is read for its size alone.
            views = views[:1]
        if isinstance(spec, Elementwise) and spec.broadcasts:
            views[0] = views[0].repeated(dims)
        repeats = isinstance(spec, (Elementwise, Conv, Matmul))
        shape = kernel_shape(views[0].dims, step.view)
        layout = self.layout_of(shape[0])
        operands = []
        for position, view in enumerate(views):
            of_result = position > 0 and repeats
            own = view.repeated(dims) if of_result else view
            operands.append(self._operand(step, position, own, step.result_view if of_result else step.view, layout))
        in_place = layout == "planes" and step.output in self.direct
        key = self.direct[step.output] if in_place else f"{step.output}:{layout}"
        op = self._op(index, step, layout, views[0].dims)
        read = tuple(stored.key for stored in operands)
        made = self.calls.call(op, shape, read, key, step.dtype, index)
        if made != kernel_shape(dims, step.result_view):
            raise BackendError(f"{step.output!r} comes out as {made}, and {dims} was expected")
        self.views[step.output] = PlacedView.of(Stored(key, made, layout), dims)

    def _op(self, index: int, step: Step, layout: Layout, operand: Sizes) -> _kernels.Op:
        match step.spec:
            case PixelCopy() | LinearResize():
                return build_for_size(step.spec, operand[2:], self.dims[step.output][2:], layout)
            case Channels(taken=taken):
                return _kernels.ChannelCopy(taken, 0, len(taken), layout=layout)
        return self.op_of(index, layout)

    def _pool_rows(self, index: int, step: Step, spec: GlobalPool) -> None:
        """A mean over tokens, as that of images whose pixels they are."""
        image = self._view(step, 0).with_pixels(spec.axes)
        shape = kernel_shape(image.dims, "image")
        layout = self.layout_of(shape[0])
        stored = self._operand(step, 0, image, "image", layout)
        key = f"{step.output}:{layout}"
        made = self.calls.call(self.op_of(index, layout), shape, (stored.key,), key, step.dtype, index)
        self.views[step.output] = PlacedView.of(Stored(key, made, layout), self.dims[step.output])

    def _attend(self, index: int, step: Step, spec: Attention) -> None:
        queries, keys, values = (self._view(step, position) for position in range(3))
        views = [of_tokens(queries), of_tokens(keys.transposed_last()), of_tokens(values)]
        sequences, tokens, _ = views[0].dims
        layout = self.layout_of(sequences * tokens)
        operands, channels = [], []
        for position, view in enumerate(views):
            whole, first = view.within_rows()
            stored = self._operand(step, position, whole, "rows", layout)
            operands.append(stored)
            channels.append((stored.shape[1], first))
        mask = self.dims[input_key(step.mask, "array")] if step.mask else None
        op = build_attention(spec, sequences, tokens, channels, mask, layout, self.isa)
        name, key = self.masks.get(step.mask, ""), f"{step.output}:{layout}"
        read = tuple(stored.key for stored in operands)
        made = self.calls.call(op, operands[0].shape, read, key, step.dtype, index, name)
        heads = PlacedView.of(Stored(key, made, layout), (sequences, tokens, spec.heads, spec.value_depth))
        self.views[step.output] = by_head(heads, self.dims[step.output])

    def _attend_to_cache(self, index: int, step: Step, spec: CachedAttention) -> None:
        """Queries, keys and values of the new tokens are read in planes; a cache has no layout."""
        operands, channels = [], []
        sizes: Sizes = ()
        for position in range(len(step.inputs)):
            view = of_tokens(self._view(step, position))
            sizes = sizes or view.dims
            whole, first = view.within_rows()
            stored = self._operand(step, position, whole, "rows", "planes")
            operands.append(stored)
            channels.append((stored.shape[1], first))
        sequences, tokens, _ = sizes
        op = build_cached_attention(spec, sequences, tokens, channels, self.isa)
        key = f"{step.output}:planes"
        read = tuple(stored.key for stored in operands)
        made = self.calls.call(op, operands[0].shape, read, key, step.dtype, index)
        self._place_heads(step, Stored(key, made, "planes"), sizes[:2], spec.heads, 1 if spec.is_parted else None)

    def _rotate(self, index: int, step: Step, spec: Rotated) -> None:
        x, *angles = (self._view(step, position) for position in range(3))
        x = of_tokens(x, spec.heads_axis)
        sequences, tokens, _ = x.dims
        layout = self.layout_of(sequences * tokens)
        operands = [self._operand(step, 0, x, "rows", layout)]
        for position, view in enumerate(angles, 1):
            own = of_tokens(view, spec.heads_axis)
            repeated = own.repeated((sequences, tokens, own.dims[-1]))
            operands.append(self._operand(step, position, repeated, "rows", layout))
        key = f"{step.output}:{layout}"
        read = tuple(stored.key for stored in operands)
        made = self.calls.call(self.op_of(index, layout), operands[0].shape, read, key, step.dtype, index)
        self._place_heads(step, Stored(key, made, layout), (sequences, tokens), spec.heads, spec.heads_axis)

    def _place_heads(self, step: Step, stored: Stored, rows: Sizes, heads: int, heads_axis: int | None) -> None:
        """The result of an operator on rows of tokens, as the model has it."""
        dims = self.dims[step.output]
        view = PlacedView.of(stored, (*rows, heads, stored.shape[1] // heads))
        self.views[step.output] = by_head(view, dims) if heads_axis == 1 else PlacedView.of(stored, dims)

    def _move(self, step: Step, spec: Moving) -> None:
        before, dims = self._view(step, 0), self.dims[step.output]
        after = moved(before, spec, dims)
        if after is None:
            # Other axes than those of memory: copied in the order that the step begins with.
            shape = kernel_shape(before.dims, "rows")
            copied = self._operand(step, 0, before, "rows", self.layout_of(shape[0]))
            after = moved(PlacedView.of(copied, before.dims), spec, dims)
            assert after is not None
        self.views[step.output] = after

    def _join(self, index: int, step: Step) -> None:
        spec, dims = step.spec, self.dims[step.output]
        assert isinstance(spec, Joined)
        shape = kernel_shape(dims, step.result_view)
        layout = self.layout_of(shape[0])
        in_place = layout == "planes" and step.output in self.direct
        key = self.direct[step.output] if in_place else f"{step.output}:{layout}"
        result = Stored(key, shape, layout)
        channel_axis = 1 if step.result_view == "image" else len(dims) - 1
        for position, start in enumerate(spec.starts):
            view = self._view(step, position)
            missing = len(dims) - len(view.axes)
            size = view.dims[spec.axis - missing] if spec.axis >= missing else 1
            view = view.repeated((*dims[: spec.axis], size, *dims[spec.axis + 1 :]))
            if spec.axis == channel_axis and shape[0] <= _together(layout):
                # The operand can lie where the result has it.
                own = self._operand(step, position, view, step.result_view, layout)
                op = _kernels.ChannelCopy(range(size), start, spec.size, layout=layout)
                part = Part(key, start * bytes_of((shape[0], 1, *shape[2:]), layout, step.dtype))
                self.calls.call(op, own.shape, (own.key,), key, step.dtype, index, part=part)
            else:
                self._copy(view, step.result_view, result, step.dtype, index, (spec.axis, start, dims))
        self.views[step.output] = PlacedView.of(result, dims)

    def _deliver(self, step: Step) -> None:
        """Bring a result into the caller's array."""
        if step.result_dtype.is_bytes:
            shape = kernel_shape(self.dims[step.output], step.result_view)
            out = self.direct[step.output]
            is_signed = step.output in self.region.signed
            self.bytes.deliver(step.output, shape, out, is_signed, self._as_plain(step.result_view))
            return
        out, view = self.direct[step.output], self.views[step.output]
        if view.stored.key == out and view.is_whole:
            return
        shape = kernel_shape(view.dims, step.result_view)
        layout = self.layout_of(shape[0])
        mover = self.movers.get(step.output)
        if not view.is_whole and layout == "images16":
            view = PlacedView.of(self._stored(view, step.result_view, layout, step.dtype, mover), view.dims)
        if not view.is_whole:
            self._copy(view, step.result_view, Stored(out, shape, "planes"), step.dtype, mover)
            return
        stored = view.stored
        leaves_lanes = stored.layout == "images16"
        copy = _kernels.Reorder("images16", isa=self.isa) if leaves_lanes else build(_COPY, "planes", None, self.isa)
        self.calls.call(copy, stored.shape, (stored.key,), out, step.dtype)

    def _stored(
        self, view: PlacedView, read_as: View, layout: Layout, dtype: DType, mover: int | None = None
    ) -> Stored:
        """``view`` as a tensor of its own in ``layout``; copied where it is none, when it is first read.

        Args:
            view: of what lies in memory.
            read_as: images or rows.
            layout: that it is needed in.
            dtype: of its elements.
            mover: index of the step that moved it, for which it is copied; None if there is none.
        """
        shape = kernel_shape(view.dims, read_as)
        stored = view.stored
        if view.is_whole and stored.layout == layout and (layout == "planes" or stored.shape[0] == shape[0]):
            return stored if stored.shape == shape else replace(stored, shape=shape)
        found = self.copies.get((view, shape, layout))
        if found is not None:
            return found
        made = Stored(f"{stored.key}:copy {len(self.copies)}:{layout}", shape, layout)
        self.copies[view, shape, layout] = made
        if not view.is_whole or stored.layout == layout:
            self._copy(view, read_as, made, dtype, mover)
        elif stored.layout == "planes":
            self.calls.call(_kernels.Reorder("planes", isa=self.isa), shape, (stored.key,), made.key, dtype)
        else:
            self.calls.call(_kernels.Reorder("images16", isa=self.isa), stored.shape, (stored.key,), made.key, dtype)
        return made

    def _copy(
        self,
        view: PlacedView,
        read_as: View,
        target: Stored,
        dtype: DType,
        step: int | None = None,
        joined: tuple[int, int, Sizes] | None = None,
    ) -> None:
        """Copy ``view`` to ``target``, or to the part of it that begins at (axis, place) of the sizes given."""
        source = view.stored
        if (
            joined is None
            and source.layout == target.layout
            and self._copy_channels(view, read_as, target, dtype, step)
        ):
            return
        positions, channels = view.offsets(read_as)
        if source.layout == "images16":
            in_lanes = lane_offsets(positions, channels, source.shape)
            # Lanes that come one by one out of as many lines of the cache: planes are two copies, each by whole lines.
            if in_lanes is None or mean_run(in_lanes, target) < _LEAST_RUN:
                source = self._in_planes(source, dtype)
            else:
                positions, channels = in_lanes, channels * LANES
        first_channel = 0
        if joined is not None:
            positions, first_channel = placed_part(positions, view.dims, read_as, *joined)
        op = _kernels.Rearrange(
            positions, channels, source=source.shape, target=target.shape, first_channel=first_channel,
            source_layout=source.layout, target_layout=target.layout, isa=self.isa,
        )  # fmt: skip
        part = None
        if source.layout == target.layout == "planes" and joined is None and view.is_contiguous:
            part = Part(source.key, dtype.itemsize * view.offset)
        self.calls.call(op, source.shape, (source.key,), target.key, dtype, step, part=part)

    def _copy_channels(self, view: PlacedView, read_as: View, target: Stored, dtype: DType, step: int | None) -> bool:
        """Copy ``view`` to ``target`` of the same layout if it is some channels of a tensor; whether it is."""
        taken = view.channels_taken(read_as)
        if not taken:
            return False
        source = view.stored
        images, _, height, width = source.shape
        part = None
        if images <= _together(source.layout) and taken == list(range(taken[0], taken[0] + len(taken))):
            part = Part(source.key, taken[0] * bytes_of((images, 1, height, width), source.layout, dtype))
        op = _kernels.ChannelCopy(taken, 0, len(taken), layout=source.layout)
        self.calls.call(op, source.shape, (source.key,), target.key, dtype, step, part=part)
        return True

    def _in_planes(self, stored: Stored, dtype: DType) -> Stored:
        return self._stored(PlacedView.of(stored, stored.shape), "image", "planes", dtype)


def _together(layout: Layout) -> int:
    """Images or rows of which a range of channels is contiguous."""
    return 1 if layout == "planes" else LANES
