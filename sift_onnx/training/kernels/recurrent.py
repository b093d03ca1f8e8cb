"""Recurrent layers: inputs are length x batch x features, weights have an axis of directions in front."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sift_onnx.errors import UnsupportedError
from sift_onnx.training.registry import kernel

__all__: list[str] = []

Activation = Callable[[Tensor], Tensor]

_ACTIVATIONS: dict[str, Activation] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "softplus": functional.softplus,
    "softsign": functional.softsign,
    "tanh": torch.tanh,
}

State = tuple[Tensor, ...]
Step = Callable[[Tensor, State, Tensor, Tensor, Tensor, "Tensor | None", Sequence[Activation]], State]


@dataclass(frozen=True)
class Layer:
    """What recurrent layers have in common: their attributes, by ONNX's names."""

    activation_alpha: Sequence[float] = ()
    activation_beta: Sequence[float] = ()
    activations: Sequence[str] = ()
    clip: float | None = None
    direction: str = "forward"
    hidden_size: int | None = None
    layout: int = 0

    def functions(self, default: Sequence[str], directions: int) -> list[list[Activation]]:
        """The activations of each direction.

        Raises:
            UnsupportedError: one is not known, or an attribute that changes what they compute is set.
        """
        if self.clip or self.activation_alpha or self.activation_beta:
            raise UnsupportedError("clip, activation_alpha and activation_beta are not known to the torch kernel")
        chosen = list(self.activations) or list(default) * directions
        unknown = [name for name in chosen if name.lower() not in _ACTIVATIONS]
        if unknown:
            raise UnsupportedError(f"activation {unknown[0]!r} is not known to the torch kernel")
        functions = [_ACTIVATIONS[name.lower()] for name in chosen]
        return [functions[i * len(default) : (i + 1) * len(default)] for i in range(directions)]


def _run(
    step: Step, layer: Layer, default: Sequence[str], inputs: Sequence[Tensor | None], states: int = 1
) -> tuple[Tensor, ...]:
    """Every direction over all steps: outputs (length x directions x batch x hidden) and last states.

    Args:
        step: one step of one direction.
        layer: attributes of the node.
        default: activations of one direction.
        inputs: as ONNX orders them: x, weights of inputs and of states, biases, lengths, states, peepholes.
        states: how many of them are first states.
    """
    given: list[Tensor | None] = [*inputs, *[None] * (8 - len(inputs))]
    x, w, r, b, lengths, *rest = given
    assert x is not None and w is not None and r is not None
    initial, peepholes = rest[:states], rest[2]
    activations = layer.functions(default, w.shape[0])
    if layer.layout:
        x = x.transpose(0, 1)
        initial = [None if s is None else s.transpose(0, 1) for s in initial]
    steps, batch, hidden = x.shape[0], x.shape[1], r.shape[2]
    outputs, lasts = [], []
    for d in range(w.shape[0]):
        backwards = layer.direction == "reverse" or d == 1
        state = tuple(x.new_zeros(batch, hidden) if s is None else s[d] for s in initial)
        bias = x.new_zeros(2 * w.shape[1]) if b is None else b[d]
        seen: list[Tensor] = []
        for i in reversed(range(steps)) if backwards else range(steps):
            new = step(x[i], state, w[d], r[d], bias, None if peepholes is None else peepholes[d], activations[d])
            if lengths is not None:
                inside = (i < lengths.to(x.device)).unsqueeze(1)
                state = tuple(torch.where(inside, n, s) for n, s in zip(new, state, strict=True))
                seen.append(torch.where(inside, new[0], torch.zeros_like(new[0])))
            else:
                state = new
                seen.append(new[0])
        outputs.append(torch.stack(seen[::-1] if backwards else seen))
        lasts.append(state)
    whole = torch.stack(outputs, 1)
    finals = [torch.stack(parts) for parts in zip(*lasts, strict=True)]
    if layer.layout:
        whole, finals = whole.permute(2, 0, 1, 3), [final.transpose(0, 1) for final in finals]
    return whole, *finals


def _rnn_step(
    x: Tensor, state: State, w: Tensor, r: Tensor, bias: Tensor, peephole: Tensor | None, f: Sequence[Activation]
) -> State:
    input_bias, state_bias = bias.chunk(2)
    return (f[0](functional.linear(x, w, input_bias) + functional.linear(state[0], r, state_bias)),)


def _gru_step(linear_before_reset: int) -> Step:
    def step(
        x: Tensor, state: State, w: Tensor, r: Tensor, bias: Tensor, peephole: Tensor | None, f: Sequence[Activation]
    ) -> State:
        (hidden,) = state
        w_bias, r_bias = bias.chunk(2)
        from_input = functional.linear(x, w, w_bias).chunk(3, 1)
        if linear_before_reset:
            from_state = functional.linear(hidden, r, r_bias).chunk(3, 1)
            update, reset = f[0](from_input[0] + from_state[0]), f[0](from_input[1] + from_state[1])
            new = f[1](from_input[2] + reset * from_state[2])
        else:
            (r_gates, r_new), (b_gates, b_new) = (
                (t[: 2 * hidden.shape[1]], t[2 * hidden.shape[1] :]) for t in (r, r_bias)
            )
            gates = functional.linear(hidden, r_gates, b_gates).chunk(2, 1)
            update, reset = f[0](from_input[0] + gates[0]), f[0](from_input[1] + gates[1])
            new = f[1](from_input[2] + functional.linear(reset * hidden, r_new, b_new))
        return ((1 - update) * new + update * hidden,)

    return step


def _lstm_step(input_forget: int) -> Step:
    def step(
        x: Tensor, state: State, w: Tensor, r: Tensor, bias: Tensor, peephole: Tensor | None, f: Sequence[Activation]
    ) -> State:
        hidden, cell = state
        w_bias, r_bias = bias.chunk(2)
        i, o, forget, c = (functional.linear(x, w, w_bias) + functional.linear(hidden, r, r_bias)).chunk(4, 1)
        p_i, p_o, p_f = peephole.chunk(3) if peephole is not None else (0.0, 0.0, 0.0)
        i = f[0](i + p_i * cell)
        forget = 1 - i if input_forget else f[0](forget + p_f * cell)
        cell = forget * cell + i * f[1](c)
        return f[0](o + p_o * cell) * f[2](cell), cell

    return step


@kernel("RNN", since=7, attributes=Layer)
def rnn(*inputs: Tensor | None, outputs: int = 1, **attributes: Any) -> tuple[Tensor, ...]:
    return _run(_rnn_step, Layer(**attributes), ("Tanh",), inputs)


@kernel("GRU", since=7, attributes=Layer)
def gru(
    *inputs: Tensor | None, linear_before_reset: int = 0, outputs: int = 1, **attributes: Any
) -> tuple[Tensor, ...]:
    return _run(_gru_step(linear_before_reset), Layer(**attributes), ("Sigmoid", "Tanh"), inputs)


@kernel("LSTM", since=7, attributes=Layer)
def lstm(*inputs: Tensor | None, input_forget: int = 0, outputs: int = 1, **attributes: Any) -> tuple[Tensor, ...]:
    return _run(_lstm_step(input_forget), Layer(**attributes), ("Sigmoid", "Tanh", "Tanh"), inputs, states=2)
