"""Lengths and rows of tables as numpy computes them, against onnxruntime on the same nodes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from decoder_nets import DEPTH, KV_HEADS, decoder
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from sparse_nets import ONE_THREAD

from sift_onnx.backends.cpu.run.numpy_program import NUMPY, NumpyProgram, numpy_program
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.lowering.subgraph import Subgraph
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram
from sift_onnx.errors import BackendError

INTEGERS = {TensorProto.INT32: np.int32, TensorProto.INT64: np.int64}
TABLE = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)


def part_of(nodes, inputs, outputs, constants=None, opset: int = 17) -> Subgraph:
    graph = helper.make_graph(
        nodes,
        "part",
        [helper.make_tensor_value_info(name, elem, [None] * rank) for name, (elem, rank) in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return Subgraph(onnx.shape_inference.infer_shapes(model), tuple(inputs), tuple(outputs))


def assert_as_onnxruntime(part: Subgraph, feeds: dict[str, np.ndarray]) -> None:
    program = numpy_program(part)
    assert program is not None
    made, wanted = program.run_unchecked(feeds), OnnxRuntimeProgram(part.model, ONE_THREAD).run_unchecked(feeds)
    assert made.keys() == wanted.keys()
    for name, array in wanted.items():
        assert made[name].dtype == array.dtype
        assert made[name].shape == array.shape
        np.testing.assert_array_equal(made[name], array)


@settings(max_examples=60, deadline=None)
@given(draw=st.data())
def test_random_chains_are_onnxruntimes(draw: st.DataObject) -> None:
    elem = draw.draw(st.sampled_from(sorted(INTEGERS)))
    rng = np.random.default_rng(draw.draw(st.integers(0, 999)))
    sizes = tuple(draw.draw(st.lists(st.sampled_from((1, 2, 5)), min_size=1, max_size=3)))
    x = rng.integers(-5, 2**31 - 1, sizes).astype(INTEGERS[elem])
    constants: dict[str, np.ndarray] = {}
    nodes: list[onnx.NodeProto] = []
    now, rank, kind = "x", len(sizes), elem

    def integers(*values: int) -> str:
        name = f"c{len(constants)}"
        constants[name] = np.array(values, np.int64)
        return name

    for _ in range(draw.draw(st.integers(1, 4))):
        op = draw.draw(st.sampled_from(("Add", "Sub", "Cast", "ReduceSum", "Unsqueeze", "Squeeze", "Shape", "Gather")))
        inputs, attributes = [now], {}
        if op in ("Add", "Sub"):
            name = f"c{len(constants)}"
            constants[name] = rng.integers(-9, 9, (3, 1) if rank == 0 else ()).astype(INTEGERS[kind])
            rank = max(rank, constants[name].ndim)
            inputs.append(name)
        elif op == "Cast":
            kind = attributes["to"] = draw.draw(st.sampled_from(sorted(INTEGERS)))
        elif op == "ReduceSum" and rank and kind == TensorProto.INT64:
            axis = draw.draw(st.integers(-rank, rank - 1))
            attributes["keepdims"] = draw.draw(st.integers(0, 1))
            inputs.append(integers(axis))
            rank -= 1 - attributes["keepdims"]
        elif op == "Unsqueeze":
            inputs.append(integers(0))
            rank += 1
        elif op == "Squeeze":
            nodes.append(helper.make_node("Unsqueeze", [now, integers(0)], [f"v{len(nodes)}"]))
            inputs = [nodes[-1].output[0], integers(0)]
        elif op == "Shape":
            attributes = draw.draw(st.sampled_from(({}, {"start": -1}, {"start": 0, "end": 1})))
            rank, kind = 1, TensorProto.INT64
        elif op == "Gather" and rank:
            axis = draw.draw(st.integers(0, rank - 1))
            inputs.append(integers(*draw.draw(st.lists(st.sampled_from((0, -1)), min_size=1, max_size=2))))
            attributes["axis"] = axis
        else:
            op, inputs = "Identity", [now]
        now = f"v{len(nodes)}"
        nodes.append(helper.make_node(op, inputs, [now], **attributes))
    assert_as_onnxruntime(part_of(nodes, {"x": (elem, len(sizes))}, [now], constants), {"x": x})


def look_up() -> Subgraph:
    node = helper.make_node("Gather", ["table", "ids"], ["rows"])
    return part_of([node], {"ids": (TensorProto.INT64, 2)}, ["rows"], {"table": TABLE})


def test_rows_of_a_table_are_onnxruntimes() -> None:
    assert_as_onnxruntime(look_up(), {"ids": np.array([[0, 6, -7], [3, 3, -1]])})


@pytest.mark.parametrize("place", [7, -8])
def test_rows_beyond_a_table_are_refused(place: int) -> None:
    program = numpy_program(look_up())
    assert program is not None
    with pytest.raises(BackendError, match="Gather 'rows'"):
        program.run_unchecked({"ids": np.array([[0, place]])})


def test_axes_that_are_an_attribute() -> None:
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sums"], axes=[1], keepdims=1),
        helper.make_node("Squeeze", ["sums"], ["y"], axes=[1]),
    ]
    part = part_of(nodes, {"x": (TensorProto.INT64, 2)}, ["y"], opset=11)
    assert_as_onnxruntime(part, {"x": np.arange(6).reshape(2, 3)})


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Add", ["f", "f"], ["y"]),
        helper.make_node("Cast", ["f"], ["y"], to=TensorProto.INT64),
        helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["f"], ["y"]),
        helper.make_node("ReduceSum", ["i"], ["y"]),
        helper.make_node("Range", ["x", "x", "x"], ["y"]),
        helper.make_node("Gather", ["f", "x"], ["y"], domain="other"),
    ],
)
def test_what_is_no_matter_of_a_few_integers_stays_in_onnxruntime(node: onnx.NodeProto) -> None:
    inputs = {"f": (TensorProto.FLOAT, 1), "x": (TensorProto.INT64, 0), "i": (TensorProto.INT32, 1)}
    graph = helper.make_graph(
        [node],
        "part",
        [helper.make_tensor_value_info(name, elem, [None] * rank) for name, (elem, rank) in inputs.items()],
        [onnx.ValueInfoProto(name="y")],
    )
    assert numpy_program(Subgraph(helper.make_model(graph), tuple(inputs), ("y",))) is None


@pytest.mark.usefixtures("every_region_pays")
def test_lengths_and_the_embedding_of_a_decoder_are_numpys() -> None:
    program = CpuProgram(decoder("genai"), ONE_THREAD)
    assert isinstance(program.parts[0], NumpyProgram)
    placed = {one.op for one in program.placements if one.placement == NUMPY}
    assert {"ReduceSum", "Gather"} <= placed
    feeds = {
        spec.name: np.ones((2, 3), np.int64)
        if spec.dtype == np.int64
        else np.zeros((2, KV_HEADS, 0, DEPTH), np.float32)
        for spec in program.inputs
    }
    profiled = {node.op for node in program.profile(feeds).nodes if node.placement == NUMPY}
    assert {"ReduceSum", "Gather"} <= profiled
