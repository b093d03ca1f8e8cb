"""Conv and ConvTranspose: channels follow channels; kernels stay as they are."""

from __future__ import annotations

from collections.abc import Sequence

from sift_onnx.analysis.axes.sizes import Axis
from sift_onnx.analysis.findings import Axes
from sift_onnx.analysis.rule_context import RuleContext
from sift_onnx.analysis.rule_registry import axis_rule

__all__ = ["convolution"]


@axis_rule("Conv")
def convolution(ctx: RuleContext) -> None:
    """``x [N, C, ...]``, ``w [O, C / group, ...]``, ``bias [O]`` -> ``[N, O, ...]``.

    Without groups, ``C`` and ``O`` are free. A depthwise convolution has one group per channel: the number of groups
    grows. Any other grouped convolution keeps its groups, and each gets wider.
    """
    operands = _operands(ctx)
    if operands is None:
        return
    x, w, shape = operands
    group = int(ctx.attr("group", 1))
    channels, out = x[1], w[0]
    depthwise = group > 1 and group == ctx.original(channels)
    if depthwise:
        ctx.equate(out, channels.size * (ctx.original(out) // group), "depthwise channels")
        ctx.set_attribute("group", channels.size)
    elif group > 1:
        ctx.equate(w[1].size * group, channels, "channels of a group")
        ctx.system.require_integer(out.size / group)
    else:
        ctx.equate(w[1], channels, "input channels")
    spatial = _spatial(ctx, x, w, shape)
    # Each weight is applied at every output pixel.
    _finish(ctx, x, out, spatial, spatial, 0, depthwise)


@axis_rule("ConvTranspose")
def conv_transpose(ctx: RuleContext) -> None:
    """``x [N, C, ...]``, ``w [C, O / group, ...]``, ``bias [O]`` -> ``[N, O, ...]``; groups as in a Conv."""
    operands = _operands(ctx)
    if operands is None:
        return
    x, w, shape = operands
    group = int(ctx.attr("group", 1))
    channels, out = x[1], w[1]
    ctx.equate(w[0], channels, "input channels")
    depthwise = group > 1 and group == ctx.original(channels)
    if depthwise:
        ctx.pin(w[1], "the number of outputs for each channel of a depthwise convolution")
        out = Axis(channels.size * ctx.original(w[1]), 1, ctx.original(channels) * ctx.original(w[1]))
        ctx.set_attribute("group", channels.size)
    elif group > 1:
        ctx.system.require_integer(channels.size / group)
        out = Axis(w[1].size * group, 1, ctx.original(w[1]) * group)
    # Each weight is applied at every input pixel.
    _finish(ctx, x, out, _spatial(ctx, x, w, shape), x[2:], 0 if depthwise else 1, depthwise)


def _operands(ctx: RuleContext) -> tuple[Axes, Axes, Sequence[int]] | None:
    """Axes of the input and of the kernel, and the original shape of the output; None where one is not known."""
    x, w = ctx.axes(0), ctx.axes(1)
    shape = [n for n in ctx.output_shape() or () if n is not None]
    if x is None or w is None or len(shape) != len(x):
        ctx.keep_sizes("a convolution reads or makes a tensor of unknown shape")
        return None
    for kernel_axis in w[2:]:
        ctx.pin(kernel_axis, "kernel")
    return x, w, shape


def _spatial(ctx: RuleContext, x: Axes, w: Axes, shape: Sequence[int]) -> Axes:
    """The spatial axes of the output.

    Where features lie along the pixels of a sequence (the token mixing of an MLP-Mixer), they pass a kernel of size 1.
    """
    strides = ctx.attr("strides") or [1] * len(shape[2:])
    out: list[Axis] = []
    for axis, kernel, stride, n in zip(x[2:], w[2:], strides, shape[2:], strict=True):
        if len(x) == 3 and ctx.original(kernel) == 1 and stride == 1 and ctx.original(axis) == n:
            out.append(axis)
            continue
        ctx.pin(axis, "a kernel slides over it")
        out.extend(ctx.const_axes([n], "it is a spatial size"))
    return tuple(out)


def _finish(ctx: RuleContext, x: Axes, out: Axis, spatial: Axes, applied: Axes, out_axis: int, depthwise: bool) -> None:
    """Bias, output and weight; ``applied`` are the pixels that each weight is applied at."""
    bias = ctx.axes(2)
    if bias is not None:
        ctx.equate(bias[0], out, "bias")
    ctx.set_axes(0, (x[0], out, *spatial))
    parameter = ctx.parameter(1)
    if parameter is None:
        ctx.pin_all(ctx.axes(1), "the kernel is computed, not stored")
        return
    ctx.weight(parameter, "depthwise" if depthwise else "conv", out_axis, [x[0].size, *(a.size for a in applied)])
