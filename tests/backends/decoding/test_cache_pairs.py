import numpy as np
import pytest

from sift_onnx.backends.decoding.cache_pairs import find_cache_pairs
from sift_onnx.errors import UnsupportedError
from sift_onnx.shapes.tensor_specs import TensorSpec

FLOAT = np.dtype(np.float32)


def spec(name, *shape, dtype=FLOAT):
    return TensorSpec(name, np.dtype(dtype), shape)


@pytest.mark.parametrize(
    ("past", "present"),
    [
        ("past_key_values.0.key", "present.0.key"),
        ("past_key_values.3.decoder.key", "present.3.decoder.key"),
        ("past_0", "present_0"),
        ("past_key_0", "present_key_0"),
        ("k_cache_0", "k_cache_0_out"),
        ("in_cache0", "out_cache0"),
        ("past_key_values.0.key", "present_key_values.0.key"),
    ],
)
def test_names_that_differ_in_the_end_of_a_step_are_one_cache(past, present):
    (pair,) = find_cache_pairs([spec(past, "b", 2, "p", 8)], [spec(present, "b", 2, "t", 8)], "b")
    assert (pair.past, pair.present, pair.batch_axis, pair.length_axis) == (past, present, 0, 2)
    assert pair.sizes(3, 0) == (3, 2, 0, 8)


def test_order_does_not_matter_and_keys_are_no_values():
    inputs = [spec(f"past.{i}.{kind}", "b", 2, "p", 8) for i in range(2) for kind in ("key", "value")]
    outputs = [spec(f"present.{i}.{kind}", "b", 2, "t", 8) for kind in ("value", "key") for i in (1, 0)]
    pairs = find_cache_pairs(inputs, outputs, "b")
    assert [(pair.past, pair.present) for pair in pairs] == [
        (i.name, i.name.replace("past", "present")) for i in inputs
    ]


def test_keys_and_values_of_a_layer_in_one_tensor():
    (pair,) = find_cache_pairs([spec("past_0", 2, "b", 4, "p", 8)], [spec("present_0", 2, "b", 4, "t", 8)], "b")
    assert (pair.batch_axis, pair.length_axis) == (1, 3)


@pytest.mark.parametrize(
    ("past", "present", "said"),
    [
        (spec("past.0", "b", 2, "p", 8), spec("present.1", "b", 2, "t", 8), "no output is the same"),
        (spec("past.0", "b", 2, "p", 8), spec("present.0", "b", 2, "t", 8, dtype=np.float16), "no output is the same"),
        (spec("past.0", "b", 2, "p", 8), spec("present.0", "b", 2, "t"), "no output is the same"),
        (spec("past.0", "b", 2, 16, 8), spec("present.0", "b", 2, 16, 8), "has 16 tokens"),
    ],
)
def test_a_cache_of_another_name_type_order_or_length_is_named(past, present, said):
    with pytest.raises(UnsupportedError, match=rf"'past.0'.*{said}"):
        find_cache_pairs([past], [present], "b")


def test_two_inputs_of_one_name_are_not_guessed():
    inputs = [spec("past.0", "b", 2, "p", 8), spec("prev_0", "b", 2, "p", 8)]
    with pytest.raises(UnsupportedError, match=r"'past\.0'"):
        find_cache_pairs(inputs, [spec("present.0", "b", 2, "t", 8)], "b")


def test_a_cache_without_a_number_of_heads_is_refused():
    (pair,) = find_cache_pairs([spec("past.0", "b", "h", "p", 8)], [spec("present.0", "b", "h", "t", 8)], "b")
    with pytest.raises(UnsupportedError, match="axis 1 has no size"):
        pair.sizes(1, 0)
