"""Copies of views, where an operator needs values as a tensor of their own in a layout."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.layouts import LANES, Layout
from sift_onnx.backends.cpu.run.schedules.calls import Calls, bytes_of
from sift_onnx.backends.cpu.run.schedules.copied_offsets import lane_offsets, mean_run, part_of_runs, placed_part
from sift_onnx.backends.cpu.run.schedules.factors import axis_of, offsets_of
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import Shape, Sizes, kernel_shape
from sift_onnx.backends.cpu.run.schedules.placed_views import PlacedView, Stored
from sift_onnx.backends.cpu.run.schedules.placement import Part
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.names import stored_key
from sift_onnx.backends.lowering.rules import View

__all__ = ["TensorCopies", "contiguous_images"]

# Lanes that a copy takes from neighbours, on average.
_LEAST_RUN = 3.0
# Adjacent floats that are copied together, where planes are copied to planes.
_LONG_RUN = 32
# A copy lists the floats of a run: of longer ones, a part.
_LONGEST_RUN = 1 << 12


def contiguous_images(layout: Layout) -> int:
    """Images or rows of which a range of channels is contiguous."""
    return 1 if layout == "planes" else LANES


@dataclass
class TensorCopies:
    """Views as tensors, copied once for each way of reading.

    Attributes:
        calls: to which copies are added.
        layout_of: the layout of tensors of a given shape.
        isa: instruction set.
    """

    calls: Calls
    layout_of: Callable[[Shape], Layout]
    isa: str
    _made: dict[tuple[PlacedView, Shape, Layout], Stored] = field(default_factory=dict)

    def tensor(self, view: PlacedView, read_as: View, layout: Layout, dtype: DType, mover: int | None = None) -> Stored:
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
        found = self._made.get((view, shape, layout))
        if found is not None:
            return found
        made = Stored(stored_key(stored.key, f"copy {len(self._made)} {layout}"), shape, layout)
        self._made[view, shape, layout] = made
        if not view.is_whole or stored.layout == layout:
            self.copy(view, read_as, made, dtype, mover)
        elif stored.layout == "planes":
            self.calls.call(_kernels.Reorder("planes", isa=self.isa), shape, (stored.key,), made.key, dtype)
        else:
            self.calls.call(_kernels.Reorder("images16", isa=self.isa), stored.shape, (stored.key,), made.key, dtype)
        return made

    def float_tensor(self, view: PlacedView, read_as: View) -> Stored:
        """``view`` as a tensor of floats, in the layout that takes no copy if there is one."""
        shape = kernel_shape(view.dims, read_as)
        return self.tensor(view, read_as, self.cheapest_layout(view, shape), DType.FLOAT32)

    def cheapest_layout(self, view: PlacedView, shape: Shape) -> Layout:
        """The layout that ``view`` has as a tensor of ``shape``, where that takes no copy; else the usual one."""
        stored = view.stored
        return stored.layout if view.is_whole and stored.shape[:2] == shape[:2] else self.layout_of(shape)

    def copy(
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
        if self._copy_runs(view, read_as, target, dtype, step, joined):
            return
        positions, channels = view.offsets(read_as)
        if source.layout == "images16":
            in_lanes = lane_offsets(positions, channels, source.shape)
            # Lanes that come one by one out of as many lines of the cache: planes are two copies, each by whole lines.
            if in_lanes is None or mean_run(in_lanes, target) < _LEAST_RUN:
                source = self.tensor(PlacedView.of(source, source.shape), "image", "planes", dtype)
                if view.is_whole and joined is None and target.layout == "images16":
                    # In its order, whatever the sizes: in planes it is the target's already.
                    reorder = _kernels.Reorder("planes", isa=self.isa)
                    self.calls.call(reorder, target.shape, (source.key,), target.key, dtype, step)
                    return
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

    def has_long_runs(self, view: PlacedView) -> bool:
        """Whether ``view``, in planes, is made of runs of adjacent values that are worth a copy each."""
        return view.stored.layout == "planes" and view.runs[1] >= _LONG_RUN

    def _copy_runs(
        self,
        view: PlacedView,
        read_as: View,
        target: Stored,
        dtype: DType,
        step: int | None,
        joined: tuple[int, int, Sizes] | None,
    ) -> bool:
        """Copy ``view``, which lies in planes, by runs of adjacent values; whether that takes less time.

        As rows, these are copied whole. Between lanes, a value would come from each of sixteen images: planes are made
        first, and then brought into lanes.
        """
        if not self.has_long_runs(view) or (view.is_whole and joined is None):
            return False
        if target.layout == "images16":
            if read_as == "rows" or joined is not None:
                return False  # channels are adjacent: sixteen of sixteen rows are turned at once
            planes = self.tensor(view, read_as, "planes", dtype, step)
            self.calls.call(_kernels.Reorder("planes", isa=self.isa), planes.shape, (planes.key,), target.key, dtype)
            return True
        stored, (outer, run) = view.stored, view.runs
        if view.is_contiguous and joined is None:
            total = math.prod(stored.shape)
            unit = math.gcd(total, run, view.offset)
            taken = range(view.offset // unit, (view.offset + run) // unit)
            range_copy = _kernels.ChannelCopy(taken, 0, len(taken), layout="planes")
            part = Part(stored.key, dtype.itemsize * view.offset)
            shape = (1, total // unit, unit, 1)
            self.calls.call(range_copy, shape, (stored.key,), target.key, dtype, step, part=part)
            return True
        # In a part of a result, along whose axis runs end.
        unit = run if joined is None else math.gcd(run, math.prod(joined[2][joined[0] + 1 :]))
        if unit < _LONG_RUN:
            return False
        length = max(size for size in range(1, min(unit, _LONGEST_RUN) + 1) if unit % size == 0)
        length = length if length >= _LONG_RUN else unit
        positions = offsets_of((outer, axis_of(run // length, length))) + view.offset
        if joined is not None:
            positions = part_of_runs(positions, view.dims, length, *joined)
        op = _kernels.Rearrange(
            positions, np.arange(length), source=stored.shape, target=(positions.size, length, 1, 1), first_channel=0,
            source_layout="planes", target_layout="planes", isa=self.isa,
        )  # fmt: skip
        self.calls.call(op, stored.shape, (stored.key,), target.key, dtype, step)
        return True

    def _copy_channels(self, view: PlacedView, read_as: View, target: Stored, dtype: DType, step: int | None) -> bool:
        """Copy ``view`` to ``target`` of the same layout if it is some channels of a tensor; whether it is."""
        taken = view.channels_taken(read_as)
        if not taken:
            return False
        source = view.stored
        images, _, height, width = source.shape
        part = None
        if images <= contiguous_images(source.layout) and taken == list(range(taken[0], taken[0] + len(taken))):
            part = Part(source.key, taken[0] * bytes_of((images, 1, height, width), source.layout, dtype))
        op = _kernels.ChannelCopy(taken, 0, len(taken), layout=source.layout)
        self.calls.call(op, source.shape, (source.key,), target.key, dtype, step, part=part)
        return True
