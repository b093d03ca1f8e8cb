"""Which of the texts and numbers in a declared shape are symbols of sizes, and which only mark an open axis."""

from __future__ import annotations

from typing import Any

import pytest
from nets import Net
from onnx import TensorProto, helper

from sift_onnx.shapes.inference import infer_proto
from sift_onnx.shapes.open_axes import declared_shape, extents_of, without_marks


@pytest.fixture
def net() -> Net:
    """An empty graph."""
    return Net()


@pytest.mark.parametrize(
    "mark", ["?", "", "-1", "0", "None", "none", "unk__", "unk", "Unknown", "<dynamic>", "*", -1, None]
)
def test_a_mark_of_open_axes_is_no_symbol(mark: Any) -> None:
    assert extents_of([mark, 3, mark]) == (None, 3, None)


@pytest.mark.parametrize(
    "symbol", ["N", "batch_size", "DynamicDimension.0", "unk__12", "s0", "h", "?x", "batch + 1", "none_of_these"]
)
def test_a_name_is_a_symbol(symbol: str) -> None:
    assert extents_of([symbol, 3]) == (symbol, 3)


def test_zeros_are_open_axes_where_an_exporter_put_them_for_these() -> None:
    assert extents_of([0, 3, 224, 224]) == (None, 3, 224, 224)
    assert extents_of([1, 3, 0, 0]) == (1, 3, None, None)


def test_a_single_zero_behind_the_first_axis_is_the_size_of_an_empty_cache() -> None:
    assert extents_of([1, 12, 0, 64]) == (1, 12, 0, 64)


def test_equal_marks_are_not_taken_for_one_size_by_inference(net: Net) -> None:
    x = net.input("x", 1, 3, 4, 6, declared=["?", 3, "?", "?"])
    net.output(net.op("Transpose", x, perm=[0, 1, 3, 2], name="turned"))
    model = net.model()
    kept = model.SerializeToString()
    inferred = infer_proto(model)
    (turned,) = (info for info in (*inferred.graph.value_info, *inferred.graph.output) if info.name == "turned")
    assert "?" not in (declared_shape(turned.type.tensor_type) or ())
    assert model.SerializeToString() == kept


def test_marks_in_subgraphs_are_no_symbols_either() -> None:
    inner = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "inner",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["?", 2])],
    )
    node = helper.make_node("If", ["flag"], ["z"], then_branch=inner, else_branch=inner)
    inputs = [
        helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [-1, 2]),
    ]
    output = helper.make_tensor_value_info("z", TensorProto.FLOAT, ["N", 2])
    cleared = without_marks(helper.make_model(helper.make_graph([node], "g", inputs, [output]))).graph
    branch = cleared.node[0].attribute[0].g
    infos = [cleared.input[1], branch.output[0], cleared.output[0]]
    assert [declared_shape(info.type.tensor_type) for info in infos] == [(None, 2), (None, 2), ("N", 2)]


def test_a_model_without_marks_is_handed_back_as_it_is(net: Net) -> None:
    net.output(net.op("Relu", net.input("x", 1, 3, declared=["N", 3])))
    model = net.model()
    assert without_marks(model) is model
