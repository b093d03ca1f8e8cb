"""The steps of recurrent layers, against numpy, for each cell and instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import Array, assert_close, random_array, random_sparse, run, to_layout

from sift_onnx.backends.cpu import _kernels

GATES = {"lstm": 4, "gru": 3, "gru_linear": 3, "tanh": 1, "relu": 1}
POOLS = {threads: _kernels.ThreadPool(threads) for threads in (1, 2, 3, 5)}


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def next_state(cell: str, x: Any, weights: Any, bias: Any, h: Any, c: Any) -> tuple[Any, Any]:
    """States behind a step: x [batch, gates, hidden], weights [gates, hidden, hidden], bias [gates, hidden]."""
    product = np.einsum("bk,guk->bgu", h, weights) + bias
    s = x + product
    match cell:
        case "lstm":
            c = sigmoid(s[:, 2]) * c + sigmoid(s[:, 0]) * np.tanh(s[:, 3])
            return sigmoid(s[:, 1]) * np.tanh(c), c
        case "tanh":
            return np.tanh(s[:, 0]), c
        case "relu":
            return np.maximum(s[:, 0], 0), c
    z, r = sigmoid(s[:, 0]), sigmoid(s[:, 1])
    candidate = (r * h) @ weights[2].T + bias[2] if cell == "gru" else r * product[:, 2]
    return (1 - z) * np.tanh(x[:, 2] + candidate) + z * h, c


def reference(
    cell: str, x: Array, weights: Array, bias: Array, reverse: list[bool], first: list[Any], lengths: Any
) -> Any:
    """[steps, batch, 3, directions, hidden] of x [steps, batch, directions, gates, hidden].

    The three are h, which is zero behind the end of a sequence, and h and c, which stay what they were; without any
    steps, they are zero, as onnxruntime has it. ``first`` has the first h and c, [directions, batch, hidden] each, as
    far as there are some; others are zero.
    """
    steps, batch, directions, _, hidden = x.shape
    states = np.zeros((steps, batch, 3, directions, hidden))
    for d, is_reversed in enumerate(reverse):
        h, c = [*(own[d].astype(np.float64) for own in first), *np.zeros((2, batch, hidden))][:2]
        h, c = (own * (lengths > 0)[:, None] for own in (h, c))
        for t in reversed(range(steps)) if is_reversed else range(steps):
            runs = (t < lengths)[:, None]
            after = next_state(cell, x[t, :, d].astype(np.float64), weights[d], bias[d], h, c)
            h, c = (np.where(runs, new, old) for new, old in zip(after, (h, c), strict=True))
            states[t, :, :, d] = np.stack([h * runs, h, c], axis=1)
    return states


@pytest.mark.parametrize("isa", _kernels.supported_isas())
@settings(max_examples=15, deadline=None)
@given(draw=st.data(), cell=st.sampled_from(sorted(GATES)), threads=st.sampled_from((1, 2, 3, 5)))
def test_steps_agree_with_numpy(isa: str, draw: st.DataObject, cell: str, threads: int) -> None:
    steps, batch = draw.draw(st.integers(1, 4)), draw.draw(st.sampled_from((1, 2, 3, 5, 11, 12, 16, 17, 32, 48)))
    hidden, density = draw.draw(st.sampled_from((1, 16, 21, 40))), draw.draw(st.sampled_from((0.0, 0.2, 1.0)))
    reverse = draw.draw(st.sampled_from(([False], [True], [False, True])))
    rng = np.random.default_rng(steps * batch + hidden)
    shape = (len(reverse), GATES[cell], hidden)
    weights = random_sparse(rng, (len(reverse) * GATES[cell] * hidden, hidden), density)
    bias = random_array(rng, (weights.shape[0],))
    packed = _kernels.SparseWeights.from_dense(*weights.shape, weights)
    has_cell_states, has_lengths = cell == "lstm", draw.draw(st.booleans())
    lengths = rng.integers(0, steps + 1, batch) if has_lengths else np.full(batch, steps)
    op = _kernels.Recurrent(packed, bias, cell=cell, reversed=reverse, has_cell_states=has_cell_states,
                            has_lengths=has_lengths, isa=isa)  # fmt: skip
    x = random_array(rng, (steps * batch, weights.shape[0]))
    given = draw.draw(st.booleans())
    first = [random_array(rng, (len(reverse), batch, hidden)) for _ in range((2 if cell == "lstm" else 1) * given)]
    h, c = [*(states.reshape(-1, hidden, 1, 1) for states in first), None, None][:2]
    made = run(POOLS[threads], op.for_batch(batch), x[:, :, None, None], h, third=c,
               mask=lengths.astype(np.float32) if has_lengths else None)  # fmt: skip
    wanted = reference(cell, x.reshape(steps, batch, *shape), weights.reshape(*shape, hidden).astype(np.float64),
                       bias.reshape(shape), reverse, first, lengths)  # fmt: skip
    wanted = wanted[:, :, [0, *[1] * has_lengths, *[2] * has_cell_states]]
    assert_close(made, wanted.reshape(made.shape), hidden)
    alone = run(POOLS[1], op.for_batch(batch), x[:, :, None, None], h, third=c,
                mask=lengths.astype(np.float32) if has_lengths else None)  # fmt: skip
    np.testing.assert_array_equal(made, alone)


@pytest.mark.parametrize("batch", [3, 32])
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("reverse", [[False], [True], [False, True]], ids=str)
def test_first_states_may_lie_where_the_result_goes(batch: int, threads: int, reverse: list[bool]) -> None:
    rng, hidden, directions = np.random.default_rng(0), 40, len(reverse)
    weights = random_sparse(rng, (directions * hidden, hidden), 0.2)
    packed = _kernels.SparseWeights.from_dense(*weights.shape, weights)
    op = _kernels.Recurrent(packed, cell="relu", reversed=reverse, batch=batch)
    x, first = random_array(rng, (batch, directions * hidden)), random_array(rng, (directions * batch, hidden))
    wanted = run(POOLS[1], op, x[:, :, None, None], first[:, :, None, None])
    inside = to_layout(POOLS[1], x[:, :, None, None], op.input_layout)
    shared = to_layout(POOLS[1], first[:, :, None, None], op.input_layout)
    op.run(POOLS[threads], (batch, directions * hidden, 1, 1), inside, shared, shared)
    np.testing.assert_array_equal(shared.ravel(), to_layout(POOLS[1], wanted, op.input_layout).ravel())


def test_sizes_that_do_not_fit_are_refused() -> None:
    weights = _kernels.SparseWeights.from_dense(12, 4, np.ones(48, np.float32))
    for arguments, message in (
        ({"cell": "lstm", "reversed": [False]}, "gates"),
        ({"cell": "gru", "reversed": []}, "directions"),
        ({"cell": "gru", "reversed": [False], "has_cell_states": True}, "lstm"),
        ({"cell": "gru", "reversed": [False], "batch": 0}, "batch"),
        ({"cell": "gru", "reversed": [False], "bias": np.ones(3, np.float32)}, "bias"),
    ):
        with pytest.raises(ValueError, match=message):
            _kernels.Recurrent(weights, **arguments)
    op = _kernels.Recurrent(weights, cell="gru", reversed=[False], batch=3)
    with pytest.raises(ValueError, match="steps batch"):
        op.output_shape((4, 12, 1, 1))


@pytest.mark.parametrize("isa", _kernels.supported_isas())
@pytest.mark.parametrize("density", [0.05, 0.2, 0.5])
@pytest.mark.parametrize(("batch", "threads"), [(32, 2), (48, 3), (64, 2), (80, 5), (96, 2)])
def test_sequences_on_threads_of_their_own_keep_their_bits(batch: int, threads: int, density: float, isa: str) -> None:
    steps, hidden = 3, 40
    rng = np.random.default_rng(batch)
    weights = random_sparse(rng, (GATES["lstm"] * hidden, hidden), density)
    packed = _kernels.SparseWeights.from_dense(*weights.shape, weights)
    op = _kernels.Recurrent(packed, None, cell="lstm", reversed=[False], isa=isa).for_batch(batch)
    x = random_array(rng, (steps * batch, weights.shape[0], 1, 1))
    np.testing.assert_array_equal(run(POOLS[threads], op, x), run(POOLS[1], op, x))
