"""Conv and ConvTranspose: channels follow channels; kernels stay as they are."""

from __future__ import annotations

from sift_onnx.axes import Axis
from sift_onnx.axis_rules.context import RuleContext
from sift_onnx.axis_rules.registry import axis_rule


@axis_rule("Conv")
def conv(ctx: RuleContext) -> None:
    """``x [N, C, ...]``, ``w [O, C / group, ...]``, ``bias [O]`` -> ``[N, O, ...]``.

    Without groups, ``C`` and ``O`` are free. A depthwise convolution has one group per channel: the number of groups
    grows. Any other grouped convolution keeps its groups, and each gets wider.
    """
    x, w = ctx.axes(0), ctx.axes(1)
    shape = ctx.output_shape()
    if x is None or w is None or shape is None or any(n is None for n in shape[2:]):
        ctx.pin_all(x, "its shape is unknown here")
        ctx.pin_all(w, "its shape is unknown here")
        ctx.set_axes(0, ctx.inferred_axes())
        return
    for kernel_axis in w[2:]:
        ctx.pin(kernel_axis, "kernel")
    group = int(ctx.attr("group", 1))
    channels, out = x[1], w[0]
    depthwise = group > 1 and group == ctx.original(channels)
    if depthwise:
        multiplier = ctx.original(out) // group
        ctx.equate(out, channels.size * multiplier, "depthwise channels")
        ctx.set_attribute("group", channels.size)
    elif group > 1:
        ctx.equate(w[1].size * group, channels, "channels of a group")
        ctx.system.require_integer(channels.size / group)
        ctx.system.require_integer(out.size / group)
    else:
        ctx.equate(w[1], channels, "input channels")
    bias = ctx.axes(2)
    if bias is not None:
        ctx.equate(bias[0], out, "bias")
    spatial = ctx.const_axes([n for n in shape[2:] if n is not None], "it is a spatial size")
    ctx.set_axes(0, (x[0], Axis(out.size, out.stride, out.span), *spatial))

    parameter = ctx.parameter(1)
    if parameter is None:
        ctx.pin_all(w, "the kernel is computed, not stored")
        return
    kind = "depthwise" if depthwise else "conv"
    ctx.weight(parameter, kind, 0, [x[0].size, *(axis.size for axis in spatial)])


@axis_rule("ConvTranspose")
def conv_transpose(ctx: RuleContext) -> None:
    """``x [N, C, ...]``, ``w [C, O / group, ...]``, ``bias [O]`` -> ``[N, O, ...]``; groups as in a Conv."""
    x, w = ctx.axes(0), ctx.axes(1)
    shape = ctx.output_shape()
    if x is None or w is None or shape is None or any(n is None for n in shape[2:]):
        ctx.pin_all(x, "its shape is unknown here")
        ctx.pin_all(w, "its shape is unknown here")
        ctx.set_axes(0, ctx.inferred_axes())
        return
    for kernel_axis in w[2:]:
        ctx.pin(kernel_axis, "kernel")
    group = int(ctx.attr("group", 1))
    channels = x[1]
    ctx.equate(w[0], channels, "input channels")
    depthwise = group > 1 and group == ctx.original(channels) and ctx.original(w[1]) == 1
    if depthwise:
        out = channels
        ctx.set_attribute("group", channels.size)
    else:
        ctx.system.require_integer(channels.size / group)
        size = w[1].size * group
        out = w[1] if group == 1 else Axis(size, 1, ctx.original(size))
    bias = ctx.axes(2)
    if bias is not None:
        ctx.equate(bias[0], out, "bias")
    spatial = ctx.const_axes([n for n in shape[2:] if n is not None], "it is a spatial size")
    ctx.set_axes(0, (x[0], out, *spatial))
    parameter = ctx.parameter(1)
    if parameter is None:
        ctx.pin_all(w, "the kernel is computed, not stored")
        return
    # Each weight is applied at every input pixel.
    kind = "depthwise" if depthwise else "conv"
    ctx.weight(parameter, kind, 0 if depthwise else 1, [x[0].size, *(axis.size for axis in x[2:])])
