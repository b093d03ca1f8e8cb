"""Which copies of channels are left out, and that nothing overwrites what is still read."""

from __future__ import annotations

import numpy as np

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.run.schedules.placement import Call, Part, place

OP = _kernels.Elementwise("first")
SHAPE = (1, 1, 1, 1)
CHANNEL = 64
INPUT = {"in": (0, 0)}


def call(output: str, *inputs: str, part: Part | None = None) -> Call:
    return Call(OP, SHAPE, inputs, output, None, part=part)


def concat(output: str, *inputs: str) -> list[Call]:
    """Of operands of a channel each."""
    return [call(output, name, part=Part(output, i * CHANNEL)) for i, name in enumerate(inputs)]


def cut(output: str, operand: str, channel: int) -> Call:
    return call(output, operand, part=Part(operand, channel * CHANNEL))


def placed(calls: list[Call], channels: dict[str, int], fixed: dict[str, tuple[int, int]] | None = None):
    """What is run, as (output, first operand), and the places; tensors have a channel each but for ``channels``."""
    sizes = {made.output: channels.get(made.output, 1) * CHANNEL for made in calls}
    left, places, _ = place(calls, sizes, fixed or INPUT)
    return [(made.output, made.inputs[0]) for made in left], places


def test_operands_are_written_where_the_concatenation_has_them() -> None:
    calls = [call("a", "in"), call("b", "a"), *concat("c", "a", "b"), call("d", "c")]
    left, places = placed(calls, {"c": 2})
    assert left == [("a", "in"), ("b", "a"), ("d", "c")]
    assert places["a"] == places["c"]
    assert places["b"] == (-1, places["c"][1] + CHANNEL)


def test_an_operand_in_an_array_of_the_caller_is_copied() -> None:
    left, _ = placed([call("a", "in"), *concat("c", "a", "in"), call("d", "c")], {"c": 2})
    assert left == [("a", "in"), ("c", "in"), ("d", "c")]


def test_a_concatenation_in_an_array_of_the_caller_has_its_operands_there() -> None:
    calls = [call("a", "in"), call("b", "a"), *concat("c", "a", "b")]
    left, places = placed(calls, {}, {**INPUT, "c": (1, 0)})
    assert left == [("a", "in"), ("b", "a")]
    assert places["b"] == (1, CHANNEL)


def test_an_operand_twice_is_copied_once() -> None:
    left, _ = placed([call("a", "in"), *concat("c", "a", "a"), call("d", "c")], {"c": 2})
    assert left == [("a", "in"), ("c", "a"), ("d", "c")]


def test_memory_of_what_was_cut_is_kept_while_a_slice_is_read() -> None:
    calls = [call("x", "in"), cut("s", "x", 1), call("y", "in"), call("z", "y"), call("end", "s", "z")]
    left, places = placed(calls, {"x": 2})
    assert left == [("x", "in"), ("y", "in"), ("z", "y"), ("end", "s")]
    assert places["s"] == (-1, places["x"][1] + CHANNEL)
    x = range(places["x"][1], places["x"][1] + 2 * CHANNEL)
    assert places["y"][1] not in x
    assert places["z"][1] not in x


def test_a_slice_that_is_concatenated_with_others_is_copied_to_its_place() -> None:
    calls = [call("x", "in"), cut("s", "x", 1), call("y", "x"), *concat("c", "s", "y"), call("d", "c")]
    left, places = placed(calls, {"x": 2, "c": 2})
    assert left == [("x", "in"), ("s", "x"), ("y", "x"), ("d", "c")]
    assert places["s"] == places["c"]


def test_a_sum_takes_the_place_of_its_second_operand_alone() -> None:
    calls = [call("x", "in"), call("h", "x"), call("sum", "h", "x"), call("d", "sum")]
    _, places = placed(calls, {})
    assert places["sum"] == places["x"]
    # What is a part of another tensor has neighbours, and those are read later.
    calls = [call("x", "in"), call("h", "x"), call("b", "h"), call("sum", "h", "x"), *concat("c", "x", "b", "sum")]
    left, places = placed([*calls, call("d", "c")], {"c": 3})
    assert left[-1] == ("d", "c")
    assert places["sum"] == (-1, places["c"][1] + 2 * CHANNEL)
    assert places["x"] == places["c"]


def test_a_normalization_takes_the_place_of_what_no_later_call_reads() -> None:
    norm = _kernels.LayerNormalization(np.ones(1, np.float32), np.zeros(1, np.float32), 1e-5)
    calls = [call("x", "in"), Call(norm, SHAPE, ("x",), "y", None), call("z", "y")]
    _, places = placed(calls, {})
    assert places["y"] == places["x"]
    _, places = placed([*calls, call("end", "z", "x")], {})
    assert places["y"] != places["x"]


def test_an_operator_takes_the_place_of_no_operand_that_another_one_lies_in() -> None:
    calls = [call("x", "in"), cut("s", "x", 1), call("y", "x", "s"), call("d", "y")]
    _, places = placed(calls, {"x": 2, "y": 2})
    assert places["y"] != places["x"]
