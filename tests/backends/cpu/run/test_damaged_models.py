"""Models that contradict themselves or declare too much: sessions are refused in one line, and soon."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sift_onnx import InferenceSession
from sift_onnx.errors import SiftError


def model(nodes, inputs, constants=(), outputs=("y",)):
    """Inputs by name with their shapes, constants by name with their values."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    stored = [numpy_helper.from_array(np.asarray(v), n) for n, v in dict(constants).items()]
    graph = helper.make_graph([helper.make_node(*n[:3], **n[3]) for n in nodes], "g", values, results, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


ONES = np.ones(4, np.float32)


@pytest.mark.parametrize(
    "damaged",
    [
        model([("Add", ["x", "c"], ["y"], {})], {"x": [1, 16, 4, 4]}, {"c": np.ones((1, 4, 1, 1), np.float32)}),
        model([("MaxPool", ["x"], ["y"], {"kernel_shape": [2, 2], "strides": [0, 0]})], {"x": [1, 4, 4, 4]}),
        model([("MaxPool", ["x"], ["y"], {"kernel_shape": [0, 2]})], {"x": [1, 4, 4, 4]}),
        model([("AveragePool", ["x"], ["y"], {"kernel_shape": [2, 2], "pads": [-9] * 4})], {"x": [1, 4, 4, 4]}),
        model([("MatMul", ["x", "w"], ["y"], {})], {"x": [2, 5]}, {"w": np.eye(4, dtype=np.float32)}),
        model([("Conv", ["x", "w"], ["y"], {"group": 0})], {"x": [1, 4, 4, 4]}, {"w": np.ones((4, 4, 1, 1), "f4")}),
        model([("Flatten", ["x"], ["y"], {"axis": 9})], {"x": [1, 4]}),
    ],
)
def test_contradictions_are_refused_in_one_line(damaged: onnx.ModelProto) -> None:
    def run() -> None:
        session = InferenceSession(damaged, threads=1)
        session.run(None, {value.name: np.ones(value.shape, np.float32) for value in session.get_inputs()})

    with pytest.raises(SiftError) as caught:
        run()
    assert str(caught.value).isprintable()


def test_a_constant_for_more_channels_than_there_are_is_left_to_onnxruntime() -> None:
    huge = model([("Mul", ["x", "c"], ["y"], {})], {"x": [1, 2**31, 1, 1]}, {"c": np.float32(2)})
    # As long as nothing of that size is made.
    assert InferenceSession(huge, threads=1).get_inputs()[0].shape == [1, 2**31, 1, 1]


@pytest.mark.parametrize("kind", ["Range", "Tile"])
def test_vectors_without_measure_are_not_followed(kind: str) -> None:
    constants = {"zero": np.int64(0), "many": np.int64(2**40), "one": np.int64(1), "n": [2**40], "ones": ONES}
    inputs = ["zero", "many", "one"] if kind == "Range" else ["ones", "n"]
    nodes = [
        ("Relu", ["x"], ["y"], {}),
        (kind, inputs, ["big"], {}),
        ("Cast", ["big"], ["floats"], {"to": TensorProto.FLOAT}),
        ("Gather", ["floats", "one"], ["z"], {}),
    ]
    with pytest.raises(SiftError):
        InferenceSession(model(nodes, {"x": [1, 4]}, constants, ("y", "z")), threads=1)
