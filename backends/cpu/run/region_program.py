"""A region that runs on arrays, with the threads and the memory that it shares with others."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.layouts import LANES_PAY, Layout
from sift_onnx.backends.cpu.lower.lowered_model import RegionWeights
from sift_onnx.backends.cpu.lower.region import Region
from sift_onnx.backends.cpu.run.cache_rooms import CacheInRoom, CacheStep, caches_of_step
from sift_onnx.backends.cpu.run.cached_arrays import CacheArrays, SharedArrays, cache_arrays, look_ups, prepared_rows
from sift_onnx.backends.cpu.run.kernel_names import active_flops, kernel_name
from sift_onnx.backends.cpu.run.region_operators import RegionOperators, without_values
from sift_onnx.backends.cpu.run.region_stage import RegionStage
from sift_onnx.backends.cpu.run.schedules.batches import moves_channels
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import Shape, Sizes
from sift_onnx.backends.cpu.run.schedules.region_schedules import Prepared
from sift_onnx.backends.forks import renew_in_children
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.errors import UsageError

__all__ = ["RegionProgram", "StepTime"]

Array = npt.NDArray[Any]

# Memory of arrays from this size on may go back to the system with the array, which clears it again for the next one.
_POOLED_BYTES = 1 << 16
_NOTHING: Mapping[str, Array] = {}
_INT32 = np.dtype(np.int32)
_FLOAT = np.dtype(np.float32)
# Of results, where requests may differ in size, and a page of the system.
_FIRST_FLOATS, _PAGE = 1 << 18, 4096


@dataclass(frozen=True)
class StepTime:
    """One operator of one slab as it ran: seconds since the run began, and how long it took.

    ``step`` is None for a change of layout. If the operator runs several steps, ``together`` has them, with the shapes
    of their operands, and ``step`` is the first one.
    """

    step: int | None
    start: float
    seconds: float
    shape: Shape
    layout: Layout
    together: tuple[tuple[int, Shape], ...] = ()


# Of callers that run a region by themselves: it starts no thread.
_ALONE = _kernels.ThreadPool(1)


class RegionProgram:
    """Runs a region on arrays; thread-safe.

    Attributes:
        region: what it runs.
        pool: threads that it runs on.
    """

    def __init__(
        self,
        region: Region,
        weights: RegionWeights,
        pool: _kernels.ThreadPool,
        workspace: _kernels.Workspace,
        arrays: _kernels.ArrayPool,
        isa: str,
        deterministic: bool = False,
    ) -> None:
        """Take the packed ``weights`` of ``region``, and release what they were packed from."""
        self.pool = pool
        self._workspace = workspace
        self._arrays = arrays
        self.region = replace(region, steps=tuple(without_values(step) for step in region.steps))
        self._look_ups = look_ups(region.prepared)
        # Where each symbol is the size of an axis.
        self._sized = {
            symbol: (name, axis)
            for name, symbols in region.symbols.items()
            for axis, symbol in enumerate(symbols)
            if name in region.read and isinstance(symbol, str)
        }
        self._operators = RegionOperators(self.region, weights, isa, deterministic)
        self._whole = RegionStage(self.region, self._operators, pool.threads, isa)
        self._stages = self._stages_of(self.region.stages, isa)
        # Where channels move, images run one by one in any case.
        few = () if moves_channels(self.region) else self.region.stages_of_few
        self._stages_of_few = self._stages_of(few, isa)
        self._has_open_sizes = any(not isinstance(size, int) for dims in region.symbols.values() for size in dims)
        self._has_pages = False
        self._lock = threading.Lock()
        self._planning = threading.local()
        renew_in_children(self)

    def _stages_of(self, regions: Sequence[Region], isa: str) -> Sequence[RegionStage]:
        firsts = accumulate((len(region.steps) for region in regions), initial=0)
        return [
            RegionStage(region, self._operators, self.pool.threads, isa, first)
            for region, first in zip(regions, firsts, strict=False)
        ]

    def renew(self) -> None:
        """In a forked child: a thread that it does not have may hold the lock. What it guards is whole at any time."""
        self._lock = threading.Lock()

    def run(
        self,
        values: Mapping[str, Array],
        times: list[StepTime] | None = None,
        into: Mapping[str, Array] | CacheStep = _NOTHING,
        is_alone: bool = False,
    ) -> list[Array]:
        """The region's outputs, and its caches; see :attr:`Region.made`.

        Args:
            values: what it reads, among others, by name.
            times: to which the time of each operator is added.
            into: arrays for the caches, by name, which may hold the past already; or a step in memory that holds it,
                which is then neither among ``values`` nor among the results.
            is_alone: whether the calling thread runs it by itself.
        """
        pool = _ALONE if is_alone else self.pool
        shared = SharedArrays()
        if self._look_ups:
            values = {**values, **prepared_rows(self._look_ups, values, self._sizes_of(values), shared)}
        made: list[Array] = []
        stages = self._stages_for(values)
        if stages:
            found = dict(values)
            for stage in stages:
                found.update(zip(stage.region.outputs, self._run(pool, stage, found, times), strict=True))
            made = [found[name] for name in self.region.outputs]
        else:
            made = self._run(pool, self._whole, values, times, into, shared)
        if self._operators.holds_unpacked:
            self._release()
        return made

    def _stages_for(self, values: Mapping[str, Array]) -> Sequence[RegionStage]:
        """How a batch runs: none where all of it passes each step."""
        if not self._stages and not self._stages_of_few:
            return ()
        name = next(name for name, array in self._whole.reads if array is None)
        images = len(values[name])
        if images >= LANES_PAY:
            return self._stages
        return self._stages_of_few if images > 1 else ()

    def _run(
        self,
        pool: _kernels.ThreadPool,
        stage: RegionStage,
        values: Mapping[str, Array],
        times: list[StepTime] | None,
        into: Mapping[str, Array] | CacheStep = _NOTHING,
        shared: SharedArrays | None = None,
    ) -> list[Array]:
        """The outputs of a stage, and the caches if it is the whole region."""
        inputs = [_as_kernels_read(values[name] if array is None else array) for name, array in stage.reads]
        prepared = self._prepared(stage, tuple([array.shape for array in inputs]))
        outputs = [self._output(sizes, dtype) for sizes, dtype in prepared.outputs]
        caches: Sequence[CacheArrays | CacheInRoom] = ()
        if shared is not None and self.region.caches:
            caches = self._caches(values, prepared, into, shared)
        try:
            self._run_slabs(pool, stage, prepared, [*inputs, *outputs], caches, times)
        except ValueError as error:
            # Operators check what their arrays say, such as the lengths of sequences.
            raise UsageError(str(error)) from error
        if isinstance(into, CacheStep):
            return outputs
        return [*outputs, *(array for cache in caches for array in cache[2:4] if isinstance(array, np.ndarray))]

    def _run_slabs(
        self,
        pool: _kernels.ThreadPool,
        stage: RegionStage,
        prepared: Prepared,
        whole: Sequence[Array],
        caches: Sequence[CacheArrays | CacheInRoom],
        times: list[StepTime] | None,
    ) -> None:
        """Run slab after slab of the stage's inputs and outputs."""
        slabs = prepared.slabs
        if prepared.at_once and times is None:
            for turns in prepared.at_once:
                alone = slabs[turns]
                arrays_of = [stage.ranges(slab, whole) for slab, _ in alone]
                alone[0][1].sequence.run_each(pool, self._workspace, arrays_of)
            ran_already = {number for turns in prepared.at_once for number in range(turns.start, turns.stop)}
            slabs = tuple(one for number, one in enumerate(slabs) if number not in ran_already)
        begin = 0.0
        if times is not None:
            earlier = times[-1].start + times[-1].seconds if times else 0.0
            begin = time.perf_counter() - earlier
        for slab, planned in slabs:
            arrays = whole if slab.is_all else stage.ranges(slab, whole)
            if times is None:
                planned.sequence.run(pool, self._workspace, arrays, caches=caches)
                continue
            seconds = np.zeros(len(planned.steps))
            at = time.perf_counter() - begin
            planned.sequence.run(pool, self._workspace, arrays, seconds, caches=caches)
            ran = zip(planned.steps, planned.shapes, planned.layouts, seconds, strict=True)
            for number, (step, shape, layout, took) in enumerate(ran):
                together = tuple((stage.first + own, of) for own, of in planned.together.get(number, ()))
                in_region = None if step is None else stage.first + step
                times.append(StepTime(in_region, at, float(took), shape, layout, together))
                at += float(took)

    def _caches(
        self,
        values: Mapping[str, Array],
        prepared: Prepared,
        into: Mapping[str, Array] | CacheStep,
        shared: SharedArrays,
    ) -> Sequence[CacheArrays | CacheInRoom]:
        def new_array(sizes: tuple[int, ...]) -> Array:
            return self._output(sizes, DType.FLOAT32)

        if isinstance(into, CacheStep):
            return caches_of_step(self.region.caches, values, prepared.scores, into, shared)
        return [
            cache_arrays(names, values, scores, new_array, into, shared)
            for names, scores in zip(self.region.caches, prepared.scores, strict=True)
        ]

    def _sizes_of(self, values: Mapping[str, Array]) -> dict[str, int]:
        """What the names of sizes of values from outside stand for."""
        return {symbol: values[name].shape[axis] for symbol, (name, axis) in self._sized.items()}

    def sizes_for(self, read: Mapping[str, Sizes]) -> Mapping[str, Sizes]:
        """Sizes of what its steps make, by name, for values of these sizes; none where it looks up some of them."""
        if self._look_ups:
            return {}
        sizes = tuple([read[name] if array is None else array.shape for name, array in self._whole.reads])
        with self._lock:
            known = self._whole.schedules.sizes_of_values(sizes)
        return {step.output: known[step.output] for step in self.region.steps}

    def prepare(self, sizes: Sequence[Sizes]) -> Prepared:
        """Schedules for inputs of ``sizes``; those of the shapes that came last are kept."""
        return self._prepared(self._whole, tuple(sizes))

    def _prepared(self, stage: RegionStage, sizes: tuple[Sizes, ...]) -> Prepared:
        latest = stage.schedules.latest(sizes)
        if latest is not None:
            return latest
        begin = time.thread_time()
        try:
            with self._lock:
                return stage.schedules.prepare(sizes)
        finally:
            self._planning.seconds = self.planning_seconds + time.thread_time() - begin

    @property
    def planning_seconds(self) -> float:
        """Processor time that this thread has spent on schedules."""
        return getattr(self._planning, "seconds", 0.0)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that it holds, packed and not yet packed."""
        with self._lock:
            return self._operators.weight_bytes

    def release_idle(self) -> None:
        """Give scratch memory and memory of dropped results back, that of regions beside this one included.

        Each thread keeps what single operators use besides.
        """
        self._arrays.release_idle()
        self._workspace.release_idle()

    def flops(self, ran: StepTime) -> float:
        """Operations on active weights; 0 for steps without weights."""
        assert ran.step is not None
        steps = ran.together or ((ran.step, ran.shape),)
        return sum(active_flops(self.region.steps[step].spec, shape) for step, shape in steps)

    def kernel_name(self, ran: StepTime) -> str:
        """What ran a step, as profiles show it: kernel, layout and tile, or that it ran in bands."""
        assert ran.step is not None
        if ran.together:
            return f"{len(ran.together)} layers in bands of rows {ran.layout}"
        step = self.region.steps[ran.step]
        with self._lock:
            return kernel_name(self._operators, ran.step, step, ran.shape, ran.layout, self.pool.threads)

    def _output(self, sizes: Sizes, dtype: DType) -> Array:
        # The pool's arrays are float32.
        pooled = dtype is DType.FLOAT32 and dtype.itemsize * math.prod(sizes) >= _POOLED_BYTES
        return self._arrays.empty(sizes) if pooled else np.empty(sizes, dtype.numpy)

    def _release(self) -> None:
        """What only the first run does, which packs weights and takes long for that."""
        with self._lock:
            self._operators.prepare_sizes(self.pool)
            self._operators.release()
            if self._has_open_sizes and not self._has_pages:
                # A larger request would wait for the system to clear the first large page of its results.
                self._arrays.empty((_FIRST_FLOATS,))[:: _PAGE // _FLOAT.itemsize] = 0
                self._has_pages = True


def _as_kernels_read(array: Array) -> Array:
    """``array``, or a copy of what is not C-contiguous or begins between two floats, as a part of a file may.

    Lengths of sequences come as int32, and are read as floats.
    """
    flags, is_lengths = array.flags, array.dtype == _INT32
    if flags.c_contiguous and flags.aligned and array.ndim and not is_lengths:
        return array
    array = np.ascontiguousarray(array, np.float32 if is_lengths else None)
    return array if array.flags.aligned else array.copy()
