"""What profiles show of a step: the kernel that runs it, its layout and tile, and its work."""

from __future__ import annotations

import math
from dataclasses import replace

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.layouts import Layout
from sift_onnx.backends.cpu.run.region_operators import RegionOperators
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import Shape
from sift_onnx.backends.lowering.dims import concrete
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import (
    Attention,
    BatchedMatmul,
    Channels,
    Conv,
    Elementwise,
    GatherElements,
    GatherRows,
    GridSample,
    LinearLayer,
    LinearResize,
    Matmul,
    Moving,
    PixelCopy,
    QuantizedConv,
    QuantizedMatmul,
    Recurrent,
    ScatterElements,
    Spec,
    result_dims,
)
from sift_onnx.backends.lowering.specs.decoding import CachedAttention

__all__ = ["active_flops", "kernel_name"]

# Specs whose operators are made for a size, by the schedule.
_WITHOUT_OPERATOR = (
    Attention,
    BatchedMatmul,
    CachedAttention,
    Elementwise,
    GatherElements,
    GatherRows,
    GridSample,
    LinearResize,
    PixelCopy,
    ScatterElements,
)


def active_flops(spec: Spec, shape: Shape) -> float:
    """Operations on active weights for an operand of ``shape``; 0 for steps without weights."""
    if isinstance(spec, QuantizedMatmul):
        sizes = result_dims(spec, shape if isinstance(spec, QuantizedConv) else shape[:2])
        return 2.0 * spec.weights.nnz * math.prod(concrete(sizes)) / spec.weights.rows
    if isinstance(spec, Recurrent):
        return 2.0 * spec.weights.nnz * shape[0]
    if isinstance(spec, Conv):
        spec = replace(spec, pool=None)
    if not isinstance(spec, LinearLayer):
        return 0.0
    sizes = result_dims(spec, shape if not isinstance(spec, Matmul) else shape[:2])
    return 2.0 * spec.weights.nnz * math.prod(concrete(sizes)) / spec.weights.rows


def kernel_name(operators: RegionOperators, index: int, step: Step, shape: Shape, layout: Layout, threads: int) -> str:
    """What runs a step on an operand of ``shape``: kernel, layout and tile.

    Args:
        operators: of the region.
        index: of the step.
        step: see there.
        shape: of its operand.
        layout: of its operand.
        threads: that it runs on.
    """
    spec = step.spec
    if isinstance(spec, (Moving, Channels)):
        return f"copy {layout}"
    if isinstance(spec, Recurrent):
        return f"{spec.cell} {layout}"
    if isinstance(spec, _WITHOUT_OPERATOR):
        return f"{type(spec).__name__.lower()} {layout}"
    if layout not in ("planes", "images16") or step.result_dtype.is_bytes:
        op = operators.made(index)
        if op is None:
            return f"copy {layout}"
    else:
        op = operators.op(index, layout)
    match op:
        case _kernels.QuantizedConv() | _kernels.DequantizedConv():
            return f"int8 {'conv' if isinstance(spec, QuantizedConv) else 'matmul'} {op.algorithm} {layout}"
        case _kernels.Winograd() | _kernels.PooledWinograd():
            pooled = ", pooled" if isinstance(op, _kernels.PooledWinograd) else ""
            return f"conv winograd {layout} tile {op.tile}x{op.tile}{pooled}"
        case _kernels.Matmul():
            rows = operators.rows(index)
            return f"matmul {rows.form} of {rows.values} {layout}"
        case _kernels.DenseProduct():
            algorithm = "strassen" if op.halves(shape) else "dense"
            return f"matmul {algorithm} {layout} tile {op.tile_rows}x1"
        case _kernels.Conv():
            told = op.describe(shape, threads)
            kind = "conv" if isinstance(spec, Conv) else "matmul"
            return f"{kind} {told['algorithm']} {layout} tile {'x'.join(map(str, told['tile']))}"
    return f"{type(op).__name__.lower()} {layout}"
