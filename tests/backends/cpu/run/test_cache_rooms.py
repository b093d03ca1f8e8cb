"""Steps whose caches stay in memory with room for more tokens, against runs on arrays of their own."""

from __future__ import annotations

from functools import partial

import decoder_nets
import numpy as np
import pytest
from decoder_nets import BATCH, DEPTH, KV_HEADS, LAYERS, SPELLINGS, VOCABULARY, decoder, genai
from merged_nets import merged, with_other_logits
from sparse_nets import ONE_THREAD, SparseNet

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu.lower.placements import ONNXRUNTIME
from sift_onnx.backends.cpu.run.parts import Parts
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.cpu.run.trials import Route, Verdict
from sift_onnx.backends.decoding import cache as decoding_cache
from sift_onnx.backends.decoding.decoder import Decoder
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram
from sift_onnx.errors import BackendError, UsageError

pytestmark = pytest.mark.usefixtures("every_region_pays")

ROOM = 12
PRESENTS = {
    f"past_key_values.{layer}.{kind}": f"present.{layer}.{kind}" for layer in range(LAYERS) for kind in ("key", "value")
}
PROMPTS = [[3, 5, 7], [1], [2, 9, 4, 4, 11]]


def memory(heads: int = KV_HEADS, dtype: type = np.float32) -> dict[str, np.ndarray]:
    return {name: np.full((BATCH, heads, ROOM, DEPTH), 7, dtype) for name in PRESENTS}


def heads_of(spelling: str) -> int:
    return decoder_nets.HEADS if spelling == "gpt2" else KV_HEADS


def ids_and_masks(program: CpuProgram, past: int, new: int) -> dict[str, np.ndarray]:
    made = {
        "input_ids": np.random.default_rng(past).integers(0, VOCABULARY, (BATCH, new)),
        "attention_mask": np.ones((BATCH, past + new), np.int64),
        "position_ids": np.broadcast_to(np.arange(past, past + new), (BATCH, new)),
    }
    return {spec.name: made[spec.name] for spec in program.inputs if spec.name in made}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_step_in_rooms_is_a_run_on_arrays(spelling: str) -> None:
    program = CpuProgram(decoder(spelling), ONE_THREAD)
    arrays = memory(heads_of(spelling))
    rooms = program.cache_rooms(arrays, PRESENTS)
    assert rooms is not None
    caches = {name: array[:, :, :0].copy() for name, array in arrays.items()}
    past = 0
    for new in (5, 1, 1, 3):
        feeds = ids_and_masks(program, past, new)
        wanted = program.run(feeds | caches)
        made = program.run_step(feeds, rooms, past, past + new)
        past += new
        caches = {name: wanted.pop(present) for name, present in PRESENTS.items()}
        assert made.keys() == wanted.keys()
        np.testing.assert_array_equal(made["logits"], wanted["logits"])
        for name, array in arrays.items():
            np.testing.assert_array_equal(array[:, :, :past], caches[name])
            assert (array[:, :, past:] == 7).all()


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("least", [2, 64])
def test_a_decoder_goes_on_in_rooms(spelling: str, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding_cache, "_LEAST_ROOM", least)
    monkeypatch.setattr(CpuProgram, "run", None)
    model = decoder(spelling)
    wanted = list(Decoder(model, 1, backend="onnxruntime").generate(PROMPTS, 12))
    assert list(Decoder(model, 1).generate(PROMPTS, 12)) == wanted


@pytest.mark.parametrize("choose", [lambda turn: True, lambda turn: turn % 2 == 0])
def test_steps_that_onnxruntime_takes_leave_their_tokens_in_the_rooms(choose, monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder("genai")
    decoder_in_kernels = Decoder(model, 1)
    routed = next(iter(decoder_in_kernels.program._models.values()))
    whole = OnnxRuntimeProgram(model, ONE_THREAD)
    way = Route(Parts([whole], [spec.name for spec in whole.outputs]), Verdict(ONNXRUNTIME))
    turns = []

    class Chosen:
        def decide(self, feeds, into):
            turns.append(feeds["attention_mask"].shape)
            return (way if choose(len(turns)) else Route(routed.opened.parts)), None

    monkeypatch.setitem(routed.opened.__dict__, "trials", Chosen())
    wanted = list(Decoder(model, 1, backend="onnxruntime").generate(PROMPTS, 12))
    assert list(decoder_in_kernels.generate(PROMPTS, 12)) == wanted
    assert len(turns) > 2


def test_of_a_merged_decoder_each_graph_goes_on_in_the_same_rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuProgram, "run", None)
    model = merged(decoder("llama"), with_other_logits(decoder("llama")))
    wanted = list(Decoder(model, 1, backend="onnxruntime").generate(PROMPTS[:1], 6))
    assert list(Decoder(model, 1).generate(PROMPTS[:1], 6)) == wanted


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays, presents: presents.pop("past_key_values.0.key"),
        lambda arrays, presents: presents.update({"past_key_values.0.key": "present.0.value"}),
        lambda arrays, presents: arrays.update({"past_key_values.0.key": np.zeros((BATCH, KV_HEADS, ROOM, DEPTH))}),
    ],
)
def test_other_caches_than_those_of_the_kernels_have_no_rooms(change) -> None:
    arrays, presents = memory(), dict(PRESENTS)
    change(arrays, presents)
    assert CpuProgram(decoder("llama"), ONE_THREAD).cache_rooms(arrays, presents) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"past_key_values.0.key": np.zeros((BATCH, 3, ROOM, DEPTH), np.float32)}, "has 3 along axis 1"),
        ({"past_key_values.1.value": np.zeros((1, KV_HEADS, ROOM, DEPTH), np.float32)}, "has 1 along axis 0"),
    ],
)
def test_rooms_that_do_not_fit_the_model_are_named(change, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        CpuProgram(genai().model(), ONE_THREAD).cache_rooms(memory() | change, PRESENTS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"attention_mask": np.ones((BATCH, 9), np.int64)}, "9"),
        ({"input_ids": np.ones((BATCH + 1, 1), np.int64)}, "batch"),
        ({"input_ids": np.ones((BATCH, 1), np.float32)}, "input_ids"),
        ({"more": np.ones(1)}, "more"),
    ],
)
def test_inputs_that_do_not_fit_the_rooms_are_named(change, said: str) -> None:
    program = CpuProgram(decoder("llama"), ONE_THREAD)
    rooms = program.cache_rooms(memory(), PRESENTS)
    feeds = ids_and_masks(program, 4, 1)
    with pytest.raises((UsageError, BackendError), match=said):
        program.run_step(feeds | change, rooms, 4, 5)


@pytest.mark.parametrize("spelling", ["llama", "genai"])
def test_more_tokens_than_there_is_room_for_are_refused(spelling: str) -> None:
    program = CpuProgram(decoder(spelling), ONE_THREAD)
    rooms = program.cache_rooms(memory(), PRESENTS)
    feeds = partial(ids_and_masks, program)
    program.run_step(feeds(ROOM - 1, 1), rooms, ROOM - 1, ROOM)
    with pytest.raises(UsageError, match="no room"):
        program.run_step(feeds(ROOM, 1), rooms, ROOM, ROOM + 1)


def test_steps_that_are_timed_keep_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one thread they would leave their rooms: a step there is a run on arrays."""
    asked: list[Parts] = []
    on_one_thread = Parts.on_one_thread
    monkeypatch.setattr(Parts, "on_one_thread", lambda parts: asked.append(parts) or on_one_thread(parts))
    CpuProgram(decoder("llama"), CompileOptions(threads=2))
    assert not asked
    net = SparseNet()
    net.output(net.dense(net.input("x", 2, 40, declared=["n", 40]), 40, 40))
    CpuProgram(net.model(), CompileOptions(threads=2))
    assert asked
