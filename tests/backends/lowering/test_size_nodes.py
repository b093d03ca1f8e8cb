"""Nodes that compute sizes of inputs make what their expressions say."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_onnx.backends.lowering.dims import (
    Dim,
    added,
    bound,
    cut,
    larger,
    modulo,
    product,
    quotient,
    smaller,
    truncated,
    window,
)
from sift_onnx.backends.lowering.sizes.size_nodes import follows_from, nodes_of_sizes

PLACES = {"s": ("x", 0), "t": ("x", 1)}
CHANGES = st.lists(
    st.tuples(st.sampled_from("wcq/%<>+-*t"), st.integers(1, 9), st.integers(1, 5)), min_size=1, max_size=5
)


def changed(size: Dim, kind: str, number: int, stride: int) -> Dim:
    match kind:
        case "w":
            return window(size, number, stride, 1, (1, 0))
        case "c":
            return cut(size, number)
        case "q":
            return quotient(product((size, number, "t")), product((number, "t")))
        case "/":
            return truncated(size, number)
        case "%":
            return modulo(size, number)
        case "<":
            return smaller(size, product((stride, "t")))
        case ">":
            return larger(size, number)
        case "+" | "-":
            return added((size, number if kind == "+" else -number))
        case "*":
            return product((size, number))
    return added((size, "t"))


def made(sizes: tuple[Dim, ...], height: int, width: int) -> list[int]:
    nodes = nodes_of_sizes("made", sizes, PLACES)
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [None, None])
    out = onnx.helper.make_tensor_value_info("made", onnx.TensorProto.INT64, [len(sizes)])
    graph = onnx.helper.make_graph(nodes, "sizes", [x], [out])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [int(n) for n in session.run(None, {"x": np.zeros((height, width), np.float32)})[0]]


@settings(deadline=None, max_examples=80)
@given(CHANGES, st.integers(0, 60), st.integers(1, 9))
def test_nodes_make_the_sizes_of_a_run(changes: list[tuple[str, int, int]], height: int, width: int) -> None:
    size: Dim = "s"
    for change in changes:
        size = changed(size, *change)
    wanted = bound(size, {"s": height, "t": width})
    if follows_from(PLACES, size, 13) and isinstance(wanted, int):
        assert made((size, 7, "t"), height, width) == [wanted, 7, width]


@pytest.mark.parametrize("size", [window("s", 3, 2, 1, (0, 0)), cut("s", 9), smaller("s", 9), larger("s", 9)])
def test_least_and_most_of_integers_have_no_operator_before(size: Dim) -> None:
    assert follows_from(PLACES, size, 12)
    assert not follows_from(PLACES, size, 11)
    assert not follows_from({}, size, 12)
