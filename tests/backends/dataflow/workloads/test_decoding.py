"""Workloads of a prompt and of every step after it, against counts by hand and against the model at each length."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import onnx
import pytest
from decoder_families import ENCODED, cross_attention
from decoder_nets import DEPTH, HEADS, HIDDEN, KV_HEADS, LAYERS, POSITIONS, VOCABULARY, WIDTH, decoder

from sift_onnx.backends.dataflow.workloads.decoder import decoder_steps, load_decoder
from sift_onnx.backends.dataflow.workloads.decoding import (
    MOST_TOKENS,
    DecodeWorkload,
    decode_workload,
    lower_decoding,
)
from sift_onnx.backends.dataflow.workloads.lowering import lower
from sift_onnx.backends.dataflow.workloads.workload import WeightlessOp, Workload
from sift_onnx.errors import UnsupportedError, UsageError

PROMPT, TOKENS = 5, 8


@cache
def workload_of(spelling: str) -> DecodeWorkload:
    return lower_decoding(decoder(spelling), (PROMPT, TOKENS))


def attention_macs(workload: Workload) -> int:
    return sum(op.operations for op in workload.weightless if op.kind == "product")


@pytest.mark.parametrize(
    "spelling", ["llama", "genai", *(pytest.param(s, marks=pytest.mark.slow) for s in ("gpt2", "opset23"))]
)
def test_products_and_attention_are_counted_as_by_hand(spelling: str) -> None:
    workload = workload_of(spelling)
    sizes = {p.name: p.pattern.map.size for p in workload.first.products}
    keys = WIDTH if spelling == "gpt2" else KV_HEADS * DEPTH
    ways = 1 if spelling == "gpt2" else 2  # an MLP has a gate, or none
    layer = 2 * WIDTH * WIDTH + 2 * WIDTH * keys + (ways + 1) * WIDTH * HIDDEN
    assert sum(sizes.values()) == LAYERS * layer + WIDTH * VOCABULARY
    assert {p.tokens for p in workload.first.products} == {1}
    assert {p.tokens for p in workload.prefill.products} == {PROMPT}
    assert workload.cache_per_token == LAYERS * 2 * keys
    assert workload.cache_elements == (PROMPT + TOKENS - 1) * LAYERS * 2 * keys
    # Scores and their sums: every query meets every key.
    assert attention_macs(workload.prefill) == LAYERS * 2 * HEADS * DEPTH * PROMPT**2
    for step in range(workload.steps):
        ops = [growing.at(step) for growing in workload.growing]
        macs = sum(op.operations for op in ops if op.kind == "product")
        assert macs == LAYERS * 2 * HEADS * DEPTH * (PROMPT + step + 1)


def test_the_number_of_keys_may_be_an_input() -> None:
    """As onnxruntime's own builder has it; nothing in the graph says how many keys there are."""
    model = decoder("genai")
    fed = {node.input[6] for node in model.graph.node if node.op_type == "GroupQueryAttention"}
    maker = next(node for node in model.graph.node if node.output[0] in fed)
    model.graph.node.remove(maker)
    model.graph.input.append(onnx.helper.make_tensor_value_info("total_sequence_length", onnx.TensorProto.INT32, []))
    for node in model.graph.node:
        node.input[:] = ["total_sequence_length" if name in fed else name for name in node.input]
    workload = lower_decoding(model, (PROMPT, TOKENS))
    assert attention_macs(workload.prefill) == attention_macs(workload_of("genai").prefill)
    last = [growing.at(workload.steps - 1) for growing in workload.growing if growing.op.kind == "product"]
    assert sum(op.operations for op in last) == LAYERS * 2 * HEADS * DEPTH * (PROMPT + TOKENS - 1)


def shapes_at(spelling: str, new: int, past: int) -> dict[str, tuple[int, ...]]:
    heads = HEADS if spelling == "gpt2" else KV_HEADS
    shapes = {"input_ids": (1, new), "attention_mask": (1, past + new), "position_ids": (1, new)}
    if spelling == "genai":
        del shapes["position_ids"]
    names = (f"past_key_values.{layer}.{kind}" for layer in range(LAYERS) for kind in ("key", "value"))
    return shapes | {name: (1, heads, past, DEPTH) for name in names}


def known_counts(workload: Workload) -> list[tuple[str, int, int, int]]:
    """All but what appends to a cache, which a machine that keeps it does not copy."""
    return [
        (op.node, op.operations, op.elements_in, op.elements_out)
        for op in workload.weightless
        if not (op.op == "Concat" and op.elements_out > 2 * WIDTH)
    ]


@pytest.mark.parametrize("spelling", ["llama", pytest.param("opset23", marks=pytest.mark.slow)])
def test_each_step_counts_what_the_model_counts_at_its_length(spelling: str) -> None:
    workload = workload_of(spelling)
    for step in (0, 3, workload.steps - 1):
        alone = lower(decoder(spelling), input_shapes=shapes_at(spelling, 1, PROMPT + step))
        ops = {(op.node, op.operations, op.elements_in, op.elements_out) for op in map_at(workload, step)}
        assert set(known_counts(alone)) <= ops


def map_at(workload: DecodeWorkload, step: int) -> list[WeightlessOp]:
    return [growing.at(step) for growing in workload.growing]


def test_the_prompt_meets_an_empty_cache() -> None:
    prefill = {op.node: op for op in workload_of("llama").prefill.weightless}
    # Counts are polynomials of the second degree at most: three lengths of the cache say what an empty one counts.
    longer = [
        {name: counts for name, *counts in known_counts(lower(decoder("llama"), input_shapes=shapes_at("llama", 5, n)))}
        for n in (1, 2, 3)
    ]
    for name, first in longer[0].items():
        second, third = (np.array(each[name]) for each in longer[1:])
        empty = 3 * np.array(first) - 3 * second + third
        op = prefill[name]
        assert [op.operations, op.elements_in, op.elements_out] == empty.tolist(), name


def test_what_is_appended_to_a_cache_is_the_new_tokens() -> None:
    workload = workload_of("llama")
    appended = [g for g in workload.growing if g.op.op == "Concat" and g.op.elements_out == KV_HEADS * DEPTH]
    assert len(appended) >= 2 * LAYERS
    assert all((growing.counts == growing.counts[0]).all() for growing in appended)


def test_a_batch_has_a_cache_for_each_sequence() -> None:
    one, four = workload_of("llama"), lower_decoding(decoder("llama"), (PROMPT, TOKENS), 4)
    assert four.batch == 4
    assert {p.tokens for p in four.first.products} == {4}
    assert four.cache_elements == 4 * one.cache_elements
    assert attention_macs(four.first) == 4 * attention_macs(one.first)


def test_keys_and_values_of_another_text_are_given_their_shape() -> None:
    model = cross_attention().model()
    shapes = {"encoder_attention_mask": (1, ENCODED)}
    workload = lower_decoding(model, (PROMPT, TOKENS), input_shapes=shapes)
    own = LAYERS * 2 * HEADS * DEPTH * (PROMPT + 1)
    assert attention_macs(workload.first) == own + LAYERS * 2 * HEADS * DEPTH * ENCODED


def op_of(operations: int) -> WeightlessOp:
    return WeightlessOp("n", "Add", "elementwise", operations, operations, 1)


def made_of(count) -> DecodeWorkload:
    return decode_workload(lambda new, past: Workload("made", 1, (), (op_of(count(past)),)), 4, 30, 1)


@pytest.mark.parametrize("count", [lambda n: 7, lambda n: 3 * n + 1, lambda n: n * n + 2, lambda n: min(n, 20)])
def test_counts_that_grow_evenly_or_not_are_those_of_each_step(count) -> None:
    (growing,) = made_of(count).growing
    assert growing.counts[:, 0].tolist() == [count(4 + step) for step in range(29)]


def test_steps_that_are_not_alike_are_refused() -> None:
    first, *_ = workload_of("llama").first.products

    def grows(new: int, past: int) -> Workload:
        return Workload("made", 1, (replace(first, tokens=past),), ())

    with pytest.raises(UnsupportedError, match="multiplies 4 tokens in the first step and 5 in a later one"):
        decode_workload(grows, 4, 6, 1)

    def changes(new: int, past: int) -> Workload:
        return Workload("made", 1, (), (op_of(1),) * (1 + (past > 5)))

    with pytest.raises(UnsupportedError, match="what node 'n' does is not the same in all of them"):
        decode_workload(changes, 4, 6, 1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"decode": (0, 4)}, r"`decode` is \(0, 4\)"),
        ({"decode": (4, 1)}, "2 new ones or more"),
        ({"decode": (4, 2.5)}, "2 new ones or more"),
        ({"decode": 5}, r"as \(128, 32\)"),
        ({"decode": (4, MOST_TOKENS + 1)}, f"up to {MOST_TOKENS}"),
        ({"batch": 0}, "batch is 0"),
        ({"decode": (60, 6)}, f"need 65 positions, and the model has {POSITIONS}; shorten the prompt or the answer"),
        ({"input_shapes": {"input_ids": (1, 4)}}, "'input_ids' a shape, which follows from `decode`"),
    ],
)
def test_wrong_settings_are_named(settings, said) -> None:
    with pytest.raises(UsageError, match=said):
        lower_decoding(decoder("gpt2"), **{"decode": (4, 4), **settings})


def test_a_decoder_is_counted_from_its_sizes() -> None:
    sizes = replace(load_decoder("gpt3-1.3b"), layers=2, hidden=64, feed_forward=128, heads=4, vocabulary=100)
    workload = decoder_steps(sizes, (PROMPT, TOKENS), 0.75)
    hidden = 128
    assert workload.batch == 1
    assert workload.cache_per_token == 2 * 2 * hidden
    assert sum(p.pattern.nnz for p in workload.first.products) == 2 * (4 * 64 * 64 + 2 * 64 * 128) + 100 * hidden
    assert attention_macs(workload.first) == 2 * 2 * hidden * (PROMPT + 1)
    last = map_at(workload, workload.steps - 1)
    assert sum(op.operations for op in last if op.kind == "product") == 2 * 2 * hidden * (PROMPT + TOKENS - 1)
