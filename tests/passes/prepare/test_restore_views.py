"""Strided views that exporters wrote as look-ups become reshapes, where they are views of the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from nets import Net, run, widen
from onnx import helper

from sift_onnx.passes import RestoreViews


@pytest.fixture
def net() -> Net:
    """An empty graph."""
    return Net()


def strided(net: Net, x: str, places: str, name: str = "view") -> str:
    """``torch.as_strided`` as it is exported."""
    flat = net.op("Reshape", x, net.constant([-1]), name=f"{name}.flat")
    return str(net.op("Gather", flat, places, name=name))


def counted(sizes: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The places of a view of these sizes and strides."""
    return sum(np.ix_(*(np.arange(n) * s for n, s in zip(sizes, strides, strict=True))), np.int64(0))


def restore(net: Net | onnx.ModelProto, feeds: Any = None) -> tuple[onnx.ModelProto, list[str]]:
    """Apply the pass: outputs must stay bit for bit, and a second run must change nothing."""
    proto = onnx.shape_inference.infer_shapes(net.model(), data_prop=True) if isinstance(net, Net) else net
    feeds = net.feeds if isinstance(net, Net) else feeds
    result = RestoreViews()(proto)
    after = result.model.to_proto()
    onnx.checker.check_model(after, full_check=True)
    before, now = run(proto, feeds), run(after, feeds)
    for output in proto.graph.output:
        np.testing.assert_array_equal(before[output.name], now[output.name])
    assert result.changed == bool(result.report["restored"])
    assert not RestoreViews()(after).changed
    return after, [node.op_type for node in after.graph.node]


@pytest.mark.parametrize(
    ("sizes", "strides"),
    [
        ((1, 5, 8), (40, 8, 1)),
        ((1, 40, 1, 1), (40, 1, 40, 40)),
        ((5, 8), (8, 1)),
        ((2, 20), (20, 1)),
        ((1, 1, 40), (7,) * 2 + (1,)),
    ],
)
def test_a_view_in_the_order_of_memory_is_a_reshape(net: Net, sizes: tuple[int, ...], strides: tuple[int, ...]) -> None:
    net.output(strided(net, net.input("x", 1, 5, 8), net.constant(counted(sizes, strides))))
    after, ops = restore(net)
    assert ops == ["Reshape"]
    assert after.graph.node[0].input[0] == "x"
    assert after.graph.node[0].name == "view"


@pytest.mark.parametrize(
    ("sizes", "strides"),
    [((8, 5), (1, 8)), ((4, 5, 2), (2, 8, 1)), ((1, 2, 1, 5, 4), (9, 1, 9, 8, 2)), ((5, 1, 4, 2), (8, 3, 1, 4))],
)
def test_a_view_in_another_order_is_transposed_as_well(
    net: Net, sizes: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    net.output(strided(net, net.input("x", 5, 8), net.constant(counted(sizes, strides))))
    assert restore(net)[1] == ["Reshape", "Transpose"]


def test_a_vector_is_its_own_flat_tensor(net: Net) -> None:
    net.output(net.op("Gather", net.op("Relu", net.input("x", 40)), net.constant(np.arange(40).reshape(8, 5))))
    assert restore(net)[1] == ["Relu", "Reshape"]


def test_what_made_the_places_goes_unless_something_else_reads_it(net: Net) -> None:
    x = net.input("x", 5, 8)
    flat = net.op("Reshape", x, net.constant([-1]), name="flat")
    places = net.op("Add", net.constant(counted((5, 1), (8, 1))), net.constant(counted((1, 8), (8, 1))), name="places")
    net.output(net.op("Gather", flat, places, name="view"))
    net.output(net.op("Relu", flat))
    assert restore(net)[1] == ["Reshape", "Reshape", "Relu"]


# What is read of 40 elements, and why it is no view of all of them.
PARTIAL = {
    "too few": counted((4, 8), (8, 1)),
    "shifted": counted((4, 8), (8, 1)) + 8,
    "every other": counted((5, 4), (8, 2)),
    "overlapping": counted((9, 8), (4, 1)),
    "repeated": counted((5, 8), (0, 1)),
    "shuffled": np.random.default_rng(0).permutation(40).reshape(5, 8),
    "a list": np.arange(40),
}


@pytest.mark.parametrize("kind", PARTIAL)
def test_any_other_look_up_stays(net: Net, kind: str) -> None:
    net.output(strided(net, net.input("x", 5, 8), net.constant(PARTIAL[kind])))
    assert restore(net)[1] == ["Reshape", "Gather"]


def test_a_stored_table_is_looked_up_in(net: Net) -> None:
    table = net.constant(np.arange(40, dtype=np.float32), "table")
    net.output(net.op("Add", net.input("x", 5, 8), net.op("Gather", table, net.constant(counted((5, 8), (8, 1))))))
    assert restore(net)[1] == ["Gather", "Add"]


def open_batch(stride: int = 8, symbol: str = "batch") -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A view of ``[batch, 8, 1]``, its places counted out at run time; layers on both sides."""
    net = Net()
    net.input("x", 3, 4, declared=["batch", 4])
    h = net.dense(net.op("Relu", net.dense("x", 4, 6, name="stem")), 6, 8, name="before")
    h = net.op("Unsqueeze", h, net.constant([2]), name="pooled")
    batch = net.op("Squeeze", net.op("Shape", "x", start=0, end=1))
    rows = net.op("Mul", net.op("Range", net.constant(0), batch, net.constant(1)), net.constant(stride))
    rows = net.op("Unsqueeze", rows, net.constant([1, 2]))
    places = net.op("Add", net.op("Add", rows, net.constant(counted((1, 8, 1), (8, 1, 8)))), net.constant([[[0]]]))
    h = net.op("Squeeze", strided(net, h, places), net.constant([2]))
    net.tokens_end(h, 8)
    proto = net.model()
    del proto.graph.value_info[:]
    for name, batch in (("pooled", "batch"), ("view", symbol)):
        proto.graph.value_info.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [batch, 8, 1]))
    return proto, net.feeds


def test_an_open_batch_stays_open() -> None:
    proto, feeds = open_batch()
    after, ops = restore(proto, feeds)
    assert not {"Gather", "Range", "Shape"} & set(ops)
    assert run(after, {"x": np.ones((5, 4), np.float32)})["view"].shape == (5, 8, 1)


@pytest.mark.parametrize("difference", [{"stride": 4}, {"symbol": "other"}])
def test_an_open_view_that_may_not_be_of_the_whole_stays(difference: dict[str, Any]) -> None:
    proto, feeds = open_batch(**difference)
    assert "Gather" in restore(proto, feeds)[1]


def test_what_is_seen_through_a_view_grows(net: Net) -> None:
    h = strided(net, net.tokens(8), net.constant(counted((5, 1, 8), (8, 40, 1))))
    net.tokens_end(net.op("Squeeze", h, net.constant([1])), 8)
    net.value_infos.append(helper.make_tensor_value_info("before", onnx.TensorProto.FLOAT, [1, 5, 8]))
    assert widen(net).shape("view") == (5, 1, 16)


@pytest.mark.parametrize("kind", ["integers", "floats"])
def test_places_behind_many_nodes_that_join_again_are_read_once(net: Net, kind: str) -> None:
    """Longformer's come from its residual layers: 60 sums of a value with itself have 2 to the power of 60 paths."""
    if kind == "floats":
        places = net.input("numbers", 3)
    else:
        places = net.op("Range", net.constant(0), net.op("Size", net.input("of", 3)), net.constant(1))
    for _ in range(60):
        places = net.op("Add", places, net.op("Identity", places))
    if kind == "floats":
        places = net.op("Cast", net.op("Clip", places, net.constant(0.0), net.constant(3.0)), to=onnx.TensorProto.INT64)
    else:
        places = net.op("Mod", places, net.constant(4))
    net.output(strided(net, net.input("x", 2, 4), places))
    assert "Gather" in restore(net)[1]
