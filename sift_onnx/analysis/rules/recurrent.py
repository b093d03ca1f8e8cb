"""LSTM, GRU, RNN: gates are multiples of the hidden size."""

from __future__ import annotations

from sift_onnx.analysis.axes.sizes import Axis, size_of
from sift_onnx.analysis.rule_context import RuleContext
from sift_onnx.analysis.rule_registry import axis_rule

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@axis_rule("LSTM", "GRU", "RNN")
def recurrent(ctx: RuleContext) -> None:
    """``x [T, B, I]``, ``w [dirs, gates*H, I]``, ``r [dirs, gates*H, H]`` -> ``[T, dirs, B, H]`` and last states."""
    gates = _GATES[ctx.node.op]
    x, w, r = ctx.axes(0), ctx.axes(1), ctx.axes(2)
    if x is None or w is None or r is None:
        ctx.keep_sizes("it meets a tensor of unknown shape")
        return
    batch_first = bool(ctx.attr("layout", 0))
    time, batch = (x[1], x[0]) if batch_first else (x[0], x[1])
    hidden = r[2]
    for position in (1, 2, 3, 7):
        ctx.pin_all((ctx.axes(position) or ())[:1], "the directions of a recurrent layer")
    ctx.equate(w[2], x[2], "input features")
    ctx.equate(w[1], hidden.size * gates, "gates")
    ctx.equate(r[1], hidden.size * gates, "gates")
    for position, factor in ((3, 2 * gates), (7, 3)):
        parameter = ctx.axes(position)
        if parameter is not None:
            ctx.equate(parameter[1], hidden.size * factor, "bias or peepholes of the gates")
    for position in (5, 6):
        state = ctx.axes(position)
        if state is not None:
            ctx.pin(state[1 if batch_first else 0], "the directions of a recurrent layer")
            ctx.equate(state[0 if batch_first else 1], batch, "a state for each sequence")
            ctx.equate(state[2], hidden, "hidden state")
    if "hidden_size" in ctx.node.attrs:
        ctx.set_attribute("hidden_size", hidden.size)
    directions = Axis(size_of(ctx.original(w[0])))
    sequence = (batch, time, directions, hidden) if batch_first else (time, directions, batch, hidden)
    last = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
    for i in range(len(ctx.node.outputs)):
        ctx.set_axes(i, sequence if i == 0 else last)
    for position in (1, 2):
        parameter_of = ctx.parameter(position)
        if parameter_of is None:
            ctx.pin_all(ctx.axes(position), "the weights are computed, not stored")
        else:
            ctx.weight(parameter_of, "gemm", 1, (time.size, batch.size))
