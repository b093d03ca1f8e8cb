"""Subgraphs that compute shapes, as the exporters write them: followed element by element, widened and run."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from nets import Net, run, widen
from onnx import TensorProto, numpy_helper
from shape_subgraphs import dynamic_images, dynamic_tokens, listed, number, numbers, size

LAST, FIRST = np.iinfo(np.int64).max, np.iinfo(np.int64).min


def rerun(proto: onnx.ModelProto, net: Net, batch: int) -> dict[str, np.ndarray[Any, Any]]:
    """The wide model at another batch."""
    return run(proto, {name: np.concatenate([feed[:1]] * batch) for name, feed in net.feeds.items()})


# Flattening.


@pytest.mark.parametrize("style", ["torchscript", "dynamo", "initializer"])
def test_a_batch_that_is_read_from_the_input_stays_dynamic(net: Net, style: str) -> None:
    """``x.view(x.shape[0], -1)``: nothing has to be rewritten."""
    h = net.op("Relu", dynamic_images(net, 8))
    if style == "torchscript":
        target = listed(net, size(net, h, 0), number(net, -1))
    elif style == "dynamo":
        target = net.op("Concat", net.op("Shape", h, start=0, end=1), numbers(net, [-1], "value"), axis=0)
    else:
        target = net.op("Concat", net.op("Slice", net.op("Shape", h), *map(net.constant, ([0], [1], [0]))),
                        net.constant([-1]), axis=0)  # fmt: skip
    flat = net.op("Reshape", h, target, name="flat")
    net.output(net.dense(net.op("Relu", net.dense(flat, 128, 6, name="after")), 6, 2, name="head"))
    wide = widen(net)
    assert wide.shape("flat") == (1, 256)
    assert wide.shape("after.weight") == (256, 12)
    assert rerun(wide.proto, net, 3)["head"].shape == (3, 2)


@pytest.mark.parametrize("form", ["value", "value_int"])
def test_a_stated_size_is_rewritten_behind_unsqueeze_and_concat(net: Net, form: str) -> None:
    """``x.view(x.shape[0], 128)``: the 128 is a scalar in a Constant node."""
    h = net.op("Relu", dynamic_images(net, 8))
    flat = net.op("Reshape", h, listed(net, size(net, h, 0), number(net, 128, form)), name="flat")
    net.output(net.dense(net.op("Relu", net.dense(flat, 128, 6, name="after")), 6, 2, name="head"))
    wide = widen(net)
    assert wide.shape("flat") == (1, 256)
    assert rerun(wide.proto, net, 2)["flat"].shape == (2, 256)


@pytest.mark.parametrize("form", ["initializer", "value", "value_ints"])
def test_vectors_of_stated_sizes_are_rewritten_in_any_form(net: Net, form: str) -> None:
    h = net.op("Relu", dynamic_images(net, 8))
    target = net.op("Concat", net.op("Shape", h, end=1), numbers(net, [8, 16], form), axis=0)
    net.op("Reshape", h, target, name="flat")
    target = net.op("Concat", net.op("Shape", h, end=1), numbers(net, [8, 4, 4], form), axis=0)
    net.images_end(net.op("Reshape", "flat", target, name="back"), 8)
    wide = widen(net)
    assert wide.shape("flat") == (1, 16, 16)
    assert wide.shape("back") == (1, 16, 4, 4)
    assert rerun(wide.proto, net, 2)["back"].shape == (2, 16, 4, 4)


def test_the_product_of_all_but_the_batch(net: Net) -> None:
    h = net.op("Relu", dynamic_images(net, 8))
    rest = net.op("ReduceProd", net.op("Shape", h, start=1), numbers(net, [0]), keepdims=1, name="rest")
    flat = net.op("Reshape", h, net.op("Concat", net.op("Shape", h, end=1), rest, axis=0), name="flat")
    net.output(net.dense(net.op("Relu", net.dense(flat, 128, 6, name="after")), 6, 2, name="head"))
    wide = widen(net)
    assert wide.shape("flat") == (1, 256)
    assert wide.after["rest"].tolist() == [256]


def test_the_number_of_elements_over_a_fixed_size(net: Net) -> None:
    """``numel // tokens`` columns."""
    h = net.op("Relu", net.tokens(12))
    columns = net.op("Div", net.op("Size", h), number(net, 5))
    flat = net.op("Reshape", h, listed(net, number(net, 5), columns), name="flat")
    net.tokens_end(net.op("Unsqueeze", flat, net.constant([0])), 12)
    assert widen(net).shape("flat") == (5, 24)


# Heads.


def attention_shapes(net: Net, h: str, last: str, heads: int = 3) -> str:
    """``h.view(N, T, heads, last).transpose(1, 2)`` with the heads as a constant."""
    target = listed(net, size(net, h, 0), size(net, h, 1), number(net, heads), last)
    return str(net.op("Transpose", net.op("Reshape", h, target, name="split"), perm=[0, 2, 1, 3], name="heads"))


@pytest.mark.parametrize("how", ["stated", "rest", "divided", "cast"])
def test_the_size_of_a_head(net: Net, how: str) -> None:
    h = dynamic_tokens(net, 12)
    width = size(net, h, 2)
    if how == "stated":
        last = number(net, 4)
    elif how == "rest":
        last = number(net, -1)
    else:
        last = net.op("Div", width, number(net, 3))
        for _ in range(2 if how == "cast" else 0):
            last = net.op("Cast", last, to=TensorProto.INT64)
    h = net.op("Transpose", attention_shapes(net, h, last), perm=[0, 2, 1, 3])
    merged = listed(net, size(net, h, 0), size(net, h, 1), net.op("Mul", size(net, h, 2), size(net, h, 3)))
    net.tokens_end(net.op("Reshape", h, merged, name="merged"), 12)
    wide = widen(net)
    assert wide.shape("heads") == (1, 3, 5, 8)
    assert wide.shape("merged") == (1, 5, 24)
    assert rerun(wide.proto, net, 2)["merged"].shape == (2, 5, 24)


@pytest.mark.parametrize("sparsity", ["0.5", "0.9"])
def test_a_width_that_is_divided_grows_by_what_divides(net: Net, sparsity: str) -> None:
    h = dynamic_tokens(net, 12)
    h = net.op("Transpose", attention_shapes(net, h, net.op("Div", size(net, h, 2), number(net, 3))), perm=[0, 2, 1, 3])
    net.tokens_end(
        net.op("Reshape", h, listed(net, size(net, h, 0), number(net, 5), number(net, -1)), name="merged"), 12
    )
    wide = widen(net, sparsity)
    assert wide.shape("heads")[1] == 3
    assert wide.shape("merged")[2] == {"0.5": 18, "0.9": 39}[sparsity]


@pytest.mark.parametrize("order", ["heads-first", "size-first"])
def test_heads_and_their_size_multiply_to_the_width(net: Net, order: str) -> None:
    h = dynamic_tokens(net, 12)
    h = net.op("Transpose", attention_shapes(net, h, number(net, 4)), perm=[0, 2, 1, 3])
    factors = (number(net, 3), size(net, h, 3)) if order == "heads-first" else (size(net, h, 3), number(net, 3))
    merged = listed(net, size(net, h, 0), number(net, 5), net.op("Mul", *factors))
    net.tokens_end(net.op("Reshape", h, merged, name="merged"), 12)
    assert widen(net).shape("merged") == (1, 5, 24)


def test_a_width_plus_and_minus_something_fixed(net: Net) -> None:
    """``2 * C - C`` and ``C + 3 - 3`` are C."""
    h = dynamic_tokens(net, 12)
    width = net.op("Shape", h, start=2)
    twice = net.op("Sub", net.op("Mul", width, numbers(net, [2])), width)
    again = net.op("Sub", net.op("Add", twice, numbers(net, [3])), numbers(net, [3]), name="again")
    target = net.op("Concat", net.op("Shape", h, end=1), numbers(net, [-1]), again, axis=0)
    net.tokens_end(net.op("Reshape", h, target, name="same"), 12)
    wide = widen(net)
    assert wide.shape("same") == (1, 5, 24)
    assert wide.after["again"].tolist() == [24]


def test_a_remainder_stays_what_it_is(net: Net) -> None:
    """``C % 4 + 3`` tokens: of the widths near 12, 10 and 14 leave 2."""
    h = net.dense(net.op("Relu", net.tokens(6)), 6, 6, name="q")
    tokens = net.op("Add", net.op("Mod", size(net, h, 2), number(net, 4)), number(net, 3), name="tokens")
    net.tokens_end(net.op("Reshape", h, listed(net, number(net, 1), tokens, number(net, -1)), name="same"), 6)
    wide = widen(net)
    assert wide.shape("same") == (1, 5, 14)
    assert wide.after["tokens"] == 5


def test_a_quotient_is_rounded_down_as_before(net: Net) -> None:
    """``C // 4 * 4 + 2`` is C for 6, and for every width that leaves 2."""
    h = net.dense(net.op("Relu", net.tokens(6)), 6, 6, name="q")
    quotient = net.op("Div", size(net, h, 2), number(net, 4), name="quotient")
    again = net.op("Add", net.op("Mul", quotient, number(net, 4)), number(net, 2))
    net.tokens_end(net.op("Reshape", h, listed(net, number(net, 1), number(net, -1), again), name="same"), 6)
    wide = widen(net)
    assert wide.shape("same") == (1, 5, 14)
    assert (wide.before["quotient"], wide.after["quotient"]) == (1, 3)


# Slices.


@pytest.mark.parametrize(
    ("starts", "ends", "steps"),
    [([0], [2], None), ([-3], [-1], None), ([0], [-1], [1]), ([FIRST], [2], [1])],
)
def test_the_first_two_sizes_by_a_slice(net: Net, starts: list[int], ends: list[int], steps: list[int] | None) -> None:
    h = dynamic_tokens(net, 12)
    arguments = [starts, ends, [0], *([steps] if steps else [])]
    front = net.op("Slice", net.op("Shape", h), *(net.constant(a) for a in arguments))
    split = net.op("Reshape", h, net.op("Concat", front, numbers(net, [3, 4]), axis=0), name="split")
    net.tokens_end(net.op("Reshape", split, net.op("Concat", front, numbers(net, [-1]), axis=0), name="merged"), 12)
    wide = widen(net)
    assert wide.shape("split") == (1, 5, 3, 8)
    assert rerun(wide.proto, net, 2)["merged"].shape == (2, 5, 24)


@pytest.mark.parametrize(("start", "end"), [(-1, FIRST), (LAST, FIRST), (2, -4), (-1, -4), (2, FIRST + 1)])
def test_a_shape_is_read_backwards(net: Net, start: int, end: int) -> None:
    """Steps below zero run to the front where the end lies before it."""
    h = net.dense(net.tokens(6), 6, 7, name="q")
    turned = net.op("Slice", net.op("Shape", h), *(net.constant(a) for a in ([start], [end], [0], [-1])), name="turned")
    moved = net.op("Transpose", h, perm=[2, 1, 0])
    moved = net.op("Reshape", net.op("Reshape", moved, net.constant([-1])), turned, name="again")
    net.tokens_end(net.op("Transpose", moved, perm=[2, 1, 0]), 7)
    wide = widen(net)
    assert wide.after["turned"].tolist() == [14, 5, 1]
    assert wide.shape("again") == (14, 5, 1)


def test_a_backwards_slice_that_stops_before_the_front(net: Net) -> None:
    h = net.dense(net.tokens(6), 6, 7, name="q")
    part = net.op("Slice", net.op("Shape", h), *(net.constant(a) for a in ([-1], [-3], [0], [-1])), name="part")
    moved = net.op("Reshape", net.op("Transpose", h, perm=[0, 2, 1]), part, name="flat")
    moved = net.op("Reshape", moved, net.op("Concat", numbers(net, [1]), part, axis=0))
    net.tokens_end(net.op("Transpose", moved, perm=[0, 2, 1]), 7)
    wide = widen(net)
    assert wide.after["part"].tolist() == [14, 5]
    assert wide.shape("flat") == (14, 5)


def test_slices_of_opset_9_have_their_bounds_in_attributes() -> None:
    net = Net(opset=9)
    h = net.op("MatMul", net.input("x", 1, 5, 4), net.weight(4, 6, name="stem.weight"))
    h = net.op("MatMul", h, net.weight(6, 12, name="before.weight"))
    front = net.op("Slice", net.op("Shape", h), starts=[0], ends=[2])
    target = net.op("Concat", front, net.constant([3, 4]), axis=0)
    split = net.op("Reshape", h, target, name="split")
    merged = net.op("Reshape", split, net.op("Concat", front, net.constant([12]), axis=0), name="merged")
    net.tokens_end(merged, 12)
    wide = widen(net)
    assert (wide.shape("split"), wide.shape("merged")) == ((1, 5, 3, 8), (1, 5, 24))


# Expanding.


def expanded(net: Net, x: str, target: str) -> str:
    """``x.expand(...)`` as TorchScript writes it: sizes of -1 are replaced by 1 before the Expand."""
    ones = net.op(
        "ConstantOfShape", net.op("Shape", target), value=numpy_helper.from_array(np.asarray([1], dtype=np.int64))
    )
    same = net.op("Equal", target, net.op("Mul", ones, net.constant([-1])))
    return str(net.op("Expand", x, net.op("Where", same, ones, target), name="expanded"))


@pytest.mark.parametrize("width", ["kept", "stated", "read"])
def test_sizes_of_minus_one_are_kept_by_an_expansion(net: Net, width: str) -> None:
    """``token.expand(N, -1, C)``, and C as another ``-1``, as a number, or read from the features."""
    h = dynamic_tokens(net, 8)
    last = {"kept": lambda: number(net, -1), "stated": lambda: number(net, 8), "read": lambda: size(net, h, 2)}[width]()
    token = net.weight(1, 1, 8, name="token")
    tokens = expanded(net, token, listed(net, size(net, h, 0), number(net, -1), last))
    net.tokens_end(net.op("Concat", tokens, h, axis=1, name="joined"), 8)
    wide = widen(net)
    assert wide.shape("token") == (1, 1, 16)
    assert wide.shape("expanded") == (1, 1, 16)
    assert rerun(wide.proto, net, 3)["joined"].shape == (3, 6, 16)


def test_a_choice_between_sizes_that_numbers_decide(net: Net) -> None:
    """``max(T, 1)`` as Greater and Where: T is an input's, so that nothing is pinned by it."""
    h = net.op("Relu", net.tokens(6))
    h = net.dense(h, 6, 7, name="q")
    tokens = size(net, h, 1)
    kept = net.op("Where", net.op("Greater", tokens, number(net, 1)), tokens, number(net, 1))
    net.tokens_end(net.op("Reshape", h, listed(net, number(net, 1), kept, number(net, -1)), name="same"), 7)
    assert widen(net).shape("same") == (1, 5, 14)


@pytest.mark.parametrize(
    ("op", "limit", "grows"),
    [
        ("Greater", 4, True), ("Greater", 7, False), ("Greater", 9, False),
        ("Less", 4, True), ("Less", 9, False),
        ("Equal", 4, True), ("Equal", -1, True), ("Equal", 7, False), ("Equal", 9, False),
        ("GreaterOrEqual", 4, True), ("LessOrEqual", 4, True), ("LessOrEqual", 9, False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("flipped", [True, False])
def test_a_comparison_pins_a_width_only_if_growth_could_change_it(
    net: Net, op: str, limit: int, grows: bool, flipped: bool
) -> None:
    h = net.dense(net.op("Relu", net.tokens(6)), 6, 7, name="q")
    width, other = size(net, h, 2), number(net, limit)
    opposite = {"Greater": "Less", "Less": "Greater", "GreaterOrEqual": "LessOrEqual", "LessOrEqual": "GreaterOrEqual"}
    operands = (opposite.get(op, op), other, width) if flipped else (op, width, other)
    chosen = net.op(*operands, name="chosen")
    tokens = net.op("Where", chosen, number(net, 5), number(net, -1))
    last = net.op("Where", chosen, number(net, -1), number(net, 7))
    net.tokens_end(net.op("Reshape", h, listed(net, number(net, 1), tokens, last), name="same"), 7)
    wide = widen(net)
    assert wide.shape("same")[2] == (14 if grows else 7)
    assert wide.after["chosen"] == wide.before["chosen"]


def test_a_comparison_of_what_falls_while_the_width_grows_pins_it(net: Net) -> None:
    """``20 - C > 3`` holds for 7 and for no width beyond 16."""
    h = net.dense(net.op("Relu", net.tokens(6)), 6, 7, name="q")
    room = net.op("Sub", number(net, 20), size(net, h, 2))
    fits = net.op("Greater", room, number(net, 3), name="fits")
    tokens = net.op("Where", fits, number(net, 5), number(net, 1))
    net.tokens_end(net.op("Reshape", h, listed(net, number(net, 1), tokens, number(net, -1))), 7)
    wide = widen(net, "0.9")
    assert wide.after["fits"]
    assert wide.shape("q.weight") == (19, 7)


def test_a_size_is_true(net: Net) -> None:
    h = net.dense(net.op("Relu", net.tokens(6)), 6, 7, name="q")
    true = net.op("Cast", size(net, h, 2), to=TensorProto.BOOL)
    tokens = net.op("Where", true, number(net, 5), number(net, 1))
    net.tokens_end(net.op("Reshape", h, listed(net, number(net, 1), tokens, number(net, -1)), name="same"), 7)
    assert widen(net).shape("same") == (1, 5, 14)


# What leaves numbers as they are.


@pytest.mark.parametrize(
    "op", ["Identity", "Cast", "Squeeze", "Squeeze of all", "Reshape", "Expand", "Transpose", "Slice", "Gather", "And"]
)
def test_sizes_pass_operators_that_only_move_them(net: Net, op: str) -> None:
    h = net.dense(net.op("Relu", net.tokens(6)), 6, 7, name="q")
    width = net.op("Shape", h, start=2)
    if op == "Cast":
        width = net.op("Cast", net.op("Cast", width, to=TensorProto.INT32), to=TensorProto.INT64)
    elif op.startswith("Squeeze"):
        scalar = net.op("Squeeze", width, *([net.constant([0])] if op == "Squeeze" else []))
        width = net.op("Unsqueeze", scalar, net.constant([0]))
    elif op in ("Reshape", "Expand"):
        width = net.op(op, width, net.constant([1]))
    elif op == "Transpose":
        width = net.op(
            "Reshape", net.op("Transpose", net.op("Reshape", width, net.constant([-1, 1]))), net.constant([1])
        )
    elif op == "Slice":
        width = net.op("Slice", net.op("Shape", h), net.constant([-1]), net.constant([LAST]))
    elif op == "Gather":
        width = net.op("Gather", net.op("Shape", h), net.constant([-1]))
    elif op == "And":
        one, two = (net.op("Greater", width, net.constant([n])) for n in (1, 2))
        width = net.op("Where", net.op("And", one, two), width, net.constant([1]))
    else:
        width = net.op(op, width)
    net.tokens_end(net.op("Reshape", h, net.op("Concat", net.constant([1, -1]), width, axis=0), name="same"), 7)
    assert widen(net).shape("same") == (1, 5, 14)


# Several readers.


def test_one_computed_shape_for_two_reshapes(net: Net) -> None:
    """Both state the same width: one constant is rewritten once."""
    h = dynamic_tokens(net, 12)
    target = listed(net, size(net, h, 0), number(net, 5), number(net, 3), number(net, 4))
    a, b = (net.op("Reshape", x, target, name=name) for x, name in ((h, "a"), (net.op("Neg", h), "b")))
    both = net.op("Reshape", net.op("Sub", a, b), listed(net, size(net, h, 0), number(net, 5), number(net, 12)))
    net.tokens_end(both, 12)
    wide = widen(net)
    assert wide.shape("a") == wide.shape("b") == (1, 5, 3, 8)


def test_widths_that_one_computed_shape_states_grow_together(net: Net) -> None:
    h = dynamic_tokens(net, 12)
    target = listed(net, size(net, h, 0), number(net, 5), number(net, 12))
    a = net.op("Reshape", h, target, name="a")
    other = net.dense(net.op("Relu", net.dense(net.input("z", 1, 5, 4), 4, 6, name="z1")), 6, 12, name="z2")
    net.output(net.op("Reshape", other, target, name="b"))
    net.tokens_end(a, 12)
    wide = widen(net)
    # The second one is an output; the first one, which is not, must share its size.
    assert wide.shape("a") == wide.shape("b") == (1, 5, 12)
    assert "output" in wide.reason("before.weight")


@pytest.mark.parametrize("stated_first", [True, False])
def test_a_stated_size_that_something_is_computed_from_as_well_is_rewritten_for_both(
    net: Net, stated_first: bool
) -> None:
    """``[1, 5, 12]`` is the shape of the features, and its last number says how many tokens another input has."""
    h = net.dense(net.op("Relu", net.tokens(6)), 6, 12, name="q")
    target = net.op("Concat", net.constant([1, 5]), net.constant([12]), axis=0)
    if stated_first:
        net.op("Reshape", h, target, name="same")
    tokens = net.op("Sub", net.op("Gather", target, net.constant([2])), net.constant([7]))
    target2 = net.op("Concat", net.constant([1]), tokens, net.constant([-1]), axis=0)
    net.output(net.op("Reshape", net.input("z", 1, 5, 3), target2))
    if not stated_first:
        net.op("Reshape", h, target, name="same")
    net.tokens_end("same", 12)
    assert widen(net).shape("same") == (1, 5, 12)


def test_a_stated_size_and_what_is_computed_from_it_grow_together(net: Net) -> None:
    """The 12 of the first reshape is divided into heads for the second."""
    h = net.dense(net.op("Relu", net.tokens(6)), 6, 12, name="q")
    target = net.op("Concat", net.constant([1, 5]), net.constant([12]), axis=0)
    h = net.op("Reshape", h, target, name="same")
    head = net.op("Div", net.op("Gather", target, net.constant([2])), net.constant([3]), name="head_size")
    split = net.op("Reshape", h, net.op("Concat", net.constant([1, 5, 3]), head, axis=0), name="split")
    net.tokens_end(net.op("Reshape", split, target), 12)
    wide = widen(net)
    assert (wide.shape("same"), wide.shape("split")) == ((1, 5, 24), (1, 5, 3, 8))
