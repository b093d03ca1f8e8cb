"""LSTM, GRU, RNN: an added unit has pruned weights for what it reads, and none of the old ones reads it."""

from __future__ import annotations

from sift_onnx.feature_maps.context import FeatureMapContext
from sift_onnx.feature_maps.registry import feature_map_rule

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@feature_map_rule("LSTM", "GRU", "RNN")
def recurrent(ctx: FeatureMapContext) -> None:
    """``x [T, B, I]``, ``w [dirs, gates * H, I]``, ``r [dirs, gates * H, H]``, biases, peepholes and first states."""
    if not ctx.has_weight:
        ctx.refuse("has computed weights")
    gates = _GATES[ctx.node.op]
    x, w, r = ctx.input(0), ctx.input(1), ctx.input(2)
    hidden = r[2]
    ctx.same(x[2], w[2])
    for whole, outer in ((w[1], gates), (r[1], gates)):
        ctx.merged(whole, hidden, outer=outer)
    for i, outer in ((3, 2 * gates), (7, 3)):
        if ctx.has_input(i):
            ctx.merged(ctx.input(i)[1], hidden, outer=outer)
    for i in (5, 6):
        if ctx.has_input(i):
            ctx.same(ctx.input(i)[2], hidden)
    for i in range(len(ctx.node.outputs)):
        if ctx.output(i):
            ctx.same(ctx.output(i)[-1], hidden)
