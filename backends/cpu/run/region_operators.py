"""The operators of a region: each made once for a layout, with weights that are packed once and then given up."""

from __future__ import annotations

import math
from dataclasses import replace

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.isa import generates_code
from sift_onnx.backends.cpu.lower.float_quads import added_layout
from sift_onnx.backends.cpu.lower.layouts import LANES, Layout
from sift_onnx.backends.cpu.lower.lowered_model import RegionWeights
from sift_onnx.backends.cpu.lower.region import Region
from sift_onnx.backends.cpu.run.operators import build
from sift_onnx.backends.cpu.run.quantized_operators import FloatResult, build_layer, build_quantized
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import Shape
from sift_onnx.backends.lowering.dims import product
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import Conv, GatherRows, LinearLayer, Matmul, QuantizedMatmul, Recurrent

__all__ = ["RegionOperators", "without_values"]

_Weights = _kernels.SparseWeights | _kernels.QuadWeights
_Packed = _kernels.Conv | _kernels.DenseProduct | _kernels.Matmul
# What a process can count on of a last-level cache that others share.
_SHARED_CACHE_BYTES = 8 << 20
# Rows of products that are multiplied by lists, and rows that are multiplied by generated code.
_FEW_ROWS, _MANY_ROWS = LANES, 8 * LANES
# Likewise heights and widths of what a convolution makes.
_FEW_PIXELS, _MANY_PIXELS = 4, 12


class RegionOperators:
    """Makes operators when they are first asked for; not thread-safe.

    Attributes:
        superseded: how often operators have been given up for others; schedules with them should be made again.
    """

    def __init__(self, region: Region, weights: RegionWeights, isa: str, deterministic: bool) -> None:
        """Take the ``weights`` of the layers of ``region``, by the index of their steps.

        Results have the same bits whatever requests came before, if that is asked for by ``deterministic``.
        """
        self._region, self._isa = region, isa
        # Of products, for few rows; see _rows_of.
        self._rows = {i: rows for i, rows in weights.items() if isinstance(rows, _kernels.PackedRows)}
        self._weights: dict[int, _Weights] = {
            i: own for i, own in weights.items() if not isinstance(own, _kernels.PackedRows)
        }
        products = [step.spec.weights for step in region.steps if isinstance(step.spec, Matmul)]
        # As bits and values, which few rows of activations are multiplied by.
        nbytes = sum(weights.size / 8 + DType.FLOAT32.itemsize * weights.nnz for weights in products)
        self._in_one_form = nbytes > _SHARED_CACHE_BYTES
        is_open = any(not isinstance(size, int) for dims in region.symbols.values() for size in dims)
        self._begins_with_few = deterministic and self._in_one_form and is_open
        self._unpacked = set(self._weights)
        self._ops: dict[tuple[int, Layout], _kernels.Op] = {}
        self.superseded = 0

    @property
    def holds_unpacked(self) -> bool:
        """Whether there are weights that :meth:`release` may give up."""
        return bool(self._unpacked)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that it holds, packed and not yet packed."""
        packed = sum(op.weight_bytes for op in self._ops.values())
        packed += sum(rows.nbytes for rows in self._rows.values())
        return packed + sum(weights.nbytes for weights in self._weights.values())

    def op(self, step: int, layout: Layout) -> _kernels.Op:
        """The operator of a step in a layout."""
        found = self._ops.get((step, layout))
        if found is None:
            found = self._ops[step, layout] = self._built(step, layout)
        return found

    def made(self, step: int) -> _kernels.Op | None:
        """One of the operators that a step has so far."""
        return next((op for (of, _), op in self._ops.items() if of == step), None)

    def rows(self, step: int) -> _kernels.PackedRows:
        """The weights of a product of few rows that has run."""
        return self._rows[step]

    def sources(self, step: int) -> list[_kernels.SparseWeights]:
        """What each form of a layer's weights was packed from; the weights, if there is no form yet."""
        packed = [op.source() for op in self._packing(step)]
        own = self._weights.get(step)
        return packed or ([own] if isinstance(own, _kernels.SparseWeights) else [])

    def prepare_sizes(self, pool: _kernels.ThreadPool) -> None:
        """Pack weights for few rows or pixels and for many, where requests differ in length or in height and width.

        One of the two would be packed by the first request that is much longer or shorter than the others before it.
        Where no code is generated, each of many tiles has lists of its own, and they wait for their requests.
        """
        if not generates_code(self._isa):
            return
        has_open_lengths, has_open_images = _has_open_lengths(self._region), _has_open_images(self._region)
        layers, shapes = [], []
        for step in self._unpacked:
            spec = self._region.steps[step].spec
            if isinstance(spec, Matmul) and has_open_lengths:
                op, own = self._ops.get((step, "images16")), _rows_to_prepare(spec)
            elif isinstance(spec, Conv) and has_open_images:
                op, own = self._ops.get((step, "planes")), _images_to_prepare(spec)
            else:
                continue
            if isinstance(op, _kernels.Conv):
                layers.append(op)
                shapes.append(own)
        _kernels.Conv.prepare_all(layers, shapes, pool)

    def release(self) -> None:
        """Release weights that every operator has packed in a run: packed and unpacked, they take twice the memory."""
        before = len(self._unpacked)
        for step in tuple(self._unpacked):
            ops = self._packing(step)
            if isinstance(self._region.steps[step].spec, QuantizedMatmul):
                # Packed when they were made; those that make floats may be wanted in another layout.
                self._unpacked.discard(step)
                if self._region.steps[step].result_dtype.is_bytes and (step, "quads") in self._ops:
                    del self._weights[step]
            elif not ops and self.made(step) is not None:
                # Transformed into a form that cannot be unpacked: another layout's operator needs the weights.
                self._unpacked.discard(step)
            elif ops and all(op.release_source() for op in ops):
                self._unpacked.discard(step)
                self._weights.pop(step, None)
        if len(self._unpacked) < before:
            # Of a product that few rows came to, the form for many rows is gone as well.
            _kernels.trim_memory()

    def _built(self, index: int, layout: Layout) -> _kernels.Op:
        step = self._region.steps[index]
        spec = step.spec
        if step.dtype.is_bytes or step.result_dtype.is_bytes:
            if not isinstance(spec, QuantizedMatmul):
                return build_quantized(spec, layout, self._isa)
            quads = self._weights[index]
            assert isinstance(quads, _kernels.QuadWeights)
            beside = self._region.float_quads
            added = added_layout(step.inputs[1] in beside, layout) if spec.is_added else None
            return build_layer(spec, FloatResult(layout, added, beside.get(step.output)), quads, self._isa)
        rows = self._rows_of(index, layout) if isinstance(spec, Matmul) else None
        weights = self._source(index) if rows is None and isinstance(spec, (LinearLayer, Recurrent)) else None
        return build(spec, layout, weights if rows is None else rows, self._isa)

    def _source(self, step: int) -> _kernels.SparseWeights:
        """The weights of a layer as float32; unpacked, where they have been released."""
        weights = self._weights.get(step)
        assert not isinstance(weights, _kernels.QuadWeights)  # those have operators of bytes
        if weights is None:
            self._unpacked.add(step)
            packed = self._rows.get(step) or self._packing(step)[0]
            weights = packed.source()
        return weights

    def _rows_of(self, step: int, layout: Layout) -> _kernels.PackedRows | None:
        """The weights of a product as few rows need them; None where many rows are multiplied by another form.

        Few rows wait for weights from memory, and have the form of the fewest bytes. Many rows have one of their own,
        which is faster, and several times larger. Where the weights of all products are more than what stays in a
        cache, few rows therefore make an end of it: from then on, many rows are multiplied by the form of few. The two
        round differently, so they are from the beginning where requests must not depend on each other.
        """
        if step not in self._rows:
            if layout != "planes" and not self._begins_with_few:
                return None
            self._rows[step] = _kernels.PackedRows(self._source(step), isa=self._isa)
            if self._in_one_form and self._ops.pop((step, "images16"), None) is not None:
                self.superseded += 1
        rows = self._rows[step]
        is_only = self._in_one_form or rows.values != "float32"
        return rows if layout == "planes" or is_only else None

    def _packing(self, step: int) -> list[_Packed]:
        """The operators of a step whose weights can be had back."""
        ops = [op for (of, _), op in self._ops.items() if of == step]
        return [op for op in ops if isinstance(op, _Packed)]


def _has_open_lengths(region: Region) -> bool:
    """Whether sequences that enter a region may have few tokens in one request and many in the next.

    Of batches of rows, most models see one size.
    """
    numbers = {step.inputs[0] for step in region.steps if isinstance(step.spec, GatherRows)}
    for name, view in region.inputs:
        symbols = region.symbols.get(name, ())
        # A row of a table for each number, or the last axis are channels.
        of_rows = symbols if name in numbers else symbols[:-1]
        rows = product(of_rows)
        if view == "rows" and len(of_rows) > 1 and not isinstance(rows, int):
            factors = [factor for factor in rows[1:2] if isinstance(factor, int)] if rows[0] == "product" else []
            return math.prod(factors) < _MANY_ROWS
    return False


def _has_open_images(region: Region) -> bool:
    """Whether images or signals that enter a region may differ in more than their number."""
    return any(not isinstance(size, int) for name, _ in region.inputs for size in region.symbols.get(name, ())[1:])


def _rows_to_prepare(spec: Matmul) -> list[Shape]:
    return [(rows, spec.weights.columns, 1, 1) for rows in (_FEW_ROWS, _MANY_ROWS)]


def _images_to_prepare(spec: Conv) -> list[Shape]:
    own = spec.geometry
    channels = spec.weights.columns // math.prod(own.kernel) * spec.groups
    top, left, bottom, right = own.pads
    axes = list(zip(own.kernel, own.stride, own.dilation, (top + bottom, left + right), strict=True))
    shapes: list[Shape] = []
    for pixels in (_FEW_PIXELS, _MANY_PIXELS):
        height, width = (
            max((pixels - 1) * stride + (kernel - 1) * dilation + 1 - pad, 1) for kernel, stride, dilation, pad in axes
        )
        shapes.append((1, channels, height, width))
    return shapes


def without_values(step: Step) -> Step:
    """A step that does not hold the values of its weights."""
    spec = step.spec
    if isinstance(spec, (LinearLayer, Recurrent)):
        return replace(step, spec=replace(spec, weights=spec.weights.released()))
    if isinstance(spec, QuantizedMatmul):
        return replace(step, spec=replace(spec, weights=spec.weights.released()))
    return step
