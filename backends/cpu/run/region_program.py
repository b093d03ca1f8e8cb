"""A region that runs: operators made once, schedules made per shape, batches cut into slabs."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.layouts import LANES, Layout
from sift_onnx.backends.cpu.lower.lowered_model import RegionWeights
from sift_onnx.backends.cpu.lower.plan import Region
from sift_onnx.backends.cpu.run.batches import Batch, are_operands_of, batch_of, flat_sizes, is_scaled, moves_channels
from sift_onnx.backends.cpu.run.cached_arrays import CacheArrays, SharedArrays, cache_arrays, prepared_rows
from sift_onnx.backends.cpu.run.operators import build
from sift_onnx.backends.cpu.run.placed_views import Shape, input_key, operand_key
from sift_onnx.backends.cpu.run.quantized_operators import build_quantized
from sift_onnx.backends.cpu.run.schedule import Schedule, schedule
from sift_onnx.backends.cpu.run.slabs import Slab, cut, layout_of_rows
from sift_onnx.backends.forks import renew_in_children
from sift_onnx.backends.lowering.dims import Dims, concrete
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import (
    Attention,
    Channels,
    Conv,
    DynamicQuantize,
    LinearLayer,
    LinearResize,
    Matmul,
    Moving,
    PixelCopy,
    QuantizedConv,
    QuantizedMatmul,
    Reshaped,
    result_dims,
)
from sift_onnx.backends.lowering.specs.decoding import CachedAttention
from sift_onnx.errors import UsageError

__all__ = ["RegionProgram", "StepTime"]

Array = npt.NDArray[Any]
_Weights = _kernels.SparseWeights | _kernels.QuadWeights

# Input shapes whose schedules are kept. A schedule is small; operators hold the packed weights.
_KEPT = 32
# Arrays from this size on are mapped separately by the system, which clears them.
_POOLED_BYTES = 1 << 18
# What a process can count on of a last-level cache that others share.
_SHARED_CACHE_BYTES = 8 << 20
# Specs whose operators are made for a size, by the schedule.
_WITHOUT_OPERATOR = (Attention, CachedAttention, LinearResize, PixelCopy)
_NOTHING: Mapping[str, Array] = {}


@dataclass(frozen=True)
class _Prepared:
    """A region for one set of input shapes: its outputs and slabs; sequences, heads and new tokens of its caches."""

    outputs: tuple[tuple[tuple[int, ...], DType], ...]
    slabs: tuple[tuple[Slab, Schedule], ...]
    scores: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True)
class StepTime:
    """One operator of one slab as it ran: seconds since the run began, and how long it took.

    ``step`` is None for a change of layout.
    """

    step: int | None
    start: float
    seconds: float
    shape: Shape
    layout: Layout


class RegionProgram:
    """Runs a region on arrays; thread-safe.

    Attributes:
        region: what it runs.
        pool: threads that it runs on.
        isa: instruction set of its operators.
    """

    def __init__(
        self,
        region: Region,
        weights: RegionWeights,
        pool: _kernels.ThreadPool,
        workspace: _kernels.Workspace,
        arrays: _kernels.ArrayPool,
        isa: str,
    ) -> None:
        """Take the packed ``weights`` of ``region``, and release what they were packed from."""
        self.pool = pool
        self._workspace = workspace
        self._arrays = arrays
        self.isa = isa
        layers = [step.spec for step in region.steps if isinstance(step.spec, LinearLayer)]
        # Of products, for few rows; see _rows_of.
        self._rows = {i: rows for i, rows in weights.items() if isinstance(rows, _kernels.PackedRows)}
        self._weights: dict[int, _Weights] = {
            i: own for i, own in weights.items() if not isinstance(own, _kernels.PackedRows)
        }
        products = sum(spec.weights.size for spec in layers if isinstance(spec, Matmul))
        self._in_one_form = DType.FLOAT32.itemsize * products > _SHARED_CACHE_BYTES
        self.region = replace(region, steps=tuple(_without_values(step) for step in region.steps))
        self._unpacked = set(self._weights)
        self._ops: dict[tuple[int, Layout], _kernels.Op] = {}
        self._prepared: OrderedDict[tuple[tuple[int, ...], ...], _Prepared] = OrderedDict()
        self._lock = threading.Lock()
        renew_in_children(self)

    def renew(self) -> None:
        """In a forked child: a thread that it does not have may hold the lock. What it guards is whole at any time."""
        self._lock = threading.Lock()

    def run(
        self,
        values: Mapping[str, Array],
        times: list[StepTime] | None = None,
        into: Mapping[str, Array] = _NOTHING,
    ) -> list[Array]:
        """The region's outputs, and its caches; see :attr:`Region.made`.

        Args:
            values: what it reads, among others, by name.
            times: to which the time of each operator is added.
            into: arrays for the caches, by name, which may hold the past already.
        """
        if self.region.prepared:
            values = {**values, **prepared_rows(self.region.prepared, values, self._sizes_of(values))}
        constants = self.region.constants
        inputs = [
            _as_kernels_read(constants[name] if name in constants else values[name]) for name, _ in self.region.inputs
        ]
        prepared = self.prepare([array.shape for array in inputs])
        outputs = [self._output(sizes, dtype) for sizes, dtype in prepared.outputs]
        arrays = [*inputs, *outputs]
        # Images and rows are consecutive in all of them but constants: a slab is a range of their elements.
        flat = [array.reshape(-1) for array in arrays]
        shared = [name in constants for name, _ in self.region.inputs] + [False] * len(outputs)
        caches = self._caches(values, prepared, into) if self.region.caches else []
        begin = time.perf_counter()
        for slab, planned in prepared.slabs:
            views = [
                array
                if slab.is_all or is_shared
                else array[slab.first * (size := array.size // slab.of) :][: slab.count * size]
                for array, is_shared in zip(flat, shared, strict=True)
            ]
            if times is None:
                planned.sequence.run(self.pool, self._workspace, views, caches=caches)
                continue
            seconds = np.zeros(len(planned.steps))
            at = time.perf_counter() - begin
            planned.sequence.run(self.pool, self._workspace, views, seconds, caches=caches)
            for step, shape, layout, took in zip(planned.steps, planned.shapes, planned.layouts, seconds, strict=True):
                times.append(StepTime(step, at, float(took), shape, layout))
                at += float(took)
        if self._unpacked:
            self._release()
        return [*outputs, *(array for cache in caches for array in cache[2:4] if array is not None)]

    def _caches(self, values: Mapping[str, Array], prepared: _Prepared, into: Mapping[str, Array]) -> list[CacheArrays]:
        shared = SharedArrays()

        def new_array(sizes: tuple[int, ...]) -> Array:
            return self._output(sizes, DType.FLOAT32)

        return [
            cache_arrays(names, values, scores, new_array, into, shared)
            for names, scores in zip(self.region.caches, prepared.scores, strict=True)
        ]

    def _sizes_of(self, values: Mapping[str, Array]) -> dict[str, int]:
        """What the names of sizes of values from outside stand for."""
        known = ((symbols, values[name].shape) for name, symbols in self.region.symbols.items() if name in values)
        pairs = (pair for symbols, shape in known for pair in zip(symbols, shape, strict=False))
        return {symbol: size for symbol, size in pairs if isinstance(symbol, str)}

    def prepare(self, sizes: Sequence[tuple[int, ...]]) -> _Prepared:
        """Schedules for inputs of ``sizes``; those of the shapes that came last are kept."""
        key = tuple(sizes)
        with self._lock:
            found = self._prepared.get(key)
            if found is None:
                found = self._prepared[key] = self._make(key)
                if len(self._prepared) > _KEPT:
                    self._prepared.popitem(last=False)
            self._prepared.move_to_end(key)
        return found

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that it holds, packed and not yet packed."""
        with self._lock:
            packed = sum(op.weight_bytes for op in self._ops.values())
            packed += sum(rows.nbytes for rows in self._rows.values())
            return packed + sum(weights.nbytes for weights in self._weights.values())

    def flops(self, step: int, shape: Shape) -> float:
        """Operations on active weights for an operand of ``shape``; 0 for steps without weights."""
        spec = self.region.steps[step].spec
        if isinstance(spec, QuantizedMatmul):
            sizes = result_dims(spec, shape if isinstance(spec, QuantizedConv) else shape[:2])
            return 2.0 * spec.weights.nnz * math.prod(concrete(sizes)) / spec.weights.rows
        if isinstance(spec, Conv):
            spec = replace(spec, pool=None)
        if not isinstance(spec, LinearLayer):
            return 0.0
        sizes = result_dims(spec, shape if not isinstance(spec, Matmul) else shape[:2])
        return 2.0 * spec.weights.nnz * math.prod(concrete(sizes)) / spec.weights.rows

    def kernel_name(self, step: int, shape: Shape, layout: Layout) -> str:
        """What runs a step on an operand of ``shape``, as profiles show it: kernel, layout and tile."""
        spec = self.region.steps[step].spec
        if isinstance(spec, (Moving, Channels)):
            return f"copy {layout}"
        if isinstance(spec, _WITHOUT_OPERATOR):
            return f"{type(spec).__name__.lower()} {layout}"
        if layout not in ("planes", "images16") or self.region.steps[step].result_dtype.is_bytes:
            op = next((op for (of, _), op in self._ops.items() if of == step), None)
            if op is None:
                return f"copy {layout}"
        else:
            op = self._op(step, layout)
        if isinstance(op, (_kernels.QuantizedConv, _kernels.DequantizedConv)):
            return f"int8 {'conv' if isinstance(spec, QuantizedConv) else 'matmul'} {op.algorithm} {layout}"
        if isinstance(op, (_kernels.Winograd, _kernels.PooledWinograd)):
            pooled = ", pooled" if isinstance(op, _kernels.PooledWinograd) else ""
            return f"conv winograd {layout} tile {op.tile}x{op.tile}{pooled}"
        if isinstance(op, _kernels.Matmul):
            rows = self._rows[step]
            return f"matmul {rows.form} of {rows.values} {layout}"
        if isinstance(op, _kernels.DenseProduct):
            algorithm = "strassen" if op.halves(shape) else "dense"
            return f"matmul {algorithm} {layout} tile {op.tile_rows}x1"
        if not isinstance(op, _kernels.Conv):
            return f"{type(op).__name__.lower()} {layout}"
        told = op.describe(shape, self.pool.threads)
        kind = "conv" if isinstance(spec, Conv) else "matmul"
        return f"{kind} {told['algorithm']} {layout} tile {'x'.join(map(str, told['tile']))}"

    def _output(self, sizes: tuple[int, ...], dtype: DType) -> Array:
        # The pool's arrays are float32.
        pooled = dtype is DType.FLOAT32 and dtype.itemsize * math.prod(sizes) >= _POOLED_BYTES
        return self._arrays.empty(sizes) if pooled else np.empty(sizes, dtype.numpy)

    def _op(self, step: int, layout: Layout) -> _kernels.Op:
        found = self._ops.get((step, layout))
        if found is None:
            found = self._ops[step, layout] = self._built(step, layout)
        return found

    def _built(self, index: int, layout: Layout) -> _kernels.Op:
        step = self.region.steps[index]
        spec = step.spec
        if step.dtype.is_bytes or step.result_dtype.is_bytes:
            quads = self._weights.get(index)
            assert not isinstance(quads, _kernels.SparseWeights)
            return build_quantized(spec, layout, quads, self.isa)
        rows = self._rows_of(index, layout) if isinstance(spec, Matmul) else None
        weights = self._source(index) if rows is None and isinstance(spec, LinearLayer) else None
        return build(spec, layout, weights if rows is None else rows, self.isa)

    def _source(self, step: int) -> _kernels.SparseWeights:
        """The weights of a layer as float32; unpacked, where they have been released."""
        weights = self._weights.get(step)
        assert not isinstance(weights, _kernels.QuadWeights)  # those have operators of bytes
        if weights is None:
            self._unpacked.add(step)
            weights = self._rows[step].source() if step in self._rows else next(
                op.source() for op in self._packing(step)
            )  # fmt: skip
        return weights

    def _rows_of(self, step: int, layout: Layout) -> _kernels.PackedRows | None:
        """The weights of a product as few rows need them; None where many rows are multiplied by another form.

        Few rows wait for weights from memory, and have the form of the fewest bytes. Many rows have one of their own,
        which is faster, and several times larger. Where the weights of all products are more than what stays in a
        cache, few rows therefore make an end of it: from then on, many rows are multiplied by the form of few.
        """
        if step not in self._rows:
            if layout != "planes":
                return None
            self._rows[step] = _kernels.PackedRows(self._source(step), isa=self.isa)
            if self._in_one_form and self._ops.pop((step, "images16"), None) is not None:
                self._prepared.clear()
        rows = self._rows[step]
        is_only = self._in_one_form or rows.values != "float32"
        return rows if layout == "planes" or is_only else None

    def _packing(self, step: int) -> list[_kernels.Conv | _kernels.DenseProduct | _kernels.Matmul]:
        """The operators of a step whose weights can be had back."""
        ops = [op for (of, _), op in self._ops.items() if of == step]
        return [op for op in ops if isinstance(op, (_kernels.Conv, _kernels.DenseProduct, _kernels.Matmul))]

    def _release(self) -> None:
        """Release weights that every operator has packed in a run: packed and unpacked, they take twice the memory."""
        before = len(self._weights)
        with self._lock:
            for step in tuple(self._unpacked):
                ops = self._packing(step)
                if isinstance(self.region.steps[step].spec, QuantizedMatmul):
                    # Packed when they were made; those that make floats may be wanted in another layout.
                    self._unpacked.discard(step)
                    if self.region.steps[step].result_dtype.is_bytes and (step, "quads") in self._ops:
                        del self._weights[step]
                elif not ops and any(of == step for of, _ in self._ops):
                    # Transformed into a form that cannot be unpacked: another layout's operator needs the weights.
                    self._unpacked.discard(step)
                elif ops and all(op.release_source() for op in ops):
                    self._unpacked.discard(step)
                    self._weights.pop(step, None)
        if len(self._weights) < before:
            _kernels.trim_memory()

    def _make(self, sizes: Sequence[tuple[int, ...]]) -> _Prepared:
        dims = self._sizes(sizes)
        made: dict[tuple[int, Layout], Schedule] = {}
        slabs = []
        batch = self._batch(sizes, dims)
        outputs = tuple((dims[name], self.region.array_dtype(name)) for name in self.region.outputs)
        for slab in cut(
            batch.count,
            self._bytes_of_group(dims, batch),
            only_rows=all(step.view == "rows" for step in self.region.steps),
            single=self.region.single,
            whole=batch.is_whole,
            apart=moves_channels(self.region),
        ):
            key = (slab.count, slab.layout)
            if key not in made:
                own = dims if slab.is_all and not batch.is_flat else self._sizes_of_slab(sizes, dims, slab, batch)
                made[key] = self._schedule(own, slab)
            slabs.append((slab, made[key]))
        return _Prepared(outputs, tuple(slabs), tuple(self._scores(dims)))

    def _scores(self, dims: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[int, int, int]]:
        for step in self.region.steps:
            if isinstance(step.spec, CachedAttention):
                sizes = dims[step.output]
                yield sizes[0], step.spec.heads, sizes[2 if step.spec.is_parted else 1]

    def _batch(self, sizes: Sequence[tuple[int, ...]], dims: Mapping[str, tuple[int, ...]]) -> Batch:
        """How the batch is cut; whole if not every image has its part of all values."""
        batch = batch_of(self.region, dims)
        if self._is_uncut():
            return replace(batch, is_flat=False, is_whole=True)
        if batch.is_flat or batch.is_whole:
            return batch
        shared = {input_key(name, view) for name, view in self.region.inputs if name in self.region.constants}
        one = Slab(0, 1, batch.count, "planes")
        try:
            part = self._sizes_of_slab(sizes, dims, one, batch)
        except UsageError:
            return replace(batch, is_whole=True)
        return batch if is_scaled(dims, part, 1, batch.count, shared) else replace(batch, is_whole=True)

    def _is_uncut(self) -> bool:
        """Whether a scale is one of the whole batch, or images may begin within a word of an array of bytes."""
        border = (*(name for name, _ in self.region.inputs), *self.region.outputs)
        return any(isinstance(step.spec, DynamicQuantize) for step in self.region.steps) or any(
            self.region.array_dtype(name).is_bytes for name in border
        )

    def _sizes(self, sizes: Sequence[tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Sizes of all values, by name; of inputs, by name and view."""
        dims: dict[str, tuple[int, ...]] = {
            input_key(name, view): tuple(size) for (name, view), size in zip(self.region.inputs, sizes, strict=True)
        }
        names = self._named_sizes(dims)
        for step, name_of_step in zip(self.region.steps, self.region.names, strict=True):
            operands = [dims[operand_key(step, position, dims)] for position in range(len(step.inputs))]
            spec = step.spec.bound(names) if isinstance(step.spec, Reshaped) else step.spec
            result = result_dims(spec, *operands[:2])
            if not all(isinstance(size, int) for size in result):
                raise _unfit(step, name_of_step, operands, result)
            made = cast("tuple[int, ...]", result)
            if not are_operands_of(spec, operands, made):
                raise _unfit(step, name_of_step, operands, result)
            if 0 in made[1:] and 0 not in operands[0][1:]:
                raise _too_small(step, name_of_step, operands[0])
            dims[step.output] = made
        return dims

    def _named_sizes(self, dims: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """What the names of sizes of the region's inputs stand for."""
        return {
            symbol: size
            for name, view in self.region.inputs
            for symbol, size in zip(self.region.symbols.get(name, ()), dims[input_key(name, view)], strict=False)
            if isinstance(symbol, str)
        }

    def _sizes_of_slab(
        self, sizes: Sequence[tuple[int, ...]], dims: Mapping[str, tuple[int, ...]], slab: Slab, batch: Batch
    ) -> Mapping[str, tuple[int, ...]]:
        if batch.is_flat:
            return {key: (slab.count, *size[1:]) for key, size in flat_sizes(self.region, dims).items()}
        constants = self.region.constants
        return self._sizes([
            size if name in constants else (slab.count, *size[1:])
            for (name, _), size in zip(self.region.inputs, sizes, strict=True)
        ])  # fmt: skip

    def _schedule(self, dims: Mapping[str, tuple[int, ...]], slab: Slab) -> Schedule:
        def layout_of(count: int) -> Layout:
            return slab.layout if count == slab.count else layout_of_rows(count)

        return schedule(self.region, dims, layout_of, self._op, self.isa)

    def _bytes_of_group(self, dims: Mapping[str, tuple[int, ...]], batch: Batch) -> int:
        """Of the operands and the result of the largest step, for 16 images or rows."""
        most = 0
        for step in self.region.steps:
            if not isinstance(step.spec, Moving):
                names = [*(operand_key(step, i, dims) for i in range(len(step.inputs))), step.output]
                most = max(most, step.dtype.itemsize * sum(math.prod(dims[name]) for name in names))
        return LANES * most // max(batch.count, 1)


def _as_kernels_read(array: Array) -> Array:
    """``array``, or a copy of what is not C-contiguous or begins between two floats, as a part of a file may."""
    array = np.ascontiguousarray(array)
    return array if array.flags.aligned else array.copy()


def _unfit(step: Step, name: str, operands: Sequence[Sequence[int]], result: Dims) -> UsageError:
    if step.view == "image" and all(len(sizes) == 4 for sizes in operands):
        listed = ", ".join(str(list(sizes[2:])) for sizes in operands)
        return UsageError(f"node {name!r}: its operands are images of {listed}")
    listed = " and ".join(str(list(sizes)) for sizes in operands)
    return UsageError(f"node {name!r} cannot make {list(result)} of {listed}")


def _too_small(step: Step, name: str, dims: Dims) -> UsageError:
    where = f"node {name!r}"
    if isinstance(step.spec, Conv) and step.spec.pool is not None:
        convolved = result_dims(replace(step.spec, pool=None), dims)
        if 0 not in convolved[1:]:
            where, dims = f"the pooling behind {where}", convolved
    return UsageError(f"{where}: its window does not fit an input of {list(dims)}; feed a larger one")


def _without_values(step: Step) -> Step:
    spec = step.spec
    if isinstance(spec, LinearLayer):
        return replace(step, spec=replace(spec, weights=spec.weights.released()))
    if isinstance(spec, QuantizedMatmul):
        return replace(step, spec=replace(spec, weights=spec.weights.released()))
    return step
