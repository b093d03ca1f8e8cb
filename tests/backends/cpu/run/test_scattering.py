"""Networks on graphs: messages along edges that are put, or added up, at places from outside, against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from exact_nets import TOKENS, WIDTH, ExactNet, exact_feeds, integers, tokens
from sparse_nets import ONE_THREAD, assert_same_as_onnxruntime, left_to_onnxruntime, places, reasons

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram
from sift_onnx.errors import UsageError

pytestmark = pytest.mark.usefixtures("every_region_pays")

SIZES = [(1, 1), (5, 12), (40, 3), (3, 50), (70, 300)]
LOWEST = float(np.finfo(np.float32).min)


class GraphNet(ExactNet):
    """Has nodes ``x`` of ``[n, 5]``, and edges from ``source`` to ``target`` that say which messages go where."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = self.dense(self.input("x", 4, 5, declared=["n", 5]), 5, WIDTH, name="before")
        self.count = self.op("Shape", "x", start=0, end=1)
        self.source, self.target = (
            self.input(name, 6, values=np.zeros(6, np.int64), declared=["e"]) for name in ("source", "target")
        )
        self.messages = self.op("Gather", self.nodes, self.source, axis=-2, name="messages")

    def zeros(self, *sizes: int) -> str:
        return str(self.op("ConstantOfShape", self.op("Concat", self.count, integers(self, *sizes), axis=0)))

    def repeated(self, values: str, *sizes: int) -> str:
        """Places of ``values``, one for each row, repeated along axes of ``sizes``."""
        column = self.op("Reshape", self.target, integers(self, -1, *[1] * len(sizes)))
        if not sizes:
            return str(column)
        edges = self.op("Shape", values, start=0, end=1)
        return str(self.op("Expand", column, self.op("Concat", edges, integers(self, *sizes), axis=0)))

    def put(self, values: str, data: str, name: str = "put", reduction: str = "add") -> str:
        target = self.repeated(values, WIDTH)
        return str(self.op("ScatterElements", data, target, values, axis=0, reduction=reduction, name=name))


def graph_feeds(nodes: int, edges: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(nodes)
    return {
        "x": rng.integers(-3, 4, (nodes, 5)).astype(np.float32),
        "source": rng.integers(-nodes, nodes, edges), "target": rng.integers(0, nodes, edges),
    }  # fmt: skip


def assert_one_part(net: ExactNet) -> CpuProgram:
    """All of a net but for the places is in one part of kernels."""
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for nodes, edges in SIZES:
        assert_same_as_onnxruntime(model, graph_feeds(nodes, edges), program, tolerance=0)
    assert sum(not isinstance(part, OnnxRuntimeProgram) for part in program.parts) == 1
    return program


def added_messages(net: GraphNet) -> None:
    net.output(net.dense(net.put(net.messages, net.zeros(WIDTH)), WIDTH, 4))


def two_layers(net: GraphNet) -> None:
    first = net.op("Relu", net.dense(net.op("Add", net.put(net.messages, net.zeros(WIDTH)), net.nodes), WIDTH, WIDTH))
    second = net.op("Gather", first, net.source, axis=0)
    net.output(net.dense(net.put(second, net.zeros(WIDTH), "again"), WIDTH, 4))


def rows_of_a_matrix(net: GraphNet) -> None:
    column = net.op("Unsqueeze", net.target, integers(net, -1))
    put = net.op("ScatterND", net.zeros(WIDTH), column, net.messages, reduction="add", name="put")
    net.output(net.dense(put, WIDTH, 4))


def heads(net: GraphNet) -> None:
    """Messages of three heads, each with a weight for its edge."""
    parted = net.op("Reshape", net.nodes, integers(net, -1, 3, WIDTH // 3))
    messages = net.op("Gather", parted, net.source, axis=0)
    weights = net.op("Relu", net.op("ReduceSum", messages, integers(net, -1), keepdims=0))
    weighted = net.op("Mul", messages, net.op("Unsqueeze", weights, integers(net, -1)))
    target = net.repeated(weighted, 3, WIDTH // 3)
    put = net.op("ScatterElements", net.zeros(3, WIDTH // 3), target, weighted, axis=0, reduction="add", name="put")
    net.output(net.dense(net.op("Reshape", put, integers(net, -1, WIDTH)), WIDTH, 4))


def onto_others(net: GraphNet) -> None:
    net.output(net.dense(net.put(net.messages, net.op("Relu", net.nodes)), WIDTH, 4))


def gathered_by_pairs(net: GraphNet) -> None:
    """GatherND of rows, as exporters write an index."""
    taken = net.op("GatherND", net.nodes, net.op("Unsqueeze", net.source, integers(net, -1)))
    net.output(net.dense(net.put(net.op("Relu", taken), net.zeros(WIDTH)), WIDTH, 4))


@pytest.mark.parametrize("make", [added_messages, two_layers, rows_of_a_matrix, heads, onto_others, gathered_by_pairs])
def test_messages_are_added_up_in_kernels(make: Callable[[GraphNet], None]) -> None:
    net = GraphNet()
    make(net)
    assert_one_part(net)


@pytest.mark.parametrize("reduction", ["none", "mul", "max", "min"])
def test_messages_are_reduced(reduction: str) -> None:
    net = GraphNet()
    net.output(net.dense(net.put(net.messages, net.zeros(WIDTH), reduction=reduction), WIDTH, 4))
    assert places(assert_one_part(net))["put"] == "kernels"


@pytest.mark.parametrize("reduction", ["max", "min"])
@pytest.mark.parametrize("kind", ["lowest", "replaced", "least", "not least", "not so low"])
def test_extremes_without_what_was_there(reduction: str, kind: str) -> None:
    """Two nodes, as the exporters of torch write ``include_self=False``; a start that is not below all stays."""
    net = GraphNet()
    sign = 1 if reduction == "max" else -1
    data = net.zeros(WIDTH)
    shape = net.op("Shape", net.messages)
    opposite = "min" if reduction == "max" else "max"
    if kind in ("least", "not least"):
        of_all = ("ReduceMin", "ReduceMax")[(reduction == "min") == (kind == "least")]
        least = net.op("Add", net.constant([0.0]), net.op(of_all, net.messages, keepdims=0))
        start, first = net.op("Identity", net.op("Expand", least, shape)), reduction
    else:
        value = np.array([sign * (1.0 if kind == "not so low" else LOWEST)], np.float32)
        start = net.op("ConstantOfShape", shape, value=onnx.numpy_helper.from_array(value))
        first = "none" if kind == "replaced" else opposite
    begun = net.op("Identity", net.put(start, data, "begun", first))
    put = net.op("ScatterElements", begun, net.repeated(net.messages, WIDTH), net.messages, axis=0, reduction=reduction)
    net.output(net.dense(net.op("Clip", put, net.constant(-9.0), net.constant(9.0)), WIDTH, 4))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for nodes, edges in SIZES:
        assert_same_as_onnxruntime(model, graph_feeds(nodes, edges), program, tolerance=0)


def test_the_two_nodes_of_an_extreme_are_one_step() -> None:
    net = GraphNet()
    target = net.repeated(net.messages, WIDTH)
    value = onnx.numpy_helper.from_array(np.array([-np.inf], np.float32))
    start = net.op("ConstantOfShape", net.op("Shape", net.messages), value=value)
    begun = net.op("ScatterElements", net.zeros(WIDTH), target, start, axis=0, reduction="min", name="begun")
    put = net.op("ScatterElements", begun, target, net.messages, axis=0, reduction="max", name="put")
    net.output(net.dense(put, WIDTH, 4))
    program = assert_one_part(net)
    assert places(program)["begun"] == "folded"
    assert places(program)["put"] == "kernels"


def test_places_that_kernels_find() -> None:
    """Their array has as many bytes as the result, and is read until the end of it."""
    net = ExactNet()
    x = net.dense(net.input("x", 2, 5, declared=["n", 5]), 5, WIDTH)
    _, found = net.op("TopK", x, integers(net, 4), outputs=2, axis=-1)
    taken = net.op("Mul", net.op("GatherElements", x, found, axis=-1), net.constant(2.0))
    shape = net.op("Concat", net.op("Shape", "x", start=0, end=1), integers(net, 8), axis=0)
    near = net.op("Clip", x, net.constant(0.0), net.constant(1.0))
    _, small = net.op(
        "TopK", net.op("Slice", near, *(integers(net, n) for n in (0, 8, 1))), integers(net, 4), outputs=2
    )
    put = net.op("ScatterElements", net.op("ConstantOfShape", shape), small, taken, axis=1, reduction="add", name="put")
    net.output(net.dense(put, 8, 4))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for n in (1, 3, 17):
        assert_same_as_onnxruntime(model, exact_feeds(program, n), program, tolerance=0)
    assert left_to_onnxruntime(program) == {}


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_places_along_any_axis(axis: int) -> None:
    net = ExactNet()
    x = tokens(net)
    found = net.input("places", 2, TOKENS, WIDTH, values=np.zeros((2, TOKENS, WIDTH), np.int64),
                      declared=["n", TOKENS, WIDTH])  # fmt: skip
    put = net.op("ScatterElements", net.op("Relu", x), found, x, axis=axis, reduction="add", name="put")
    net.output(net.dense(put, WIDTH, 4))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    rng = np.random.default_rng(axis)
    for n in (1, 3, 17):
        size = (n, TOKENS, WIDTH)[axis]
        feeds = exact_feeds(program, n) | {"places": rng.integers(-size, size, (n, TOKENS, WIDTH))}
        assert_same_as_onnxruntime(model, feeds, program, tolerance=0)
    assert places(program)["put"] == "kernels"


def test_a_graph_without_edges() -> None:
    net = GraphNet()
    added_messages(net)
    program = CpuProgram(net.model(), ONE_THREAD)
    assert_same_as_onnxruntime(net.model(), graph_feeds(4, 0), program, tolerance=0)


def test_sums_are_the_same_for_any_number_of_threads() -> None:
    net = GraphNet()
    added_messages(net)
    rng = np.random.default_rng(0)
    feeds = graph_feeds(64, 9000) | {"x": rng.standard_normal((64, 5), dtype=np.float32)}
    one, *others = (
        next(iter(CpuProgram(net.model(), CompileOptions(threads=threads, deterministic=True)).run(feeds).values()))
        for threads in (1, 2, 4)
    )
    for other in others:
        np.testing.assert_array_equal(other, one)


def test_places_beyond_the_nodes_are_refused() -> None:
    net = GraphNet()
    added_messages(net)
    program = CpuProgram(net.model(), ONE_THREAD)
    for name in ("source", "target"):
        feeds = graph_feeds(4, 6)
        feeds[name] = np.array([0, 1, 2, 3, 4, 0])
        with pytest.raises(UsageError, match="index 4 of an axis of 4 values"):
            program.run(feeds)


def test_what_is_left_to_onnxruntime_says_why() -> None:
    net = GraphNet()
    x = net.messages
    constant = net.op("ScatterElements", net.nodes, net.constant(np.zeros((1, WIDTH), np.int64)),
                      net.op("ReduceMax", x, integers(net, 0)), axis=0, name="constant")  # fmt: skip
    pairs = net.op("ScatterND", constant, net.op("Reshape", net.target, integers(net, -1, 2)), x, name="pairs")
    net.output(pairs)
    column = net.op("Slice", x, *(integers(net, n) for n in (0, 3, 1)))
    net.output(net.op("ScatterElements", net.nodes, net.repeated(column, 3), column, axis=0, name="corner"))
    why = reasons(CpuProgram(net.model(), ONE_THREAD))
    assert why["constant"].endswith("are constants, or no int64")
    assert why["pairs"] == "its indices are of several axes"
    assert why["corner"] == "its operands are not known to be of one shape but for the axis"
