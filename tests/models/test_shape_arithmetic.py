import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sift_onnx.models.shape_arithmetic import settle_shapes


def graph_of(nodes, inputs, constants, outputs):
    """A model with float inputs and outputs, given as {name: dims}, and int64 constants (or arrays of another kind)."""
    return helper.make_model(
        helper.make_graph(
            nodes,
            "graph",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in inputs.items()],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in outputs.items()],
            [
                numpy_helper.from_array(v if isinstance(v, np.ndarray) else np.array(v, np.int64), name)
                for name, v in constants.items()
            ],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    ).graph


def constant(graph, name):
    return next(numpy_helper.to_array(t).tolist() for t in graph.initializer if t.name == name)


def split_heads(last, dims, **attributes):
    """Reshape of x to [its batch, its sequence, 3, last]."""
    return graph_of(
        [
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("Gather", ["shape", "zero"], ["batch"]),
            helper.make_node("Gather", ["shape", "one"], ["sequence"]),
            helper.make_node("Unsqueeze", ["batch", "axis"], ["a"]),
            helper.make_node("Reshape", ["sequence", "open"], ["b"]),
            helper.make_node("Concat", ["a", "b", "heads", "last"], ["target"], axis=0),
            helper.make_node("Reshape", ["x", "target"], ["y"], **attributes),
        ],
        {"x": dims},
        {"zero": 0, "one": 1, "axis": [0], "open": [-1], "heads": [3], "last": [last]},
        {"y": [*dims[:2], 3, None]},
    )


@pytest.mark.parametrize("last", [4, -1])
def test_a_target_of_sizes_of_the_input_becomes_a_constant(last):
    graph = split_heads(last, ["batch", "sequence", 12], allowzero=1)
    settle_shapes(graph)
    assert [node.op_type for node in graph.node] == ["Reshape"]
    assert constant(graph, graph.node[0].input[1]) == [0, 0, 3, last]
    assert not graph.node[0].attribute


def test_known_sizes_are_numbers():
    graph = split_heads(-1, [2, "sequence", 12])
    settle_shapes(graph)
    assert constant(graph, graph.node[0].input[1]) == [2, 0, 3, -1]


def other_input(dims, target_dims):
    """Reshape of x to the first two sizes of z, and the rest."""
    return graph_of(
        [
            helper.make_node("Shape", ["z"], ["shape"]),
            helper.make_node("Slice", ["shape", "start", "end"], ["first"]),
            helper.make_node("Concat", ["first", "rest"], ["target"], axis=0),
            helper.make_node("Reshape", ["x", "target"], ["y"]),
        ],
        {"x": dims, "z": target_dims},
        {"start": [0], "end": [2], "rest": [6]},
        {"y": None},
    )


def test_axes_of_one_name_have_one_size():
    graph = other_input(["n", "t", 2, 3], ["n", "t", 5])
    settle_shapes(graph)
    assert constant(graph, graph.node[-1].input[1]) == [0, 0, 6]


def test_one_unknown_size_is_left_open():
    graph = other_input(["n", "t", 2, 3], ["n", "other", 5])
    settle_shapes(graph)
    assert constant(graph, graph.node[-1].input[1]) == [0, -1, 6]


def test_two_unknown_sizes_are_computed():
    graph = other_input(["n", "t", 2, 3], ["m", "other", 5])
    before = graph.SerializeToString()
    settle_shapes(graph)
    assert graph.SerializeToString() == before


def resize(dims, sizes):
    return graph_of(
        [
            helper.make_node("Shape", ["x"], ["first"], end=2),
            helper.make_node("Concat", ["first", "size"], ["sizes"], axis=0),
            helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="nearest"),
        ],
        {"x": dims},
        {"size": sizes},
        {"y": None},
    )


def test_a_resize_to_multiples_has_constant_factors():
    graph = resize(["n", 3, 1, 4], [7, 8])
    settle_shapes(graph)
    assert [node.op_type for node in graph.node] == ["Resize"]
    assert list(graph.node[0].input[:2]) == ["x", ""]
    assert constant(graph, graph.node[0].input[2]) == [1, 1, 7, 2]


@pytest.mark.parametrize(("dims", "sizes"), [(["n", 3, 4, 4], [6, 8]), (["n", 3, "h", 4], [8, 8])])
def test_a_resize_to_other_sizes_is_left_as_it_is(dims, sizes):
    graph = resize(dims, sizes)
    before = graph.SerializeToString()
    settle_shapes(graph)
    assert graph.SerializeToString() == before


def test_ranges_up_to_a_number_and_small_concats_become_constants():
    graph = graph_of(
        [
            helper.make_node("Shape", ["x"], ["length"]),
            helper.make_node("Squeeze", ["length"], ["limit"]),
            helper.make_node("Range", ["zero", "limit", "one"], ["positions"]),
            helper.make_node("Gather", ["x", "positions"], ["gathered"]),
            helper.make_node("Concat", ["ones", "twos"], ["factors"], axis=0),
            helper.make_node("Mul", ["gathered", "factors"], ["y"]),
        ],
        {"x": [4]},
        {"zero": 0, "one": 1, "ones": np.ones(2, np.float32), "twos": np.full(2, 2, np.float32)},
        {"y": [4]},
    )
    settle_shapes(graph)
    assert [node.op_type for node in graph.node] == ["Gather", "Mul"]
    assert constant(graph, "positions") == [0, 1, 2, 3]
    assert constant(graph, "factors") == [1, 1, 2, 2]


def test_a_range_up_to_an_open_axis_has_its_name():
    graph = graph_of(
        [
            helper.make_node("Shape", ["x"], ["length"]),
            helper.make_node("Squeeze", ["length"], ["limit"]),
            helper.make_node("Range", ["zero", "limit", "one"], ["positions"]),
            helper.make_node("Gather", ["x", "positions"], ["y"]),
        ],
        {"x": ["t"]},
        {"zero": 0, "one": 1},
        {"y": ["t"]},
    )
    graph.value_info.append(helper.make_tensor_value_info("positions", TensorProto.INT64, ["unk__0"]))
    settle_shapes(graph)
    assert graph.value_info[0].type.tensor_type.shape.dim[0].dim_param == "t"
    assert len(graph.node) == 4


def test_what_a_subgraph_reads_stays():
    inner = helper.make_graph(
        [helper.make_node("Shape", ["kept"], ["inner"])],
        "inner",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.INT64, [1])],
    )
    graph = graph_of(
        [
            helper.make_node("Relu", ["x"], ["kept"]),
            helper.make_node("Relu", ["x"], ["dropped"]),
            helper.make_node("If", ["condition"], ["y"], then_branch=inner, else_branch=inner),
        ],
        {"x": [4]},
        {"condition": np.array(True)},
        {"y": [1]},
    )
    settle_shapes(graph)
    assert [node.output[0] for node in graph.node] == ["kept", "y"]
    assert isinstance(graph, onnx.GraphProto)
