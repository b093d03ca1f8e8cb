"""Sizes computed in floating point, and by the rarer operators: linear ones are followed, all others stay."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from nets import Net, run, widen
from onnx import TensorProto
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

from sift_onnx.analysis.graph_analysis import analyze
from sift_onnx.model import Model

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
NOT_LINEAR = "a computation that is not linear uses it"


def as_float(net: Net, value: str, kind: int = FLOAT) -> str:
    return str(net.op("Cast", value, to=kind))


def as_integer(net: Net, value: str, name: str = "") -> str:
    return str(net.op("Cast", value, to=INT64, name=name))


def size(net: Net, x: str, axis: int) -> str:
    return str(net.op("Gather", net.op("Shape", x), net.constant(axis), axis=0))


def listed(net: Net, *scalars: str) -> str:
    return str(net.op("Concat", *(net.op("Unsqueeze", s, net.constant([0])) for s in scalars), axis=0))


def folded(net: Net, h: str, width: int, part: str) -> None:
    """``h [1, 5, width]`` seen as rows of ``part`` features, and back."""
    rows = net.op("Reshape", h, listed(net, net.constant(1), net.constant(-1), part), name="rows")
    back = net.op("Reshape", net.op("Relu", rows), listed(net, net.constant(1), net.constant(5), net.constant(-1)))
    net.tokens_end(back, width)


# Linear: the width grows, and what is computed of it with it.


@pytest.mark.parametrize("kind", [FLOAT, TensorProto.DOUBLE])
@pytest.mark.parametrize("how", ["times a half", "by two", "by two and rounded down", "sum and difference"])
def test_half_of_a_width_in_floating_point_grows_with_it(net: Net, how: str, kind: int) -> None:
    h = net.op("Relu", net.tokens(8))
    width = as_float(net, size(net, h, 2), kind)

    def number(value: float) -> str:
        return as_float(net, net.constant(value), kind)

    half = net.op("Mul", width, number(0.5)) if how == "times a half" else net.op("Div", width, number(2.0))
    if how == "by two and rounded down":
        half = net.op("Floor", half)
    elif how == "sum and difference":
        half = net.op("Sub", net.op("Add", half, number(3.0)), number(3.0))
    folded(net, h, 8, as_integer(net, half, "half"))
    wide = widen(net)
    assert wide.after["half"] == 8
    assert wide.shape("rows") == (1, 10, 8)
    assert wide.status("before.weight") == "sparse"


def test_a_width_that_is_halved_stays_even(net: Net) -> None:
    h = net.op("Relu", net.tokens(10))
    folded(net, h, 10, as_integer(net, net.op("Div", as_float(net, size(net, h, 2)), net.constant(2.0)), "half"))
    wide = widen(net, 0.2)
    assert wide.shape("before.weight")[1] == 2 * int(wide.after["half"]) > 10


def test_a_width_over_itself_is_the_factor_of_a_resize_that_channels_pass(net: Net) -> None:
    h = net.op("Relu", net.images(8))
    channels = as_float(net, size(net, h, 1))
    one = net.op("Div", channels, channels)
    scales = listed(net, net.constant(1.0), one, net.constant(2.0), net.constant(2.0))
    net.images_end(net.op("Resize", h, "", scales, mode="nearest", name="resized"), 8)
    assert widen(net).shape("resized") == (1, 16, 16, 16)


# What is not linear keeps the sizes that it is computed from, and says so.


@pytest.mark.parametrize("op", ["Floor", "Ceil", "Round"])
def test_a_width_whose_third_is_rounded_stays(net: Net, op: str) -> None:
    h = net.op("Relu", net.tokens(8))
    third = as_integer(net, net.op(op, net.op("Div", as_float(net, size(net, h, 2)), net.constant(3.0))))
    folded(net, h, 8, net.op("Sub", net.op("Mul", third, net.constant(2)), net.constant(2 if op != "Floor" else 0)))
    wide = widen(net)
    assert wide.shape("rows") == (1, 10, 4)
    assert NOT_LINEAR in wide.reason("before.weight")


def test_the_root_of_a_width_keeps_it_where_a_size_is_made_of_it(net: Net) -> None:
    h = net.op("Relu", net.tokens(16))
    folded(net, h, 16, as_integer(net, net.op("Sqrt", as_float(net, size(net, h, 2)))))
    wide = widen(net)
    assert wide.shape("rows") == (1, 20, 4)
    assert NOT_LINEAR in wide.reason("before.weight")


def test_the_root_of_a_width_that_only_scales_keeps_nothing(net: Net) -> None:
    h = net.op("Relu", net.tokens(16))
    net.tokens_end(net.op("Div", h, net.op("Sqrt", as_float(net, size(net, h, 2)))), 16)
    assert widen(net).shape("before.weight") == (12, 32)


def test_a_width_behind_the_factor_of_a_resize_stays(net: Net) -> None:
    h = net.op("Relu", net.images(8))
    factor = net.op("Div", as_float(net, size(net, h, 1)), net.constant(4.0))
    scales = net.op("Concat", net.constant([1.0, 1.0]), listed(net, factor, factor), axis=0)
    net.images_end(net.op("Resize", h, "", scales, mode="nearest", name="resized"), 8)
    wide = widen(net)
    assert wide.shape("resized") == (1, 8, 16, 16)
    assert "it is computed into the factor of a resize" in wide.reason("before.weight")


def test_a_width_that_an_operator_nobody_knows_reads_as_a_float_stays(net: Net) -> None:
    h = net.op("Relu", net.tokens(8))
    net.op("Mystery", net.op("Sqrt", as_float(net, size(net, h, 2))), domain="nobody")
    net.tokens_end(h, 8)
    analysis = analyze(Model.load(net.model()))
    axis = analysis.layers["before.weight"].axes[1]
    cause = analysis.system.why_pinned(axis.size)
    assert cause is not None
    assert cause.reason == "no rule covers nobody::Mystery"


def test_each_element_of_a_vector_keeps_what_it_is_computed_from(net: Net) -> None:
    """``torch.tensor(x.shape) * scales`` of old exports: the channels are not what is stretched."""
    h = net.op("Relu", net.images(8))
    sizes = as_float(net, net.op("Shape", h))
    stretched = as_integer(net, net.op("Floor", net.op("Mul", sizes, net.constant([1.0, 1.0, 1.5, 1.3]))))
    net.images_end(net.op("Resize", h, "", "", stretched, mode="nearest", name="resized"), 8)
    wide = widen(net)
    assert wide.shape("resized") == (1, 16, 12, 10)
    assert wide.status("before.weight") == "sparse"


# The rarer operators on integers.


@pytest.mark.parametrize("how", ["Neg", "Abs", "ReduceMax", "ReduceSum", "Clip", "Split", "Pow", "Sign"])
def test_integers_go_through_rarer_operators(net: Net, how: str) -> None:
    h = net.op("Relu", net.tokens(8))
    shape = net.op("Shape", h)
    width = net.op("Gather", shape, net.constant(2))
    if how == "Split":
        part = net.op("Squeeze", net.op("Split", shape, outputs=3, num_outputs=3)[2], net.constant([0]))
    elif how == "ReduceMax":
        part = net.op("ReduceMax", shape, keepdims=0)
    elif how == "ReduceSum":
        part = net.op("Sub", net.op("ReduceSum", shape, keepdims=0), net.constant(6))
    elif how == "Neg":
        part = net.op("Neg", net.op("Neg", width))
    elif how == "Sign":
        part = net.op("Mul", width, net.op("Sign", width))
    elif how == "Pow":
        part = net.op("Div", net.op("Pow", width, net.constant(2)), width)
    else:
        part = net.op(how, width)
    folded(net, h, 8, part)
    wide = widen(net)
    grows = how in ("Neg", "Split")
    assert wide.shape("rows") == ((1, 5, 16) if grows else (1, 5, 8))
    assert grows or NOT_LINEAR in wide.reason("before.weight")


def test_a_division_that_rounds_down_as_torchscript_writes_it(net: Net) -> None:
    """``x.shape[2] // 2``: quotient, remainder, and one less where their signs differ."""
    h = net.op("Relu", net.tokens(8))
    width, two, zero = size(net, h, 2), net.constant(2), net.constant(0)
    signs = net.op("Xor", net.op("Less", width, zero), net.op("Less", two, zero))
    left = net.op("Not", net.op("Equal", net.op("Mod", width, two), zero))
    less = as_integer(net, net.op("And", signs, left))
    folded(net, h, 8, net.op("Sub", net.op("Div", width, two), less))
    wide = widen(net)
    assert wide.shape("rows") == (1, 10, 8)


# Whatever chain: what is predicted is what comes out, in front of and behind a wider model.

STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["Add", "Sub", "Mul", "Div"]), st.sampled_from([0.5, 1.0, 2.0, 3.0])),
        st.tuples(st.sampled_from(["Floor", "Ceil", "Round", "Abs", "Neg", "integer"]), st.none()),
    ),
    max_size=6,
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, width=st.integers(4, 12), sparsity=st.sampled_from([0.3, 0.5, 0.75]))
def test_shapes_behind_any_chain_are_predicted(
    steps: list[tuple[str, float | None]], width: int, sparsity: float
) -> None:
    net = Net()
    h = net.op("Relu", net.tokens(width))
    value = as_float(net, size(net, h, 2))
    for op, operand in steps:
        if op == "integer":
            value = as_float(net, as_integer(net, value))
        else:
            value = net.op(op, value) if operand is None else net.op(op, value, net.constant(operand))
    filled = net.op("Expand", net.constant([1.0]), listed(net, as_integer(net, value)), name="filled")
    net.output(net.op("ReduceMax", filled, keepdims=1), 1)
    net.tokens_end(h, width)
    try:
        count = len(run(net.model(), net.feeds)["filled"])
    except (Fail, InvalidArgument, RuntimeException):
        count = 0
    assume(count)
    widen(net, sparsity)
