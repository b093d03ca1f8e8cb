"""What is known of sizes before a run, against what they are in one."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from nets import Net, run
from random_graphs import RandomGraph, graphs

from sift_onnx.backends.lowering.dims import added, bound, cut, product
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.model import Model


def view_of(net: Net) -> GraphView:
    return GraphView(Model.load(net.model()))


def dynamic() -> tuple[Net, str]:
    net = Net(opset=17)
    return net, net.input("x", 2, 5, 12, declared=["n", "t", 12])


def size(net: Net, x: str, axis: int) -> str:
    """One axis of x, as torch.onnx writes it."""
    return str(net.op("Unsqueeze", net.op("Gather", net.op("Shape", x), net.constant(axis)), net.constant([0])))


def test_targets_of_reshapes_are_put_together_from_sizes() -> None:
    net, x = dynamic()
    target = net.op("Concat", size(net, x, 0), size(net, x, 1), net.constant([-1]), net.constant([3]), axis=0)
    heads = net.op("Reshape", x, target, name="heads")
    turned = net.op("Transpose", heads, perm=[0, 2, 3, 1], name="turned")
    net.output(net.op("Reshape", turned, net.constant([0, -1, 3, 1]), name="whole"), 2, 20, 3, 1)
    graph = view_of(net)
    assert graph.dims("heads") == ("n", "t", 4, 3)
    assert graph.dims("turned") == ("n", 4, 3, "t")
    assert graph.dims("whole") == ("n", product((4, "t")), 3, 1)


def test_sizes_pass_quantized_operators() -> None:
    """Reshapes behind them take their targets from sizes of what they make."""
    net, x = dynamic()
    bytes_, scale, zero = net.op("DynamicQuantizeLinear", x, outputs=3)
    weights = net.constant(np.ones((12, 20), np.int8))
    sums = net.op("MatMulInteger", bytes_, weights, zero, name="sums")
    floats = net.op("Mul", net.op("Cast", sums, to=1), scale)
    step, offset = net.constant(np.float32(0.1)), net.constant(np.uint8(3))
    rounded = net.op("DequantizeLinear", net.op("QuantizeLinear", floats, step, offset), step, offset, name="rounded")
    target = net.op("Concat", net.op("Slice", net.op("Shape", rounded), net.constant([0]), net.constant([2])),
                    net.constant([4, -1]), axis=0)  # fmt: skip
    heads = net.op("Reshape", rounded, target, name="heads")
    kernel = net.constant(np.ones((6, 5, 1, 1), np.uint8))
    quads = net.op("QuantizeLinear", net.op("Transpose", heads, perm=[0, 3, 2, 1]), step, offset)
    made = net.op("QLinearConv", quads, step, offset, kernel, step, offset, step, offset, name="made")
    net.op("ConvInteger", quads, kernel, name="integers")
    square = net.constant(np.ones((20, 7), np.uint8))
    of_rows = net.op("QuantizeLinear", rounded, step, offset)
    net.op("QLinearMatMul", of_rows, step, offset, square, step, offset, step, offset, name="product")
    net.output(net.op("DequantizeLinear", made, step, offset), 2, 6, 4, 5)
    graph = view_of(net)
    assert graph.dims("sums") == graph.dims("rounded") == ("n", "t", 20)
    assert graph.dims("heads") == ("n", "t", 4, 5)
    assert graph.dims("made") == graph.dims("integers") == ("n", 6, 4, "t")
    assert graph.dims("product") == ("n", "t", 7)


def test_a_part_of_a_shape_and_a_product_of_sizes() -> None:
    net, x = dynamic()
    shape = net.op("Shape", x)
    front = net.op("Slice", shape, net.constant([0]), net.constant([2]))
    rows = net.op("Mul", size(net, x, 0), size(net, x, 1))
    flat = net.op("Reshape", x, net.op("Concat", rows, net.constant([-1]), axis=0), name="flat")
    back = net.op("Concat", front, net.constant([12]), axis=0)
    net.output(net.op("Reshape", flat, back, name="back"), 2, 5, 12)
    graph = view_of(net)
    assert graph.dims("flat") == (product(("n", "t")), 12)
    assert graph.dims("back") == ("n", "t", 12)


def test_products_and_maxima_of_parts_of_a_shape() -> None:
    """As tf2onnx writes the batches of an Einsum: all in one axis, and again as those of both operands."""
    net, x = dynamic()
    batches = [net.op("Gather", net.op("Shape", value), net.constant([0, 1])) for value in (x, net.op("Relu", x))]
    for keepdims in (0, 1):
        flat = net.op("ReduceProd", batches[0], keepdims=keepdims)
        flat = flat if keepdims else net.op("Unsqueeze", flat, net.constant([0]))
        net.op("Reshape", x, net.op("Concat", flat, net.constant([-1, 3]), axis=0), name=f"flat{keepdims}")
    back = net.op("Concat", net.op("Max", *batches, name="larger"), net.constant([12]), axis=0)
    net.output(net.op("Reshape", net.op("Add", "flat0", "flat1"), back, name="back"), 2, 5, 12)
    graph = view_of(net)
    assert graph.dims("flat0") == graph.dims("flat1") == (product(("n", "t")), 4, 3)
    assert graph.vector("larger") == ("n", "t")
    assert graph.dims("back") == ("n", "t", 12)


def test_the_larger_of_different_sizes_is_an_expression() -> None:
    net, x = dynamic()
    sizes = net.op("Shape", x)
    net.op("Max", sizes, net.constant([7]), name="open")
    net.op("Min", sizes, net.constant([0]), name="none")
    net.op("Max", net.op("Gather", sizes, net.constant([2])), net.constant([7]), name="known")
    net.output(net.op("Relu", x), 2, 5, 12)
    graph = view_of(net)
    found = graph.vector("open")
    assert found is not None
    assert [bound(size, {"n": 9, "t": 3}) for size in found] == [9, 7, 12]
    assert graph.vector("none") == (0, 0, 0)
    assert graph.vector("known") == (12,)


def test_a_scale_is_computed_from_a_known_axis() -> None:
    net, x = dynamic()
    last = net.op("Slice", net.op("Shape", x), net.constant([-1]), net.constant([2**63 - 1]))
    root = net.op("Sqrt", net.op("Cast", last, to=onnx.TensorProto.FLOAT))
    net.output(net.op("Mul", x, net.op("Sqrt", net.op("Div", net.constant([1.0]), root), name="scale")), 2, 5, 12)
    assert view_of(net).number("scale") == pytest.approx(12**-0.25)


def test_a_division_of_integers_is_rounded_towards_zero() -> None:
    net, x = dynamic()
    last = net.op("Gather", net.op("Shape", x), net.constant(2))
    fifth = net.op("Div", last, net.constant(5), name="fifth")
    net.output(net.op("Mul", x, net.op("Cast", fifth, to=onnx.TensorProto.FLOAT, name="scale")), 2, 5, 12)
    graph = view_of(net)
    assert graph.vector("fifth") == (2,)
    assert graph.number("scale") == 2


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ((["n", "t", 12], ["n", 1, 12]), ("n", "t", 12)),
        ((["n", 1, 12], [12]), ("n", 1, 12)),
        ((["n", 12], [1, 12]), ("n", 12)),
    ],
)
def test_broadcasting(shapes: tuple[list[Any], list[Any]], expected: tuple[Any, ...]) -> None:
    net = Net(opset=17)
    sizes = {"n": 2, "t": 5}
    names = [
        net.input(f"x{i}", *(sizes.get(dim, dim) for dim in shape), declared=shape) for i, shape in enumerate(shapes)
    ]
    net.output(net.op("Identity", net.op("Add", *names, name="sum"), name="y"), *(sizes.get(d, d) for d in expected))
    assert view_of(net).dims("sum") == expected


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(graph=graphs())
def test_known_sizes_are_those_of_a_run(graph: RandomGraph) -> None:
    proto = graph.model()
    view = GraphView(Model.load(proto))
    symbols: dict[object, int] = {}
    for name, feed in graph.feeds.items():
        symbols.update(zip(view.dims(name) or (), feed.shape, strict=True))
    for name, array in run(proto, graph.feeds).items():
        for dim, actual in zip(view.dims(name) or array.shape, array.shape, strict=True):
            assert symbols.setdefault(dim, actual) == actual if isinstance(dim, str) else True
            assert dim == actual or not isinstance(dim, int), (name, view.dims(name), array.shape)
        vector = view.vector(name)
        if vector is not None and name not in view.constants:
            for dim, actual in zip(vector, np.atleast_1d(array), strict=True):
                assert dim == actual or not isinstance(dim, int), (name, vector, array)


def test_sizes_of_tables_masks_and_joined_values() -> None:
    net, x = dynamic()
    length = size(net, x, 1)
    table = net.op("Slice", net.weight(1, 9, 12), net.constant([0]), length, net.constant([1]), name="table")
    net.op("Add", x, table, name="sum")
    net.op("Range", net.constant(0), net.op("Squeeze", length), net.constant(1), name="places")
    shape = net.op("Concat", size(net, x, 0), net.constant([-1]), net.constant([12]), axis=0)
    ones = net.op("ConstantOfShape", net.constant([3]), value=onnx.numpy_helper.from_array(np.ones(1, np.int64)))
    target = net.op("Where", net.op("Equal", shape, net.constant([-1, -1, -1])), ones, shape)
    token = net.op("Expand", net.weight(1, 1, 12), target, name="token")
    net.op("Gemm", net.op("Reshape", x, net.constant([-1, 12])), net.weight(12, 7), name="gemm")
    net.output(net.op("Concat", token, token, axis=1, name="joined"), 2, 2, 12)
    graph = view_of(net)
    assert graph.dims("table") == (1, ("cut", 9, "t"), 12)
    assert graph.dims("sum") == ("n", "t", 12)
    assert graph.dims("places") == ("t",)
    assert graph.dims("token") == ("n", 1, 12)
    assert graph.dims("gemm") == (product(("n", "t")), 7)
    assert graph.dims("joined") == ("n", 2, 12)


def test_sizes_of_positions_that_are_counted() -> None:
    """EdgeNeXt's: ones of the image's sizes are summed up, and joined with it later on."""
    net = Net(opset=13)
    x = net.input("x", 2, 3, 4, declared=["n", 3, 4])
    ones = net.op("Clip", net.op("ConstantOfShape", net.op("Shape", x)), net.constant(1.0))
    counted = net.op("CumSum", ones, net.constant(1), name="counted")
    net.output(net.op("ReduceL2", net.op("Concat", counted, x, axis=2), axes=[2], name="lengths"), 2, 3, 1)
    graph = view_of(net)
    assert graph.dims("counted") == ("n", 3, 4)
    assert graph.dims("lengths") == ("n", 3, 1)


def test_sizes_of_means() -> None:
    net, x = dynamic()
    net.op("ReduceMean", x, axes=[-1], name="kept")
    net.op("ReduceMean", x, axes=[1], keepdims=0, name="dropped")
    net.output(net.op("GlobalAveragePool", x, name="pooled"), 2, 5, 1)
    graph = view_of(net)
    assert graph.dims("kept") == ("n", "t", 1)
    assert graph.dims("dropped") == ("n", 12)
    assert graph.dims("pooled") == ("n", "t", 1)


def test_a_length_that_a_reshape_fixes_is_known_everywhere() -> None:
    net, x = dynamic()
    net.op("Reshape", x, net.op("Concat", net.constant([5]), size(net, x, 0), net.constant([12]), axis=0), name="fixed")
    net.output(net.op("Relu", x, name="y"), 2, 5, 12)
    assert view_of(net).dims("y") == ("n", 5, 12)


def test_what_follows_from_constants_and_sizes_is_folded() -> None:
    net, x = dynamic()
    last = net.op("Slice", net.op("Shape", x), net.constant([2]), net.constant([3]))
    table = net.op("Reshape", net.constant(np.arange(24.0)), net.op("Concat", net.constant([-1]), last, axis=0))
    turned = net.op("Transpose", table, perm=[1, 0], name="turned")
    net.output(net.op("MatMul", x, turned, name="y"), 2, 5, 2)
    graph = view_of(net)
    assert graph.fold("turned")
    np.testing.assert_array_equal(graph.values_of("turned"), np.arange(24.0).reshape(2, 12).T)
    assert not graph.fold("y")
    assert not graph.fold(x)


@pytest.mark.parametrize("opset", [13, 17])
def test_sizes_go_on_behind_a_group_normalization(opset: int) -> None:
    """Before opset 15, ONNX does not follow the Shape that torch's exporter gives the second Reshape."""
    net = Net(opset=opset)
    x = net.conv(net.input("x", 2, 3, 9, 8, declared=["n", 3, 9, 8]), 3, 8, 3, name="first")
    groups = net.op("Reshape", x, net.constant([0, 4, -1]))
    ones, zeros = net.constant(np.ones(4)), net.constant(np.zeros(4))
    x = net.op("Reshape", net.op("InstanceNormalization", groups, ones, zeros), net.op("Shape", x), name="normal")
    x = net.conv(net.op("MaxPool", x, kernel_shape=[3, 2], strides=[2, 2], name="pooled"), 8, 5, 3, name="last")
    x = net.op("ConvTranspose", x, net.weight(5, 2, 3, 2), strides=[2, 3], pads=[1, 0, 0, 1], name="larger", group=1)
    net.output(x)
    graph = view_of(net)
    assert graph.dims("normal") == ("n", 8, 9, 8)
    assert graph.dims("pooled") == ("n", 8, 4, 4)
    assert graph.dims("last") == ("n", 5, 4, 4)
    assert graph.dims("larger") == ("n", 2, 8, 10) == ("n", *run(net.model(), net.feeds)["larger"].shape[1:])


def test_sizes_of_sums_of_products_and_of_repetitions() -> None:
    net, x = dynamic()
    y = net.input("y", 2, 1, 5, declared=["n", 1, "t"])
    net.op("Einsum", x, y, equation="btd,bkt->bdk", name="sum")
    net.op("Einsum", x, y, equation="...td,...kt", name="implicit")
    repeats = net.op("Concat", net.constant([1]), size(net, y, 2), net.constant([2]), axis=0)
    net.output(net.op("Tile", y, repeats, name="tiled"), 2, 5, 10)
    graph = view_of(net)
    assert graph.dims("sum") == ("n", 12, 1)
    assert graph.dims("implicit") == ("n", 12, 1)
    assert graph.dims("tiled") == ("n", "t", product((2, "t")))


def test_pads_that_are_turned_around_as_pairs() -> None:
    """torch's older exporter lists pads from the last axis on, and brings them into ONNX's order as a table."""
    net, x = dynamic()
    missing = net.op(
        "Mod",
        net.op(
            "Sub",
            net.constant(5),
            net.op("Mod", net.op("Gather", net.op("Shape", x), net.constant(2)), net.constant(5)),
        ),
        net.constant(5),
    )
    listed = net.op("Concat", net.constant([0]), net.op("Unsqueeze", missing, net.constant([0])), axis=0)
    listed = net.op("Concat", listed, net.constant([1, 2, 0, 0]), axis=0)
    pairs = net.op("Reshape", listed, net.constant([-1, 2]))
    last_first = net.op(
        "Slice", pairs, *(net.constant([value]) for value in (-1, -(2**63) + 1, 0, -1)), name="last first"
    )
    turned = net.op("Transpose", last_first, perm=[1, 0], name="turned")
    pads = net.op("Cast", net.op("Reshape", turned, net.constant([-1])), to=onnx.TensorProto.INT64, name="pads")
    net.output(net.op("Pad", x, pads, name="y"), 2, 8, 15)
    graph = view_of(net)
    assert graph.vector("pads") == (0, 1, 0, 0, 2, 3)
    assert graph.vector("turned") is None
    assert graph.dims("y") == ("n", added(("t", 3)), 15)


def test_open_sizes_that_are_moved_through_several_axes() -> None:
    net, x = dynamic()
    table = net.op("Reshape", net.op("Concat", net.op("Shape", x), net.constant([7]), axis=0), net.constant([2, 2]))
    net.op("Reshape", net.op("Transpose", table, perm=[1, 0]), net.constant([-1]), name="turned")
    net.op("Gather", table, net.constant(1), axis=1, name="column")
    net.output(net.op("Relu", x), 2, 5, 12)
    graph = view_of(net)
    assert graph.vector("turned") == ("n", 12, "t", 7)
    assert graph.vector("column") == ("t", 7)


def test_the_last_positions_of_an_axis_as_many_as_it_has() -> None:
    net, x = dynamic()
    back = net.op("Neg", size(net, x, 1), name="back")
    table = net.op("Slice", net.weight(1, 9, 12), net.constant([0]), size(net, x, 1), net.constant([1]))
    for name, of in (("whole", x), ("whole table", table)):
        net.op("Slice", of, back, net.constant([2**63 - 1]), net.constant([1]), name=name)
    net.op("Slice", x, net.constant([0]), back, net.constant([1]), name="nothing")
    net.op("Slice", x, net.op("Neg", size(net, x, 0)), net.constant([2**63 - 1]), net.constant([1]), name="some")
    net.op("Reshape", x, net.op("Concat", back, net.constant([12]), axis=0), name="of a negative size")
    net.op("Equal", back, net.constant([-1]), name="is minus one")
    net.output(net.op("Relu", x), 2, 5, 12)
    graph = view_of(net)
    assert graph.dims("whole") == ("n", "t", 12)
    assert graph.dims("whole table") == (1, ("cut", 9, "t"), 12)
    for name in ("nothing", "some"):
        assert str((graph.dims(name) or ())[1]) not in ("t", "0")
    assert graph.dims("of a negative size") != ("t", 12)
    assert graph.vector("is minus one") is None


def test_the_first_of_several_times_as_many_positions() -> None:
    assert cut(product([4, "n"]), "n") == "n"
    assert cut("n", product([4, "n"])) != product([4, "n"])


def test_sizes_that_are_tiled() -> None:
    net, x = dynamic()
    pair = net.op("Gather", net.op("Shape", x), net.constant([1, 0]))
    twice = net.op("Tile", pair, net.constant([2]), name="twice")
    rows = net.op("Tile", net.op("Unsqueeze", pair, net.constant([0])), net.constant([2, 2]), name="rows")
    net.op("Gather", rows, net.constant(1), axis=0, name="row")
    net.op("Expand", net.op("Reshape", x, twice), twice, name="many")
    net.op("Tile", pair, net.constant([1 << 40]), name="too many")
    net.op("Tile", pair, net.constant([-1]), name="negative")
    net.op("Tile", pair, net.constant([1, 2]), name="of another rank")
    net.op("Tile", pair, pair, name="of open size")
    net.output(net.op("Relu", x), 2, 5, 12)
    graph = view_of(net)
    assert graph.vector("twice") == ("t", "n", "t", "n")
    assert graph.vector("row") == ("t", "n", "t", "n")
    assert graph.dims("rows") == (2, 4)
    assert graph.dims("many") == ("t", "n", "t", "n")
    for name in ("too many", "negative", "of another rank", "of open size"):
        assert graph.vector(name) is None


def test_sizes_of_places_and_of_ranges() -> None:
    net, x = dynamic()
    for op, attributes, name in (
        ("ArgMax", {"axis": 1}, "kept"),
        ("ArgMin", {"axis": -2, "keepdims": 0}, "dropped"),
        ("Flatten", {"axis": 2}, "rows"),
        ("Flatten", {"axis": -3}, "row"),
    ):
        net.op(op, x, **attributes, name=name)
    for name, start, end in (("others", 1, 2**62), ("first", 0, 1), ("last", -1, 2**63 - 1), ("some", 0, 3)):
        net.op("Slice", x, *(net.constant([n]) for n in (start, end, 1)), name=name)
    net.output(net.op("Relu", x), 2, 5, 12)
    graph = view_of(net)
    assert graph.dims("kept") == ("n", 1, 12)
    assert graph.dims("dropped") == ("n", 12)
    assert graph.dims("rows") == (product(("n", "t")), 12)
    assert graph.dims("row") == (1, product((12, "n", "t")))
    assert graph.dims("others") == ("n", ("window", "t", 1, -2, 0), 12)
    assert graph.dims("first") == graph.dims("last") == ("n", 1, 12)
    assert graph.dims("some") == ("n", cut("t", 3), 12)


@pytest.mark.parametrize("opset", [9, 17])
def test_sizes_of_the_largest_values_and_of_sampled_images(opset: int) -> None:
    net = Net(opset=opset)
    x = net.input("x", 2, 5, 12, declared=["n", "t", 12])
    grid = net.input("grid", 2, 3, 4, 2, declared=["m", "a", "b", 2])
    image = net.input("image", 2, 6, 5, 5, declared=["n", 6, "h", "w"])
    if opset < 10:
        net.op("TopK", x, outputs=2, k=3, axis=1, name="best")
    else:
        net.op("TopK", x, net.constant([3]), outputs=2, axis=1, name="best")
        net.op("TopK", x, net.op("Gather", net.op("Shape", x), net.constant([0])), outputs=2, axis=-1, name="open")
        net.op("GridSample", image, grid, name="sampled")
    net.output(net.op("Relu", x), 2, 5, 12)
    graph = view_of(net)
    assert graph.dims("best") == graph.dims("best.1") == ("n", 3, 12)
    if opset >= 10:
        assert graph.dims("open") == ("n", "t", "n")
        assert graph.dims("sampled") == ("n", 6, "a", "b")


def test_sizes_of_products_of_vectors() -> None:
    net, x = dynamic()
    vector, rows = net.weight(12), net.input("rows", 5, declared=["t"])
    net.op("MatMul", x, vector, name="by columns")
    net.op("MatMul", rows, x, name="by rows")
    net.output(net.op("Relu", x), 2, 5, 12)
    graph = view_of(net)
    assert graph.dims("by columns") == ("n", "t")
    assert graph.dims("by rows") == ("n", 12)
