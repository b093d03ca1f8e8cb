"""The schedules of a region for its inputs' shapes: a batch is cut into slabs, and each kind of slab has one."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.layouts import LANES, Layout
from sift_onnx.backends.cpu.lower.region import Region
from sift_onnx.backends.cpu.run.schedules.batches import Batch, batch_of, flat_sizes, is_scaled, moves_channels
from sift_onnx.backends.cpu.run.schedules.derived_sizes import DerivedSizes
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import Shape, Sizes, input_key, operand_key
from sift_onnx.backends.cpu.run.schedules.region_sizes import sizes_of_values, with_bounds
from sift_onnx.backends.cpu.run.schedules.resized_images import ResizedImages
from sift_onnx.backends.cpu.run.schedules.schedule import Schedule, planned, scheduled
from sift_onnx.backends.cpu.run.schedules.sections import Sections, sections_of
from sift_onnx.backends.cpu.run.schedules.slabs import NEAR_BYTES, Slab, cut, layout_of_rows
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.specs import DynamicQuantize, LinearLayer, Moving
from sift_onnx.backends.lowering.specs.decoding import CachedAttention
from sift_onnx.errors import UsageError

__all__ = ["Operators", "Prepared", "RegionSchedules"]

# Input shapes whose schedules are kept. A schedule is small; operators hold the packed weights.
_KEPT = 32
# Of the time of all threads, if slabs run at once.
_MOST_IDLE = 0.2
# Multiply-adds of active weights per value from which on groups of images gain by a thread each although their values
# leave its cache. Measured on two threads (Zen 4), in turns, with 32 and 64 images at 80 %: ResNet-18 takes 0.97 to
# 0.98 of the time and ResNet-50 0.97; ResNet-50 at 95 %, of 45 in its later layers, 1.00 and 1.01; MobileNetV2, of 22,
# 1.01 and 1.02; inverted bottlenecks of 14 take 1.07 to 1.12, and of 6, with 1.5 MiB of values, 0.91 and 0.94. Between
# cores that are far from each other, what gains takes 0.65 to 0.85.
_LEAST_WORK = 30
# Schedules that could not be cut into sections, from which on it is not tried again: each try takes as long as a plan.
_MOST_WITHOUT_SECTIONS = 3
# Floats of a frame whose pixels fill vectors by themselves: frames in lanes would be turned for each kernel of frames.
_LARGE_FRAME = 1 << 13


@dataclass(frozen=True)
class Prepared:
    """A region for one set of input shapes.

    Attributes:
        outputs: sizes and element types.
        slabs: with their schedules, in order.
        scores: sequences, heads and new tokens of each cache.
        at_once: slabs that run at the same time, each on one thread; those of a range have one schedule.
    """

    outputs: tuple[tuple[Sizes, DType], ...]
    slabs: tuple[tuple[Slab, Schedule], ...]
    scores: tuple[tuple[int, int, int], ...] = ()
    at_once: tuple[slice, ...] = ()


class Operators(Protocol):
    """The operators of the steps of a region; see ``region_operators``."""

    @property
    def superseded(self) -> int:
        """How often operators have been given up for others."""

    def op(self, step: int, layout: Layout) -> _kernels.Op:
        """The operator of a step in a layout."""


class RegionSchedules:
    """Makes schedules when shapes are first seen, and keeps those of the shapes that came last.

    Not thread-safe, but for :meth:`latest`.
    """

    def __init__(self, region: Region, operators: Operators, threads: int, isa: str, is_bound: bool = False) -> None:
        """``is_bound``: bounds of slices and pads in it are those of one request."""
        self._region, self._operators, self._threads, self._isa = region, operators, threads, isa
        self._has_only_rows = all(step.view == "rows" for step in region.steps)
        self._moves_channels = moves_channels(region)
        self._is_uncut = _is_uncut(region)
        self._prepared: OrderedDict[tuple[Sizes, ...], Prepared] = OrderedDict()
        self._latest: tuple[tuple[Sizes, ...], Prepared] | None = None
        self._superseded = 0
        self._sections: Sections | None = None
        self._without_sections = 0  # schedules that could not be cut
        self._derived: DerivedSizes | None = None
        self._has_open_sizes = not is_bound and any(
            not isinstance(size, int) for dims in region.symbols.values() for size in dims
        )
        has_images = self._has_open_sizes and not (self._has_only_rows or region.turns_volumes or region.caches)
        self._resized = ResizedImages() if has_images else None

    def latest(self, sizes: tuple[Sizes, ...]) -> Prepared | None:
        """What was prepared last, if it was for inputs of ``sizes``."""
        latest = self._latest
        if latest is None or latest[0] != sizes or self._superseded < self._operators.superseded:
            return None
        return latest[1]

    def prepare(self, sizes: Sequence[Sizes]) -> Prepared:
        """Schedules for inputs of ``sizes``.

        Raises:
            UsageError: inputs do not fit each other, or are too small for a window.
        """
        key = tuple(sizes)
        self._forget_superseded()
        found = self._prepared.get(key)
        if found is None:
            found = self._made(key)
            self._forget_superseded()
            self._prepared[key] = found
            if len(self._prepared) > _KEPT:
                self._prepared.popitem(last=False)
        self._prepared.move_to_end(key)
        self._latest = (key, found)
        return found

    @property
    def kept(self) -> tuple[Prepared, ...]:
        """What is kept, the latest one last."""
        return tuple(self._prepared.values())

    def _forget_superseded(self) -> None:
        """Schedules may have operators that have been given up for others."""
        if self._superseded < self._operators.superseded:
            self._superseded = self._operators.superseded
            self._prepared.clear()
            self._sections = None
            if self._resized is not None:
                self._resized.forget()
            self._latest = None

    def _made(self, sizes: Sequence[Sizes]) -> Prepared:
        region = with_bounds(self._region, sizes)
        if region is not self._region:
            return RegionSchedules(region, self._operators, self._threads, self._isa, is_bound=True).prepare(sizes)
        dims = self.sizes_of_values(sizes)
        outputs = tuple((dims[name], region.array_dtype(name)) for name in region.outputs)
        resized = None if self._resized is None else self._resized.schedule(dims)
        if resized is not None:
            return Prepared(outputs, (resized,))
        made: dict[tuple[int, Layout, int], Schedule] = {}
        slabs = []
        batch = self._batch(sizes, dims)
        gains = batch.count > LANES and self._gain_at_once(dims, batch)
        cuts = cut(
            batch.count,
            lambda: self._bytes_of_group(dims, batch),
            only_rows=self._has_only_rows,
            single=region.single,
            whole=batch.is_whole,
            apart=self._moves_channels or region.turns_volumes,
            in_groups=gains,
        )
        at_once = self._at_once(cuts, gains)
        for number, slab in enumerate(cuts):
            is_alone = any(turns.start <= number < turns.stop for turns in at_once)
            threads = 1 if is_alone else self._threads
            key = (slab.count, slab.layout, threads)
            if key not in made:
                own = dims if slab.is_all and not batch.is_flat else self._sizes_of_slab(sizes, dims, slab, batch)
                made[key] = self._schedule(own, slab, threads)
            slabs.append((slab, made[key]))
        return Prepared(outputs, tuple(slabs), tuple(self._scores(dims)), at_once)

    def sizes_of_values(self, sizes: Sequence[Sizes]) -> Mapping[str, Sizes]:
        """Sizes of all values, by name, for inputs of ``sizes``; raises as :meth:`prepare`."""
        found = None if self._derived is None else self._derived.of(sizes)
        if found is None:
            region = with_bounds(self._region, sizes)
            found = sizes_of_values(region, sizes)
            if self._has_open_sizes and region is self._region:
                self._derived = DerivedSizes.derive(self._region, sizes) or self._derived
        return found

    def _at_once(self, slabs: Sequence[Slab], groups_gain: bool) -> tuple[slice, ...]:
        """Slabs that have a thread each: single images, and groups of images in lanes if they gain by that."""
        if self._threads == 1 or self._region.turns_volumes or self._region.caches or self._has_only_rows:
            return ()
        groups = sum(slab.layout != "planes" and slab.count == slabs[0].count < slab.of for slab in slabs)
        single = sum(slab.layout == "planes" and slab.count == 1 < slab.of for slab in slabs)
        found = (self._even_turns(0, groups if groups_gain else 0), self._even_turns(len(slabs) - single, single))
        return tuple(turns for turns in found if turns.start < turns.stop)

    def _even_turns(self, first: int, slabs: int) -> slice:
        """Which slabs from ``first`` on have a thread each.

        All of them, if that leaves few threads idle, else as many as leave none; the rest runs on all threads.
        """
        turns = -(-slabs // self._threads)
        is_even = slabs >= (1 - _MOST_IDLE) * turns * self._threads
        return slice(first, first + (slabs if is_even else slabs // self._threads * self._threads))

    def _gain_at_once(self, dims: Mapping[str, Sizes], batch: Batch) -> bool:
        """Whether groups of images are faster with a thread each: if they stay in its cache, or multiply so much.

        Otherwise, half of a group stays there while two threads share each operator.
        """
        if self._has_only_rows or batch.is_whole:
            return False
        if self._bytes_of_group(dims, batch) <= NEAR_BYTES:
            return True
        work, values = 0.0, 0
        for step in self._region.steps:
            if isinstance(step.spec, Moving):
                continue
            made = math.prod(dims[step.output])
            values += made
            if isinstance(step.spec, LinearLayer):
                work += step.spec.weights.density * step.spec.weights.columns * made
        return work >= _LEAST_WORK * values

    def _scores(self, dims: Mapping[str, Sizes]) -> Iterator[tuple[int, int, int]]:
        for step in self._region.steps:
            if isinstance(step.spec, CachedAttention):
                sizes = dims[step.output]
                yield sizes[0], step.spec.heads, sizes[2 if step.spec.is_parted else 1]

    def _batch(self, sizes: Sequence[Sizes], dims: Mapping[str, Sizes]) -> Batch:
        """How the batch is cut; whole if not every image has its part of all values."""
        batch = batch_of(self._region, dims)
        if self._is_uncut:
            return replace(batch, is_flat=False, is_whole=True)
        if batch.is_flat or batch.is_whole:
            return batch
        shared = {input_key(name, view) for name, view in self._region.inputs if name in self._region.constants}
        one = Slab(0, 1, batch.count, "planes")
        try:
            part = self._sizes_of_slab(sizes, dims, one, batch)
        except UsageError:
            return replace(batch, is_whole=True)
        return batch if is_scaled(dims, part, 1, batch.count, shared) else replace(batch, is_whole=True)

    def _sizes_of_slab(
        self, sizes: Sequence[Sizes], dims: Mapping[str, Sizes], slab: Slab, batch: Batch
    ) -> Mapping[str, Sizes]:
        if batch.is_flat:
            return {key: (slab.count, *size[1:]) for key, size in flat_sizes(self._region, dims).items()}
        own = [
            size if name in self._region.constants else (slab.count, *size[1:])
            for (name, _), size in zip(self._region.inputs, sizes, strict=True)
        ]
        return sizes_of_values(self._region, own)

    def _schedule(self, dims: Mapping[str, Sizes], slab: Slab, threads: int) -> Schedule:
        def layout_of(shape: Shape) -> Layout:
            count, *image = shape
            if self._region.turns_volumes and math.prod(image) >= _LARGE_FRAME:
                return "planes"
            return slab.layout if count == slab.count else layout_of_rows(count)

        has_sections = self._has_only_rows and slab.is_all and self._has_open_sizes
        has_sections = has_sections and self._without_sections < _MOST_WITHOUT_SECTIONS
        if has_sections and self._sections is not None:
            found = self._sections.schedule(dims, layout_of)
            if found is not None:
                return found
        values = planned(self._region, dims, layout_of, self._operators.op, threads, self._isa)
        made = scheduled(values)
        # Whatever the size of the images, a group of them is not cut: but for channels that move, into single ones.
        is_one_slab = slab.is_all and (slab.count == 1 or (slab.count <= LANES and not self._moves_channels))
        if self._resized is not None and is_one_slab:
            self._resized.learn(slab, values, made)
        if has_sections:
            self._sections = sections_of(self._region, dims, made, layout_of, self._operators.op, threads, self._isa)
            self._without_sections += self._sections is None
        return made

    def _bytes_of_group(self, dims: Mapping[str, Sizes], batch: Batch) -> int:
        """Of the operands and the result of the largest step, for 16 images or rows."""
        most = 0
        for step in self._region.steps:
            if not isinstance(step.spec, Moving):
                names = [*(operand_key(step, i, dims) for i in range(len(step.inputs))), step.output]
                most = max(most, step.dtype.itemsize * sum(math.prod(dims[name]) for name in names))
        return LANES * most // max(batch.count, 1)


def _is_uncut(region: Region) -> bool:
    """Whether a scale is one of the whole batch, or images may begin within a word of an array of bytes."""
    border = (*(name for name, _ in region.inputs), *region.outputs)
    return any(isinstance(step.spec, DynamicQuantize) for step in region.steps) or any(
        region.array_dtype(name).is_bytes for name in border
    )
