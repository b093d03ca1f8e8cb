"""Tokens of decoders with a cache, against the same model on whole sequences and against each other."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import onnx
import pytest
from decoder_nets import LAYERS, POSITIONS, SPELLINGS, VOCABULARY, decoder
from merged_nets import merged, with_other_logits

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.decoding.decoder import Decoder
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram
from sift_onnx.errors import UnsupportedError, UsageError

PROMPTS = [[3, 5, 7], [1], [2, 9, 4, 4, 11]]


@cache
def decoder_of(spelling: str) -> Decoder:
    return Decoder(decoder(spelling), 1, backend="onnxruntime")


def whole_sequence(spelling: str, prompt: list[int], count: int) -> list[int]:
    """The most likely tokens, each from a run on everything before it."""
    model = decoder(spelling)
    program = OnnxRuntimeProgram(model, CompileOptions(1))
    ids = list(prompt)
    for _ in range(count):
        feeds = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)}
        if any(info.name == "position_ids" for info in model.graph.input):
            feeds["position_ids"] = np.arange(len(ids))[None]
        for spec in program.inputs:
            if spec.name not in feeds:
                _, heads, _, depth = spec.shape or ()
                feeds[spec.name] = np.zeros((1, int(heads or 0), 0, int(depth or 0)), np.float32)
        ids.append(int(program.run(feeds)["logits"][0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_step_with_the_cache_is_a_run_on_the_whole_sequence(spelling: str) -> None:
    assert list(decoder_of(spelling).generate(PROMPTS[0], 5)) == whole_sequence(spelling, PROMPTS[0], 5)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_sequences_of_different_lengths_get_in_a_batch_what_they_get_alone(spelling: str) -> None:
    made = decoder_of(spelling)
    alone = [list(made.generate(prompt, 6)) for prompt in PROMPTS]
    assert [list(tokens) for tokens in zip(*made.generate(PROMPTS, 6), strict=True)] == alone


def test_three_spellings_of_one_model_give_the_same_tokens() -> None:
    tokens = [list(decoder_of(spelling).generate(PROMPTS[2], 8)) for spelling in ("llama", "genai", "opset23")]
    assert tokens[0] == tokens[1] == tokens[2]


def test_tokens_that_are_drawn_depend_on_the_seed_and_not_on_the_batch() -> None:
    made = decoder_of("llama")
    drawn = [list(made.generate(PROMPTS[0], 6, temperature=2.0, top_k=20, seed=seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    batch = [row[0] for row in made.generate([PROMPTS[0], PROMPTS[1]], 6, temperature=2.0, top_k=20, seed=1)]
    assert batch == drawn[0]


def test_of_one_most_likely_token_the_drawn_one_is_that() -> None:
    made = decoder_of("llama")
    assert list(made.generate([4], 4, temperature=3.0, top_k=1)) == list(made.generate([4], 4))


def test_a_sequence_ends_with_its_end_token_and_the_others_go_on() -> None:
    made = decoder_of("llama")
    first, second = (list(made.generate(prompt, 6)) for prompt in PROMPTS[:2])
    end = first[2]
    assert end not in second
    assert list(made.generate(PROMPTS[0], 6, eos=end)) == first[:3]
    rows = list(made.generate(PROMPTS[:2], 6, eos=[end]))
    assert [row[0] for row in rows] == [*first[:3], None, None, None]
    assert [row[1] for row in rows] == second


@pytest.mark.parametrize("kind", [list, tuple, set, np.array, iter])
def test_end_tokens_come_in_any_kind(kind) -> None:
    prompt = [3, 1, 4]
    tokens = list(decoder_of("gpt2").generate(prompt, 6))
    ends = [VOCABULARY - 1, tokens[2]] if VOCABULARY - 1 not in tokens[:2] else [tokens[2]]
    ended = list(decoder_of("gpt2").generate(prompt, 6, eos=kind(ends)))
    assert ended == tokens[: tokens.index(tokens[2]) + 1]


def test_at_the_lowest_temperatures_the_most_likely_token_is_drawn() -> None:
    greedy = list(decoder_of("gpt2").generate([3, 1, 4], 6))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(decoder_of("gpt2").generate([3, 1, 4], 6, temperature=1e-320)) == greedy


def test_lengths_without_an_axis_are_fed_as_they_are_declared() -> None:
    model = decoder("genai")
    # The total number of tokens as a number of its own, in the place of one that follows from the mask.
    squeezed = {node.output[0] for node in model.graph.node if node.op_type == "Squeeze"}
    (cast,) = (node for node in model.graph.node if node.op_type == "Cast" and node.input[0] in squeezed)
    model.graph.node.remove(cast)
    total = onnx.helper.make_tensor_value_info("total_sequence_length", onnx.TensorProto.INT32, [])
    model.graph.input.append(total)
    for node in model.graph.node:
        node.input[:] = ["total_sequence_length" if name == cast.output[0] else name for name in node.input]
    wanted = list(decoder_of("genai").generate([3, 1, 4], 5))
    assert list(Decoder(model, 1).generate([3, 1, 4], 5)) == wanted


def test_logits_need_no_declared_shape() -> None:
    model = decoder("gpt2")
    next(info for info in model.graph.output if info.name == "logits").type.tensor_type.ClearField("shape")
    made = Decoder(model, 1, backend="onnxruntime")
    assert made.vocabulary is None
    assert list(made.generate([3, 1, 4], 5)) == list(decoder_of("gpt2").generate([3, 1, 4], 5))


def test_tokens_come_one_by_one() -> None:
    steps = decoder_of("llama").generate([1], 10_000)
    assert [next(steps) for _ in range(2)] == list(decoder_of("llama").generate([1], 2))


@pytest.mark.parametrize(
    ("ids", "settings", "said"),
    [
        ([], {}, "the prompt is empty"),
        ([[1], []], {}, "prompt 1 is empty"),
        ([1.5], {}, "list of token ids"),
        ([-1], {}, "token id -1"),
        ([VOCABULARY], {}, f"token id {VOCABULARY}; the model's vocabulary has {VOCABULARY}"),
        ([1], {"max_new_tokens": 0}, "`max_new_tokens` is 0"),
        ([1], {"temperature": -1.0}, "`temperature` is -1"),
        ([1], {"temperature": float("nan")}, "`temperature` is nan"),
        ([1], {"top_k": -1}, "`top_k` is -1"),
        ([1], {"seed": -1}, "`seed` is -1"),
        (5, {}, "the prompt is 5; pass a list of token ids"),
        (np.array(5), {}, "pass a list of token ids"),
        ([1], {"temperature": "a"}, "`temperature` is 'a'; it has to be a number"),
        ([1], {"top_k": 2.5}, "`top_k` is 2.5; it has to be a whole number"),
        ([1], {"seed": None}, "`seed` is None; it has to be a whole number"),
        ([1], {"eos": "2"}, "`eos` is '2'; pass a token id, or several"),
        ([1] * 60, {"max_new_tokens": 6}, f"need 65 positions, and the model has {POSITIONS}"),
    ],
)
def test_wrong_prompts_and_settings_are_refused_before_anything_runs(ids, settings, said) -> None:
    with pytest.raises(UsageError, match=said):
        decoder_of("gpt2").generate(ids, **settings)


def test_as_many_tokens_as_there_are_positions_are_generated() -> None:
    assert len(list(decoder_of("gpt2").generate([1] * 60, 5))) == 5


def renamed(model: onnx.ModelProto, names: dict[str, str]) -> onnx.ModelProto:
    for node in model.graph.node:
        for listed in (node.input, node.output):
            for i, name in enumerate(listed):
                listed[i] = names.get(name, name)
    for info in (*model.graph.input, *model.graph.output):
        info.name = names.get(info.name, info.name)
    return model


def test_a_cache_under_other_names_is_found() -> None:
    names = {
        f"past_key_values.{i}.{kind}": f"cache_{kind[0]}_{i}_in" for i in range(LAYERS) for kind in ("key", "value")
    }
    names |= {f"present.{i}.{kind}": f"cache_{kind[0]}_{i}_out" for i in range(LAYERS) for kind in ("key", "value")}
    made = Decoder(renamed(decoder("llama"), names), 1, backend="onnxruntime")
    assert list(made.generate([3], 3)) == list(decoder_of("llama").generate([3], 3))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"present.1.value": "other"}, "'past_key_values.1.value' .* looks like a cache, and no output"),
        ({"input_ids": "words"}, "no input of token ids"),
        ({"position_ids": "places"}, "the input 'places' .* is neither a cache nor one of input_ids"),
    ],
)
def test_what_cannot_be_paired_or_has_no_known_meaning_is_named(names, said) -> None:
    with pytest.raises(UnsupportedError, match=said):
        Decoder(renamed(decoder("gpt2"), names), 1, backend="onnxruntime")


def test_of_a_merged_decoder_the_branch_with_a_cache_is_run() -> None:
    model = merged(decoder("llama"), with_other_logits(decoder("llama")))
    assert list(Decoder(model, 1, backend="onnxruntime").generate([3, 4], 4)) == list(
        decoder_of("llama").generate([3, 4], 4)
    )


def test_a_model_without_a_cache_is_refused() -> None:
    model = decoder("llama")
    for layer in range(LAYERS):
        for kind in ("key", "value"):
            info = next(info for info in model.graph.input if info.name == f"past_key_values.{layer}.{kind}")
            model.graph.input.remove(info)
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((1, 2, 0, 16), np.float32), info.name))
    with pytest.raises(UnsupportedError, match="no cache among its inputs"):
        Decoder(model, 1, backend="onnxruntime")


def test_a_mask_that_no_logits_depend_on_is_none() -> None:
    model = decoder("llama")
    mask = next(info for info in model.graph.input if info.name == "attention_mask")
    for node in model.graph.node:
        node.input[:] = ["mask_of_ones" if name == mask.name else name for name in node.input]
    sizes = onnx.helper.make_node("Shape", [mask.name], ["sizes_of_mask"])
    ones = onnx.helper.make_node(
        "ConstantOfShape", ["sizes_of_mask"], ["mask_of_ones"],
        value=onnx.numpy_helper.from_array(np.ones(1, np.int64)),
    )  # fmt: skip
    for node in (ones, sizes):
        model.graph.node.insert(0, node)
    made = Decoder(model, 1, backend="onnxruntime")
    assert list(made.generate([3, 1, 4], 3)) == list(decoder_of("llama").generate([3, 1, 4], 3))
    with pytest.raises(UsageError, match="no attention_mask that tells padding from tokens, or does not use it"):
        made.generate([[1], [2, 3]])
