"""From a kernel spec to the operator that does it, in one of the two layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower.algorithms import multiplies_zeros, runs_winograd
from sift_onnx.backends.cpu.lower.layouts import Layout
from sift_onnx.backends.cpu.lower.weights import rounds_activations
from sift_onnx.backends.lowering.resampling import Sampling
from sift_onnx.backends.lowering.specs import (
    ArgExtreme,
    Attention,
    CastIntegers,
    ChannelCombine,
    ChannelScale,
    Conv,
    CumulativeSum,
    DepthToSpace,
    Depthwise,
    Elementwise,
    GlobalPool,
    GroupNormalization,
    LayerNormalization,
    LinearResize,
    Matmul,
    PixelCopy,
    Pool,
    Recurrent,
    ReduceExtreme,
    Softmax,
    Spec,
    TopK,
)
from sift_onnx.backends.lowering.specs.decoding import CachedAttention, Rotated
from sift_onnx.errors import UsageError

__all__ = ["build", "build_attention", "build_cached_attention", "build_for_size", "enlarged"]


def build(
    spec: Spec, layout: Layout, weights: _kernels.SparseWeights | _kernels.PackedRows | None, isa: str
) -> _kernels.Op:
    """The operator that does ``spec`` in ``layout``.

    Args:
        spec: anything but :class:`Reshaped`, for which there is nothing to do, what moves channels, which becomes
            copies (``schedule``), and what the functions below are for.
        layout: of operand and result.
        weights: those of a convolution or matrix product; both layouts share them. Packed rows are a product's.
        isa: instruction set.
    """
    if isinstance(weights, _kernels.PackedRows):
        assert isinstance(spec, Matmul)
        return _kernels.Matmul(
            weights, spec.bias, activation=spec.activation, layout=layout,
            rounds_activations=rounds_activations(spec.weights), isa=isa,
        )  # fmt: skip
    match spec:
        case Conv(pool=Pool() as pool) if weights is not None:
            return _kernels.PooledWinograd(
                weights, spec.bias, kernel=spec.geometry.kernel, stride=spec.geometry.stride, pads=spec.geometry.pads,
                activation=spec.activation, window=pool.geometry.kernel, window_stride=pool.geometry.stride,
                window_pads=pool.geometry.pads, ceil_mode=pool.ceil_mode, layout=layout, isa=isa,
            )  # fmt: skip
        case Conv() if weights is not None and runs_winograd(spec):
            return _kernels.Winograd(
                weights, spec.bias, kernel=spec.geometry.kernel, stride=spec.geometry.stride, pads=spec.geometry.pads,
                activation=spec.activation, layout=layout, isa=isa,
            )  # fmt: skip
        case Conv() if weights is not None:
            return _kernels.Conv(
                weights, spec.bias, groups=spec.groups, activation=spec.activation, layout=layout, isa=isa,
                **asdict(spec.geometry),
            )  # fmt: skip
        case Matmul() if weights is not None:
            if multiplies_zeros(spec.weights) and _kernels.DenseProduct.suits(weights.rows, weights.columns):
                return _kernels.DenseProduct(weights, spec.bias, activation=spec.activation, isa=isa)
            # Rows in lanes: the 1x1 convolution of images of one pixel.
            return _kernels.Conv(weights, spec.bias, activation=spec.activation, layout=layout, isa=isa)
        case Recurrent() if weights is not None:
            # Its layout depends on the batch, which `for_batch` says.
            return _kernels.Recurrent(
                weights, spec.bias, cell=spec.cell, reversed=list(spec.reversed),
                has_cell_states=spec.has_cell_states, has_lengths=spec.has_lengths, isa=isa,
            )  # fmt: skip
        case Depthwise() if weights is not None:
            return _kernels.Depthwise(
                weights, spec.bias, activation=spec.activation, layout=layout, isa=isa,
                **asdict(spec.geometry),
            )  # fmt: skip
        case Pool(kind="max"):
            return _kernels.MaxPool(ceil_mode=spec.ceil_mode, layout=layout, isa=isa, **asdict(spec.geometry))
        case Pool():
            return _kernels.AveragePool(
                ceil_mode=spec.ceil_mode, count_include_pad=spec.count_include_pad, layout=layout, isa=isa,
                **asdict(spec.geometry),
            )  # fmt: skip
        case GlobalPool():
            return _kernels.GlobalAveragePool(sums=spec.sums, layout=layout, isa=isa)
        case Softmax():
            return _kernels.Softmax(is_log=spec.is_log, layout=layout, isa=isa)
        case CumulativeSum():
            return _kernels.CumulativeSum(is_exclusive=spec.is_exclusive, is_reversed=spec.is_reversed, layout=layout)
        case ArgExtreme():
            return _kernels.ArgExtreme(is_least=spec.kind == "min", takes_last=spec.takes_last, layout=layout, isa=isa)
        case ReduceExtreme():
            return _kernels.ReduceExtreme(is_least=spec.kind == "min", layout=layout, isa=isa)
        case TopK():
            return _kernels.TopK(spec.k, is_least=spec.kind == "min", isa=isa)
        case CastIntegers():
            return _kernels.CastIntegers()
        case Elementwise():
            return _kernels.Elementwise(spec.kind, activation=spec.activation, layout=layout, isa=isa)
        case ChannelCombine():
            return _kernels.ChannelCombine(spec.kind, activation=spec.activation, layout=layout, isa=isa)
        case ChannelScale():
            return _kernels.ChannelScale(
                spec.scale, spec.shift, slopes=spec.slopes, activation=spec.activation, layout=layout, isa=isa
            )
        case DepthToSpace():
            return _kernels.DepthToSpace(spec.block, depth_first=spec.depth_first, layout=layout)
        case GroupNormalization():
            return _kernels.GroupNormalization(
                spec.scale, spec.shift, spec.groups, spec.epsilon, layout=layout, isa=isa
            )
        case Rotated():
            return _kernels.Rotate(
                heads=spec.heads, depth=spec.depth, rotated=spec.rotated, is_interleaved=spec.is_interleaved,
                has_angle_each=spec.has_angle_each, layout=layout,
            )  # fmt: skip
        case LayerNormalization():
            return _kernels.LayerNormalization(
                spec.scale, spec.shift, spec.epsilon, least=spec.least, is_centered=spec.is_centered, layout=layout,
                isa=isa,
            )  # fmt: skip
    raise AssertionError(f"{type(spec).__name__} is no operator")


def build_for_size(
    spec: PixelCopy | LinearResize, operand: tuple[int, ...], result: tuple[int, ...], layout: Layout
) -> _kernels.Op:
    """The operator that does ``spec`` on images of one size, (height, width), and gives another."""
    if spec.follows:
        axes = [replace(axis, scale=size / max(own, 1), size=size) for axis, own, size in
                zip((spec.height, spec.width), operand, result, strict=True) if isinstance(axis, Sampling)]  # fmt: skip
        spec = replace(spec, height=axes[0], width=axes[1])
    if isinstance(spec, PixelCopy):
        rows, columns = spec.height.sources(operand[0]), spec.width.sources(operand[1])
        return _kernels.PixelCopy(rows, columns, spec.fill, layout=layout)
    rows_between, columns_between = spec.height.neighbours(operand[0]), spec.width.neighbours(operand[1])
    return _kernels.LinearResize(rows_between, columns_between, layout=layout)


def enlarged(operand: Sequence[int], result: Sequence[int], layout: Layout) -> _kernels.Op:
    """The operator that repeats an image of one row or column, (n, c, h, w), to the size of ``result``."""
    rows, columns = (
        [0] * size if own == 1 else list(range(own)) for own, size in zip(operand[2:], result[2:], strict=True)
    )
    return _kernels.PixelCopy(rows, columns, layout=layout)


def build_attention(
    spec: Attention,
    sequences: int,
    tokens: tuple[int, int],
    channels: Sequence[tuple[int, int]],
    mask: tuple[int, ...] | None,
    layout: Layout,
    isa: str,
) -> _kernels.Op:
    """The operator that does ``spec`` for sequences of one length.

    Args:
        spec: what it does.
        sequences: how many there are.
        tokens: queries of each, and keys.
        channels: of queries, keys and values: how many there are, and where the first head begins.
        mask: sizes of the mask, if there is one.
        layout: of operands and result.
        isa: instruction set.

    Raises:
        UsageError: the mask does not fit the scores.
    """
    if mask is not None:
        mask = _mask_sizes(spec, mask, (sequences, spec.heads, *tokens))
    roundings: dict[str, Any] = {
        f"{place}_roundings": [(one.steps, one.scale, one.low, one.high) for one in found]
        for place, found in (
            ("score", spec.roundings.scores),
            ("masked", spec.roundings.masked),
            ("weight", spec.roundings.weights),
        )
    }
    return _kernels.Attention(
        **_heads(spec, sequences, tokens[0], channels), **roundings, key_tokens=tokens[1],
        head_scales=spec.head_scales, mask=mask, layout=layout, isa=isa,
    )  # fmt: skip


def build_cached_attention(
    spec: CachedAttention, sequences: int, tokens: int, channels: Sequence[tuple[int, int]], isa: str
) -> _kernels.Op:
    """As :func:`build_attention`, with a cache and masks that come with each run."""
    return _kernels.CachedAttention(
        **_heads(spec, sequences, tokens, channels), key_heads=spec.key_heads, appends=spec.appends,
        is_causal=spec.is_causal, window=spec.window, softcap=spec.softcap, isa=isa,
    )  # fmt: skip


def _heads(
    spec: Attention | CachedAttention, sequences: int, tokens: int, channels: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    """The keywords that both attention kernels take."""
    queries, keys, values = channels if len(channels) > 1 else (*channels, (0, 0), (0, 0))
    return {
        "sequences": sequences, "tokens": tokens, "heads": spec.heads, "depth": spec.depth,
        "value_depth": spec.value_depth, "scale": spec.scale, "queries": queries, "keys": keys, "values": values,
        "nan_to_zero": spec.nan_to_zero,
    }  # fmt: skip


def _mask_sizes(spec: Attention, mask: tuple[int, ...], scores: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Sizes of a mask along the axes of ``scores``."""
    if spec.heads == 1 and len(mask) == 3:
        mask = (mask[0], 1, *mask[1:])
    sequences, heads, queries, keys = (*(1,) * (4 - len(mask)), *mask)
    fits = all(size in (1, full) for size, full in zip((heads, queries, keys), scores[1:], strict=True))
    if not fits or (sequences not in (1, scores[0]) and not (spec.repeats_mask and scores[0] % sequences == 0)):
        raise UsageError(f"a mask of attention is {list(mask)}, the scores that it is added to are {list(scores)}")
    return sequences, heads, queries, keys
