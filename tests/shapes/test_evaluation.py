"""Shapes behind numbers that a graph computes: against onnxruntime, and where nothing is certain."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nets import Net, run
from onnx import TensorProto, helper

from sift_onnx.errors import UnsupportedError
from sift_onnx.model import Model
from sift_onnx.passes import Wide
from sift_onnx.shapes.inference import infer_shapes, infer_values
from sift_onnx.shapes.input_binding import bind
from sift_onnx.shapes.numpy_ops import compute
from sift_onnx.shapes.tensor_specs import model_inputs

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def images(net: Net, height: int, width: int) -> str:
    return net.input("x", 1, 3, height, width, declared=["n", 3, "h", "w"])


def size(net: Net, x: str, axis: int) -> str:
    return str(net.op("Gather", net.op("Shape", x), net.constant(axis)))


def as_float(net: Net, value: str) -> str:
    return str(net.op("Cast", value, to=FLOAT))


def as_integer(net: Net, value: str) -> str:
    return str(net.op("Cast", value, to=INT64))


def listed(net: Net, *scalars: str) -> str:
    return str(net.op("Concat", *(net.op("Unsqueeze", s, net.constant([0])) for s in scalars), axis=0))


def compared(net: Net, proto: onnx.ModelProto | None = None) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors, which have to be those that come out of onnxruntime."""
    proto = net.model() if proto is None else proto
    model = Model.load(proto)
    shapes = infer_shapes(
        model, bind(model_inputs(model), {name: feed.shape for name, feed in net.feeds.items()}).shapes
    )
    made = {name: array.shape for name, array in run(proto, net.feeds).items()}
    assert {name: shapes.get(name) for name in made} == made
    return made


# Tables of positions.


def by_scales(net: Net, x: str, table: str) -> str:
    """As ``F.interpolate(table, scale_factor=((h / 14 + 0.1) / 5, ...))`` is exported."""
    parts = [
        net.op("Div", net.op("Add", as_float(net, net.op("Div", size(net, x, axis), net.constant(14))),
                             net.constant(0.1)), net.constant(5.0))
        for axis in (2, 3)
    ]  # fmt: skip
    scales = net.op("Concat", net.constant([1.0, 1.0]), listed(net, *parts), axis=0)
    return str(net.op("Resize", table, "", scales, mode="cubic", name="resized"))


def by_sizes(net: Net, x: str, table: str) -> str:
    """As ``F.interpolate(table, size=(h // 14, w // 14))`` is exported."""
    front = net.op("Slice", net.op("Shape", table), net.constant([0]), net.constant([2]), net.constant([0]))
    parts = [as_integer(net, as_integer(net, net.op("Div", size(net, x, axis), net.constant(14)))) for axis in (2, 3)]
    sizes = net.op("Concat", front, listed(net, *parts), axis=0)
    return str(net.op("Resize", table, "", "", sizes, mode="cubic", name="resized"))


@pytest.mark.parametrize("resize", [by_scales, by_sizes])
@pytest.mark.parametrize(("height", "width"), [(84, 84), (98, 70), (71, 97)])
def test_a_table_of_positions_is_resized_to_the_patches_of_an_image(
    resize: Callable[[Net, str, str], str], height: int, width: int
) -> None:
    net = Net()
    x = images(net, height, width)
    side = as_integer(net, net.op("Pow", net.constant(25.0), net.constant(0.5)))
    square = listed(net, net.constant(1), side, side, net.constant(8))
    table = net.op("Transpose", net.op("Reshape", net.weight(1, 25, 8), square), perm=[0, 3, 1, 2])
    net.output(net.op("Relu", resize(net, x, table)), 1, 8, height // 14, width // 14)
    assert compared(net)["resized"] == (1, 8, height // 14, width // 14)


def test_windows_that_an_image_is_padded_to() -> None:
    """``x`` is padded to windows of 7 and cut into them, as Swin and BEiT do it for images of any size."""
    net = Net()
    x = images(net, 17, 30)
    seven = net.constant(7)
    pads = [net.op("Mod", net.op("Sub", seven, net.op("Mod", size(net, x, axis), seven)), seven) for axis in (2, 3)]
    zeros = net.constant([0, 0, 0, 0, 0, 0])
    padded = net.op("Pad", x, net.op("Concat", zeros, listed(net, *pads), axis=0), name="padded")
    counts = [net.op("Div", size(net, padded, axis), seven) for axis in (2, 3)]
    cut = [size(net, padded, 0), size(net, padded, 1), counts[0], seven, counts[1], seven]
    net.output(net.op("Reshape", padded, listed(net, *cut), name="windows"), 1, 3, 3, 7, 5, 7)
    assert compared(net)["windows"] == (1, 3, 3, 7, 5, 7)


# What is known, and what is not.


def shapes_of(net: Net) -> dict[str, tuple[int | None, ...]]:
    model = Model.load(net.model())
    return infer_shapes(model, bind(model_inputs(model), {name: feed.shape for name, feed in net.feeds.items()}).shapes)


def filled(net: Net, count: str) -> None:
    """An output of ``count`` elements."""
    net.output(net.op("Expand", net.constant(1.0), listed(net, count), name="filled"), 0)


def test_one_known_size_of_a_tensor_is_enough() -> None:
    net = Net()
    strange = net.op("Mystery", net.input("x", 1, 6), domain="nobody", name="strange")
    net.value_infos.append(helper.make_tensor_value_info(strange, FLOAT, ["found", 9]))
    half = net.op("Div", as_float(net, size(net, strange, 1)), net.constant(2.0))
    filled(net, as_integer(net, half))
    assert shapes_of(net)["filled"] == (4,)
    net = Net()
    strange = net.op("Mystery", net.input("x", 1, 6), domain="nobody", name="strange")
    net.value_infos.append(helper.make_tensor_value_info(strange, FLOAT, ["found", 9]))
    filled(net, as_integer(net, net.op("Div", as_float(net, size(net, strange, 0)), net.constant(2.0))))
    assert shapes_of(net)["filled"] == (None,)


def test_a_size_that_is_found_is_found_wherever_it_stands() -> None:
    """Data propagation has given it a name, and that name goes through a branch."""
    net = Net()
    x = net.input("x", 9, 4)
    half = net.op(
        "Expand", net.constant(1.0), listed(net, net.op("Div", size(net, x, 0), net.constant(2))), name="half"
    )
    made = helper.make_empty_tensor_value_info("made")
    branch = helper.make_graph([helper.make_node("Relu", ["half"], ["made"])], "b", [], [made])
    flag = net.op("Cast", net.constant(1), to=TensorProto.BOOL)
    chosen = net.op("If", flag, then_branch=branch, else_branch=branch, name="chosen")
    net.output(net.op("Relu", chosen, name="behind"), 4)
    found = shapes_of(net)
    assert (found[half], found["behind"]) == ((4,), (4,))


@pytest.mark.parametrize("repeats", [[1, 1], [2, 3], [0, 2]])
def test_a_tensor_of_sizes_is_tiled(repeats: list[int]) -> None:
    net = Net()
    x = images(net, 4, 2)
    sizes = net.op(
        "Reshape", net.op("Slice", net.op("Shape", x), *(net.constant([n]) for n in (2, 4))), net.constant([1, 2])
    )
    flat = net.op("Reshape", net.op("Tile", sizes, net.constant(repeats)), net.constant([-1]))
    net.output(net.op("ConstantOfShape", flat))
    compared(net)


def test_what_is_tiled_is_neither_large_nor_of_another_rank() -> None:
    row, matrix = np.arange(3), np.arange(6).reshape(2, 3)
    made = compute("Tile", [matrix, np.array([1, 2])], {})
    assert made is not None
    assert made[0].tolist() == [[0, 1, 2, 0, 1, 2], [3, 4, 5, 3, 4, 5]]
    for array, repeats in ((row, [1 << 40]), (matrix, [2]), (row, [1, 2]), (row, [-1]), (row, [1.0])):
        assert compute("Tile", [array, np.array(repeats)], {}) is None
    # Before opset 6, of one axis.
    assert compute("Tile", [row, np.array(2), np.array(0)], {}) is None


@pytest.mark.parametrize(
    ("values", "operators"),
    [
        ([np.float16(0.1)], ["Mul"]),  # half precision is rounded after each node, or after several
        ([np.float32(0.0)], ["Div"]),  # infinity
        ([np.float32(2.5)], ["Pow"]),  # runtimes round powers in ways of their own
        ([np.int64(0)], ["Div"]),
        ([np.int64(0)], ["Mod"]),
    ],
)
def test_what_runtimes_may_compute_in_different_ways_stays_open(values: list[np.generic], operators: list[str]) -> None:
    net = Net()
    x = net.input("x", 7, 3)
    kind = helper.np_dtype_to_tensor_dtype(values[0].dtype)
    number = net.op("Cast", size(net, x, 0), to=kind)
    for op, value in zip(operators, values, strict=True):
        number = net.op(op, number, net.constant(value, dtype=value.dtype))
    filled(net, as_integer(net, number))
    assert shapes_of(net)["filled"] == (None,)


def test_half_precision_is_followed_where_nothing_is_rounded() -> None:
    net = Net()
    number = net.op("Cast", size(net, net.input("x", 14, 3), 0), to=TensorProto.FLOAT16)
    filled(net, as_integer(net, net.op("Floor", net.op("Mul", number, net.constant(0.25, dtype=np.float16)))))
    assert compared(net)["filled"] == (3,)


def test_nodes_that_another_stands_for_are_not_computed() -> None:
    """Shape inference takes a Binarizer for an Identity, and its threshold is one of the numbers here."""
    net = Net()
    number = as_float(net, listed(net, size(net, net.input("x", 7, 3), 0)))
    one = net.op("Binarizer", number, threshold=2.0, domain="ai.onnx.ml", name="one")
    net.output(net.op("Expand", net.constant(1.0), as_integer(net, one), name="filled"), 1)
    assert shapes_of(net)["filled"] == (None,)
    assert run(net.model(), net.feeds)["filled"].shape == (1,)


def test_long_tensors_are_not_computed() -> None:
    net = Net()
    count = as_integer(net, net.op("Mul", as_float(net, size(net, net.input("x", 7, 3), 0)), net.constant(2.0**31)))
    numbers = net.op("Range", net.constant(0), count, net.constant(1), name="numbers")
    net.output(net.op("ReduceMax", numbers, keepdims=0, name="last"))
    proto = net.model()
    inferred, values = infer_values(proto)
    sizes = {info.name: [d.dim_value for d in info.type.tensor_type.shape.dim] for info in inferred.graph.value_info}
    assert sizes["numbers"] == [7 * 2**31]
    assert not {"numbers", "last"}.intersection(values)


def test_computed_sizes_that_contradict_each_other_are_refused() -> None:
    net = Net()
    x = net.input("x", 9, 4)
    half = as_integer(net, net.op("Div", as_float(net, size(net, x, 0)), net.constant(2.0)))
    three = net.op("Expand", net.constant(1.0), listed(net, half))
    net.output(net.op("Add", three, net.constant([1.0, 2.0, 3.0]), name="sum"), 3)
    with pytest.raises(UnsupportedError, match=r"node 'sum' \(Add\) contradicts the sizes that are computed for it: "):
        shapes_of(net)


def test_numbers_go_through_local_functions() -> None:
    net = Net()
    nodes = [
        helper.make_node("Cast", ["whole"], ["number"], to=FLOAT),
        helper.make_node("Constant", [], ["two"], value_float=2.0),
        helper.make_node("Div", ["number", "two"], ["quotient"]),
        helper.make_node("Cast", ["quotient"], ["half"], to=INT64),
    ]
    net.functions.append(
        helper.make_function("local", "Half", ["whole"], ["half"], nodes, [helper.make_opsetid("", 20)])
    )
    filled(net, net.op("Half", size(net, net.input("x", 9, 4), 0), domain="local"))
    assert shapes_of(net)["filled"] == (4,)


@pytest.mark.parametrize("op", ["If", "Loop", "Scan", "SequenceAt"])
def test_a_size_that_goes_through_control_flow_or_a_sequence_is_refused_by_name(op: str) -> None:
    net = Net()
    h = net.op("Relu", net.tokens(8))
    half = net.op("Div", size(net, h, 2), net.constant(2))
    element, yes = (
        helper.make_tensor_value_info("inner", INT64, []),
        net.op("Cast", net.constant(1), to=TensorProto.BOOL),
    )
    out = helper.make_tensor_value_info("kept", INT64, [])
    copied = helper.make_node("Identity", ["inner"], ["kept"])
    if op == "If":
        captured = helper.make_graph([helper.make_node("Identity", [half], ["kept"])], "b", [], [out])
        # What constants decide is taken.
        open_choice = net.input("choice", values=np.array(True))
        stopped = net.op("If", open_choice, then_branch=captured, else_branch=captured, name="stop")
    elif op == "Loop":
        going = helper.make_tensor_value_info("going", TensorProto.BOOL, [])
        again = helper.make_tensor_value_info("again", TensorProto.BOOL, [])
        turn = helper.make_tensor_value_info("turn", INT64, [])
        keep = helper.make_node("Identity", ["going"], ["again"])
        body = helper.make_graph([copied, keep], "b", [turn, going, element], [again, out])
        stopped = net.op("Loop", net.constant(1), yes, half, body=body, name="stop")
    elif op == "Scan":
        body = helper.make_graph([copied], "b", [element], [out])
        stopped = net.op("Squeeze", net.op("Scan", listed(net, half), body=body, num_scan_inputs=1, name="stop"))
    else:
        stopped = net.op("SequenceAt", net.op("SequenceConstruct", half), net.constant(0), name="stop")
    rows = net.op("Reshape", h, listed(net, net.constant(1), net.constant(-1), stopped), name="rows")
    net.output(net.dense(net.op("Relu", rows), 4, 2, name="head"), 1, 10, 2)
    report = Wide("0.5")(net.model()).report
    (warning,) = report["warnings"]
    stop = (
        f"'rows' (ai.onnx::Reshape), by numbers that node 'stop' (ai.onnx::{op}) makes: the sizes of its output 'rows'"
    )
    if op == "Loop":
        stop = "'stop' (ai.onnx::Loop): the sizes of its output 'stop'"
    assert f"'head.weight' (MatMul 'head'), since shape inference stops at node {stop} are not known" in warning


# Whatever chains of arithmetic come along.

UNARY = ["Abs", "Ceil", "Floor", "Neg", "Reciprocal", "Round", "Sign", "Sqrt"]
BINARY = ["Add", "Div", "Max", "Min", "Mul", "Pow", "Sub"]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(UNARY), st.none()),
        st.tuples(st.sampled_from(BINARY), st.sampled_from([0.1, 0.5, 0.7, 1.5, 2.0, 3.0, 14.0])),
        st.tuples(st.sampled_from(["Floor", "Ceil", "Round"]), st.none()),
        st.tuples(st.just("integer"), st.none()),
    ),
    min_size=1,
    max_size=7,
)


def chain(net: Net, value: str, steps: list[tuple[str, float | None]]) -> str:
    """A size that is taken through the steps in floating point, and is 1 to 64 in the end."""
    value = as_float(net, value)
    for op, operand in steps:
        if op == "integer":
            value = as_float(net, as_integer(net, net.op("Clip", value, net.constant(-1e6), net.constant(1e6))))
        elif operand is None:
            value = net.op(op, net.op("Abs", value) if op == "Sqrt" else value)
        else:
            value = net.op(op, net.op("Abs", value) if op == "Pow" else value, net.constant(operand))
    bounded = net.op("Min", net.op("Max", value, net.constant(1.0)), net.constant(64.0))
    return as_integer(net, bounded)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, height=st.integers(1, 300), width=st.integers(1, 300))
def test_evaluated_shapes_are_those_of_onnxruntime(
    steps: list[tuple[str, float | None]], height: int, width: int
) -> None:
    net = Net()
    x = net.input("x", 1, 3, height, width)
    sizes = [chain(net, size(net, x, axis), steps) for axis in (2, 3)]
    net.output(net.op("Expand", net.constant(1.0), listed(net, *sizes), name="filled"), 0, 0)
    proto = net.model()
    made = run(proto, net.feeds)
    model = Model.load(proto)
    shapes = infer_shapes(model, bind(model_inputs(model)).shapes)
    found = {name: shape for name, shape in shapes.items() if name in made and None not in shape}
    assert found == {name: made[name].shape for name in found}
    values = infer_values(proto)[1]
    assert all(np.array_equal(values[name], made[name], equal_nan=True) for name in values)
    # What a runtime makes of infinity and of powers that are rounded is not certain.
    scalars = [array for array in made.values() if array.dtype == np.float32 and array.ndim == 0]
    assert "filled" in found or not np.isfinite(scalars).all() or "Pow" in dict(steps)
