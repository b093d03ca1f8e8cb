"""Sorted values of which the first are read, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime, left_to_onnxruntime

from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.shortened_top_k import with_shorter_top_k
from sift_onnx.model import Model

pytestmark = pytest.mark.usefixtures("every_region_pays")

SIZES = ((1, 5), (3, 4), (2, 1), (8, 17))


def integers(net: SparseNet, *values: int) -> str:
    return str(net.constant(values, dtype=np.int64))


def first(net: SparseNet, x: str, count: int, axis: int = -1) -> str:
    return str(net.op("Slice", x, integers(net, 0), integers(net, count), integers(net, axis), integers(net, 1)))


def sorted_scores(net: SparseNet, k: int = 8, **attributes: int) -> list[str]:
    scores = net.dense(net.input("x", 2, 4, 5, declared=["n", "t", 5]), 5, 8, name="scores")
    return [scores, *net.op("TopK", scores, integers(net, k), outputs=2, **attributes)]


def top_k_of(model: Any) -> list[int]:
    """How many places each TopK of the graph finds that stands for a model."""
    graph = with_shorter_top_k(GraphView(Model.load(model)))
    return [int(graph.vector(node.input[1])[0]) for node in graph.nodes if node.op_type == "TopK"]  # type: ignore[index, arg-type]


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [-1, 2])
def test_the_nearest_few_are_in_one_region(axis: int, largest: int) -> None:
    net = SparseNet(opset=18)
    scores, values, places = sorted_scores(net, largest=largest)
    taken = net.op("GatherElements", net.op("Tanh", scores), first(net, places, 3, axis), axis=2)
    net.output(net.dense(net.op("Mul", taken, first(net, values, 3, axis)), 3, 4, name="after"))
    model = net.model()
    assert top_k_of(model) == [3]
    program = CpuProgram(model, ONE_THREAD)
    for batch, tokens in SIZES:
        feeds = {"x": np.random.default_rng(tokens).standard_normal((batch, tokens, 5)).astype(np.float32)}
        assert_same_as_onnxruntime(model, feeds, program)
    assert left_to_onnxruntime(program) == {}
    assert len(program.parts) == 1


@pytest.mark.parametrize("kind", ["different", "whole", "unsorted", "output", "more", "other axis"])
def test_what_reads_other_places_keeps_all(kind: str) -> None:
    net = SparseNet(opset=18)
    k = 2 if kind == "more" else 8
    _, values, places = sorted_scores(net, k, sorted=int(kind != "unsorted"))
    some = first(net, values, 3, 0 if kind == "other axis" else -1)
    net.output(net.op("Cast", first(net, places, 4 if kind == "different" else 3), to=onnx.TensorProto.FLOAT))
    net.output(net.op("Tanh", values if kind == "whole" else some))
    if kind == "output":
        net.output(places)
    model = net.model()
    assert top_k_of(model) == [k]
    if kind != "unsorted":
        program = CpuProgram(model, ONE_THREAD)
        for batch, tokens in SIZES:
            feeds = {"x": np.random.default_rng(tokens).standard_normal((batch, tokens, 5)).astype(np.float32)}
            assert_same_as_onnxruntime(model, feeds, program)
