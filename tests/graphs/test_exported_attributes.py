"""Attributes that are loaded and exported keep their values and their types."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from builders import SPARSE_TENSOR, SUBGRAPH, one_node, random_weight, round_trip
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from sift_onnx.errors import UnsupportedError
from sift_onnx.model import Model

W = random_weight(4, 4)


TYPE = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["n", 3]))


ATTRIBUTES = {
    "FLOAT": 1.0,
    "FLOAT from a third": 1 / 3,
    "INT": 1,
    "STRING": "text",
    "STRING empty": "",
    "TENSOR": numpy_helper.from_array(W, "t"),
    "TENSOR of strings": helper.make_tensor("s", TensorProto.STRING, [2], ["a", "b"]),
    "TENSOR without a name": numpy_helper.from_array(W),
    "GRAPH": SUBGRAPH,
    "SPARSE_TENSOR": SPARSE_TENSOR,
    "TYPE_PROTO": TYPE,
    "FLOATS": [1.0, 2.0],
    "INTS": [1, 2],
    "STRINGS": ["a", ""],
    "TENSORS": [numpy_helper.from_array(W, "t"), numpy_helper.from_array(W, "u")],
    "GRAPHS": [SUBGRAPH],
    "SPARSE_TENSORS": [SPARSE_TENSOR],
    "TYPE_PROTOS": [TYPE],
}


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_attribute_comes_back(kind):
    attribute = helper.make_attribute("a", ATTRIBUTES[kind], "its doc string")
    assert attribute.type == AttributeProto.AttributeType.Value(kind.split()[0])
    model = one_node(attributes=[helper.make_attribute("first", 3), attribute, helper.make_attribute("last", 3)])
    assert round_trip(model) == model


@pytest.mark.parametrize("kind", ["INTS", "FLOATS", "STRINGS", "TENSORS", "GRAPHS"])
def test_empty_list_keeps_its_type(kind):
    attribute = AttributeProto(name="a", type=AttributeProto.AttributeType.Value(kind))
    model = one_node(attributes=[attribute])
    assert round_trip(model) == model


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [
        (1.5, 2, helper.make_attribute("a", 2.0)),
        ([1.5], [2, 3], helper.make_attribute("a", [2.0, 3.0])),
        ([1.5], [], AttributeProto(name="a", type=AttributeProto.FLOATS)),
        ([1], [], AttributeProto(name="a", type=AttributeProto.INTS)),
        (1, 2, helper.make_attribute("a", 2)),
        (1, 2.5, helper.make_attribute("a", 2.5)),
        ("a", "b", helper.make_attribute("a", "b")),
        (1, np.float32, helper.make_attribute("a", TensorProto.FLOAT)),
        ([1], np.array([2, 3]), helper.make_attribute("a", [2, 3])),
    ],
    ids=str,
)
def test_edited_attribute_keeps_its_type_where_the_value_allows(before, value, after):
    model = Model.load(one_node(attributes=[helper.make_attribute("a", before)]))
    model.graph.nodes[0].attrs["a"] = value
    assert model.to_proto().graph.node[0].attribute[0] == after


def test_attribute_that_cannot_be_written_is_named():
    model = Model.load(one_node())
    model.graph.nodes[0].attrs["a"] = []
    with pytest.raises(UnsupportedError, match="attribute 'a' of node 'node'"):
        model.to_proto()


def test_edited_tensor_attribute_is_written():
    model = Model.load(one_node(attributes=[helper.make_attribute("a", numpy_helper.from_array(W, "t"))]))
    model.graph.nodes[0].attrs["a"].values = W * 2
    assert np.array_equal(numpy_helper.to_array(model.to_proto().graph.node[0].attribute[0].t), W * 2)


def test_removed_attribute_stays_removed():
    model = Model.load(one_node(attributes=[helper.make_attribute("a", 1), helper.make_attribute("b", 2)]))
    del model.graph.nodes[0].attrs["a"]
    assert [a.name for a in model.to_proto().graph.node[0].attribute] == ["b"]


def outputs(model, feeds):
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)[
        0
    ]
