"""Decoders with a cache in the kernels: one region behind what onnxruntime makes of ids, masks and positions."""

from __future__ import annotations

from functools import cache, partial

import decoder_nets
import numpy as np
import onnx
import pytest
from decoder_nets import (
    BATCH,
    DEPTH,
    HEADS,
    KV_HEADS,
    LAYERS,
    NEW,
    PAST,
    POSITIONS,
    SPELLINGS,
    DecoderNet,
    capped,
    decoder,
    genai,
    opset23,
    torch_17,
    torch_23,
)
from sparse_nets import ONE_THREAD, assert_same_as_onnxruntime

from sift_onnx.backends.base import Program
from sift_onnx.backends.cpu.run import region_program
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.backends.decoding import cache as decoding_cache
from sift_onnx.backends.decoding.decoder import Decoder
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram
from sift_onnx.errors import BackendError, UsageError

pytestmark = pytest.mark.usefixtures("every_region_pays")

PROMPTS = [[3, 5, 7], [1], [2, 9, 4, 4, 11]]
# What does not depend on the spelling is tried with one of them first.
ONE_FIRST = ["llama", *(pytest.param(name, marks=pytest.mark.slow) for name in SPELLINGS if name != "llama")]


@cache
def model_of(spelling: str) -> onnx.ModelProto:
    return decoder(spelling)


@cache
def onnxruntime_of(spelling: str) -> OnnxRuntimeProgram:
    return OnnxRuntimeProgram(model_of(spelling), ONE_THREAD)


_PROGRAMS: dict[str, CpuProgram] = {}


def program_of(spelling: str) -> CpuProgram:
    """Made within a test, in which every region pays."""
    if spelling not in _PROGRAMS:
        _PROGRAMS[spelling] = CpuProgram(model_of(spelling), ONE_THREAD)
    return _PROGRAMS[spelling]


class Compared(Program):
    """A program whose every run is one of onnxruntime's as well."""

    threads = 1

    def __init__(self, spelling: str) -> None:
        self.own, self.other = program_of(spelling), onnxruntime_of(spelling)
        self.steps = 0

    def run(self, feeds):
        outputs, wanted = self.own.run(feeds), self.other.run(feeds)
        for name, array in wanted.items():
            assert outputs[name].shape == array.shape
            np.testing.assert_allclose(outputs[name], array, rtol=0, atol=2e-6 * np.abs(array).max(), err_msg=name)
        self.steps += 1
        return outputs


@cache
def decoder_of(spelling: str) -> Decoder:
    return Decoder(model_of(spelling), 1, backend="onnxruntime")


def decoder_on(spelling: str, program) -> Decoder:
    made = Decoder.__new__(Decoder)
    made.__dict__.update(decoder_of(spelling).__dict__)
    made._program = program
    return made


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_decoder_is_two_parts(spelling: str) -> None:
    parts = program_of(spelling).parts
    assert [isinstance(part, RegionProgram) for part in parts] == [False, True]
    assert len(parts[1].region.caches) == LAYERS


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("prompts", [[[3, 5, 7, 2, 2]], [[*range(20)]] * 3])
def test_every_step_is_onnxruntimes(spelling: str, prompts: list[list[int]]) -> None:
    program = Compared(spelling)
    assert len(list(decoder_on(spelling, program).generate(prompts, 8))) == program.steps == 8


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_sequences_of_different_lengths_get_onnxruntimes_tokens(spelling: str) -> None:
    wanted = list(decoder_of(spelling).generate(PROMPTS, 8))
    assert list(decoder_on(spelling, program_of(spelling)).generate(PROMPTS, 8)) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("spelling", ["llama", "gpt2"])
def test_two_hundred_tokens_are_onnxruntimes(spelling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_nets, "POSITIONS", 256)
    model = decoder(spelling)
    tokens = [list(Decoder(model, 1, backend=backend).generate([7, 3], 200)) for backend in ("cpu", "onnxruntime")]
    assert tokens[0] == tokens[1]
    assert len(set(tokens[0])) > 2


@pytest.mark.parametrize("spelling", ONE_FIRST)
def test_the_cache_is_no_part_of_a_schedule(spelling: str) -> None:
    """A schedule takes longer to make than a token."""
    program = CpuProgram(model_of(spelling), ONE_THREAD)
    list(decoder_on(spelling, program).generate([1, 2, 3], 9))
    assert len(program.parts[1]._whole.schedules.kept) == 2


def feeds_of(spelling: str, past: int = PAST, new: int = NEW) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(3)
    feeds = {}
    for spec in program_of(spelling).inputs:
        if spec.dtype == np.float32:
            _, heads, _, depth = spec.shape
            feeds[spec.name] = generator.standard_normal((BATCH, heads, past, depth)).astype(np.float32)
        elif spec.name == "position_ids":
            feeds[spec.name] = np.tile(np.arange(past, past + new), (BATCH, 1))
        else:
            size = past + new if spec.name == "attention_mask" else new
            feeds[spec.name] = np.ones((BATCH, size), np.int64)
    return feeds


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_what_is_new_is_written_where_the_past_lies(spelling: str) -> None:
    program, feeds = program_of(spelling), feeds_of(spelling, PAST, 1)
    wanted = program.run(feeds)
    room = {
        name: np.full((*array.shape[:2], 16, DEPTH), 7, np.float32) for name, array in wanted.items() if "pre" in name
    }
    for name, buffer in room.items():
        past = name.replace("present", "past_key_values")
        buffer[:, :, :PAST] = feeds[past]
        feeds[past] = buffer[:, :, :PAST]
    into = {name: buffer[:, :, : PAST + 1] for name, buffer in room.items()}
    assert set(into) == program.caches
    outputs = program.run(feeds, into)
    for name, array in wanted.items():
        np.testing.assert_array_equal(outputs[name], array)
        assert name == "logits" or np.shares_memory(outputs[name], room[name])
        assert name == "logits" or (room[name][:, :, PAST + 1 :] == 7).all()


def test_a_step_of_the_decoder_copies_no_cache() -> None:
    program, places = program_of("llama"), []

    class Watched(Program):
        threads, caches = 1, program.caches

        def run(self, feeds, into):
            outputs = program.run(feeds, into)
            places.append((feeds["past_key_values.0.key"], outputs["present.0.key"]))
            return outputs

    tokens = list(decoder_on("llama", Watched()).generate([1, 2, 3], 8))
    assert tokens == list(decoder_of("llama").generate([1, 2, 3], 8))
    assert all(past.ctypes.data == present.ctypes.data for past, present in places[1:])


def test_a_cache_that_outgrows_its_memory_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding_cache, "_LEAST_ROOM", 2)
    made = decoder_on("genai", program_of("genai"))
    assert list(made.generate(PROMPTS, 12)) == list(decoder_of("genai").generate(PROMPTS, 12))


def test_two_runs_from_one_past_do_not_disturb_each_other() -> None:
    program, feeds = program_of("llama"), feeds_of("llama", PAST, 1)
    kept = {name: array.copy() for name, array in feeds.items()}
    first = program.run(feeds)
    second = program.run(feeds | {"input_ids": np.full((BATCH, 1), 5)})
    for name, array in feeds.items():
        np.testing.assert_array_equal(array, kept[name])
    assert not np.array_equal(first["present.0.key"][:, :, PAST:], second["present.0.key"][:, :, PAST:])
    np.testing.assert_array_equal(first["present.0.key"][:, :, :PAST], second["present.0.key"][:, :, :PAST])


def test_a_query_that_sees_nothing_hurts_no_other() -> None:
    feeds = feeds_of("llama")
    feeds["attention_mask"][0, :] = 0
    outputs = program_of("llama").run(feeds)
    wanted = onnxruntime_of("llama").run(feeds)
    np.testing.assert_allclose(outputs["logits"], wanted["logits"], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda feeds: feeds | {"attention_mask": np.ones((BATCH, PAST), np.int64)}, None),
        (
            lambda feeds: feeds | {"past_key_values.1.key": feeds["past_key_values.1.key"][:, :, 1:]},
            "'past_key_values.1.key' has 3 along axis 2, but 'past' is 4",
        ),
        (
            lambda feeds: feeds | {"past_key_values.0.value": feeds["past_key_values.0.value"].astype(np.float16)},
            "'past_key_values.0.value' is float16, but the model takes float32",
        ),
        (
            lambda feeds: feeds | {"past_key_values.0.key": np.swapaxes(feeds["past_key_values.0.key"], 1, 2)},
            "'past_key_values.0.key'",
        ),
    ],
)
def test_a_cache_of_the_wrong_length_type_or_order_is_named(change, said) -> None:
    with pytest.raises((UsageError, BackendError), match=said):
        program_of("llama").run(change(feeds_of("llama")))


@pytest.mark.parametrize("position", [POSITIONS, -1])
def test_positions_beyond_the_table_are_named(position: int) -> None:
    feeds = feeds_of("opset23")
    feeds["position_ids"] = np.full_like(feeds["position_ids"], position)
    with pytest.raises(UsageError, match=f"'position_ids' asks for position {position}; the model has {POSITIONS}"):
        program_of("opset23").run(feeds)


def test_lengths_beyond_the_cache_are_named() -> None:
    feeds = feeds_of("genai", PAST, 1)
    feeds["past_key_values.0.key"] = feeds["past_key_values.0.key"][:, :, :2]
    feeds["past_key_values.0.value"] = feeds["past_key_values.0.value"][:, :, :2]
    with pytest.raises(UsageError, match="past"):
        program_of("genai").run(feeds)


@pytest.mark.parametrize(("past", "size"), [(PAST, PAST + 2), (0, 2)])
def test_totals_that_do_not_fit_the_cache_are_named(past: int, size: int) -> None:
    feeds = feeds_of("genai", past, 1) | {"attention_mask": np.ones((BATCH, size), np.int64)}
    with pytest.raises(BackendError):
        onnxruntime_of("genai").run(feeds)
    with pytest.raises(UsageError, match=f"is {size}; with {past} tokens in the cache '.*.key' and 1 new ones"):
        program_of("genai").run(feeds)


@pytest.mark.parametrize("past", [0, PAST])
def test_sequences_without_tokens_are_named(past: int) -> None:
    feeds = feeds_of("genai", past, 1)
    feeds["attention_mask"][0] = 0
    with pytest.raises(BackendError):
        onnxruntime_of("genai").run(feeds)
    with pytest.raises(UsageError, match=r"the place of a sequence's last token|has 0 tokens after a run"):
        program_of("genai").run(feeds)


def test_a_prompt_begins_anew_whatever_the_cache_holds() -> None:
    feeds = feeds_of("genai", PAST, 1) | {"attention_mask": np.ones((BATCH, 1), np.int64)}
    made, wanted = (program.run(feeds)["logits"] for program in (program_of("genai"), onnxruntime_of("genai")))
    np.testing.assert_allclose(made, wanted, rtol=0, atol=1e-5)


def where_masked() -> DecoderNet:
    """Scores that do not count are replaced, as in older exports."""
    net = DecoderNet(17, HEADS)
    x, mask = net.embedded(), net.visible()
    for layer in range(LAYERS):
        q, k, v = (net.parted(net.linear(x, HEADS * DEPTH), HEADS) for _ in range(3))
        keys, values = net.appended(layer, k, v)
        scores = net.op("Div", net.op("MatMul", q, net.op("Transpose", keys, perm=[0, 1, 3, 2])), net.constant(4.0))
        hidden = net.op("Where", mask, scores, net.constant(np.finfo(np.float32).min))
        made = net.op("MatMul", net.op("Softmax", hidden, axis=-1), values)
        x = net.op("Add", x, net.linear(net.joined(made), HEADS * DEPTH))
    return net.ends(x)


def heads_in_another_order() -> DecoderNet:
    """Heads of keys repeated as a whole, not one by one: no kernel repeats them so."""
    net = DecoderNet(17)
    x, mask = net.embedded(), net.added_mask()
    q = net.parted(net.linear(x, HEADS * DEPTH), HEADS)
    k, v = (net.parted(net.linear(x, KV_HEADS * DEPTH), KV_HEADS) for _ in range(2))
    for layer in range(LAYERS):
        keys, values = (net.op("Concat", part, part, axis=1) for part in net.appended(layer, k, v))
        scores = net.op("MatMul", q, net.op("Transpose", keys, perm=[0, 1, 3, 2]))
        made = net.op("MatMul", net.op("Softmax", net.op("Add", scores, mask), axis=-1), values)
        x = net.op("Add", x, net.linear(net.joined(made), HEADS * DEPTH))
    return net.ends(x)


@pytest.mark.parametrize(
    "spelled",
    [
        torch_17,
        torch_23,
        capped,
        partial(opset23, softcap=1.5),
        partial(opset23, softcap=1.5, is_causal=1),
    ],
)
def test_other_spellings_are_two_parts(spelled) -> None:
    net = spelled()
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert len(program.parts) == 2
    assert len(program.parts[1].region.caches) == LAYERS


@pytest.mark.parametrize("attributes", [{"local_window_size": 2}, {"softcap": 1.5}])
def test_windows_and_caps_of_group_query_attention(attributes: dict[str, float]) -> None:
    net = genai(**attributes)
    # onnxruntime continues one sequence at a time.
    program = assert_same_as_onnxruntime(net.model(), {name: array[:1] for name, array in net.feeds.items()})
    assert len(program.parts) == 2


def test_scores_that_are_replaced_are_masked() -> None:
    net = where_masked()
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert len(program.parts) == 2


def test_heads_in_another_order_are_not_taken_for_repeated_ones() -> None:
    net = heads_in_another_order()
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert not any(part.region.caches for part in program.parts if isinstance(part, RegionProgram))


def test_memory_of_a_prompt_is_given_back_before_the_tokens_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_program, "_POOLED_BYTES", 0)
    made = Decoder(model_of("genai"), 1)
    (region,) = (part for part in made.program.parts if isinstance(part, RegionProgram))
    prompt = list(range(1, 41))
    steps = made.generate(prompt, 3)
    tokens = [next(steps)]
    of_prompt = region._arrays.idle
    tokens.append(next(steps))
    assert region._arrays.idle < of_prompt
    tokens.append(next(steps))
    assert tokens == list(Decoder(model_of("genai"), 1, backend="onnxruntime").generate(prompt, 3))
