"""Shape inference, once the sizes of dynamic axes are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime
import pytest
from nets import Net
from onnx import ModelProto, TensorProto, helper, numpy_helper

from sift_onnx.errors import UnsupportedError
from sift_onnx.model import Model
from sift_onnx.shapes.inference import infer_proto, infer_shapes
from sift_onnx.shapes.input_binding import bind
from sift_onnx.shapes.node_inference import infer_node
from sift_onnx.shapes.tensor_specs import model_inputs


def bound(model: Model, given: dict[str, list[int]] | None = None) -> dict[str, tuple[int, ...]]:
    return bind(model_inputs(model), given).shapes


# Inference.


@pytest.mark.parametrize("kind", ["sequence", "optional"])
def test_an_output_that_holds_tensors_keeps_its_type_and_forgets_their_shapes(kind: str) -> None:
    op = {"sequence": "SequenceConstruct", "optional": "Optional"}[kind]
    net = Net()
    h = net.op("Relu", net.input("x", 2, 3, declared=["N", 3]), name="h")
    net.op(op, h, name="held")
    net.output(net.op("Neg", h, name="y"))
    proto = net.model()
    recorded = helper.make_tensor_type_proto(TensorProto.FLOAT, [7, 3])
    make_type = {"sequence": helper.make_sequence_type_proto, "optional": helper.make_optional_type_proto}[kind]
    proto.graph.output.append(helper.make_value_info("held", make_type(recorded)))
    model = Model.load(proto)
    assert infer_shapes(model, bound(model, {"x": [5, 3]}))["y"] == (5, 3)


def test_every_tensor_has_numbers_where_the_batch_was_dynamic() -> None:
    net = Net()
    h = net.conv(net.input("x", 1, 3, 8, 8, declared=["N", 3, "H", "W"]), 3, 4, 3, name="conv", strides=[2, 2])
    net.output(net.op("Flatten", h, name="flat"))
    model = Model.load(net.model())
    shapes = infer_shapes(model, bound(model, {"x": [5, 3, 8, 6]}))
    assert {name: shapes[name] for name in ("x", "conv", "flat")} == {
        "x": (5, 3, 8, 6), "conv": (5, 4, 4, 3), "flat": (5, 48)
    }  # fmt: skip


@pytest.mark.parametrize("opset", [11, 19, 22])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    ("size", "attributes"),
    [
        ((17, 8), {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((17, 17), {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 1, 1]}),
        ((9, 10), {"kernel_shape": [1, 2], "strides": [3, 4]}),
        ((7, 9), {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ],
)
def test_windows_that_begin_behind_the_input_are_dropped(
    op: str, size: tuple[int, int], attributes: dict[str, Any], opset: int
) -> None:
    net = Net(opset=opset)
    # The second pool's sizes follow from those of the first.
    first = net.op(
        op, net.input("x", 1, 3, *size, declared=["N", 3, "H", "W"]), ceil_mode=1, **attributes, name="first"
    )
    net.output(net.op(op, net.op("Relu", first), ceil_mode=1, **attributes, name="second"))
    session = onnxruntime.InferenceSession(net.model().SerializeToString(), providers=["CPUExecutionProvider"])
    (made,) = session.run(None, net.feeds)
    model = Model.load(net.model())
    shapes = infer_shapes(model, bound(model, {"x": [1, 3, *size]}))
    assert shapes["second"] == made.shape
    pool = next(node for node in model.graph.nodes if node.op == op)
    found = infer_node(pool, {"": opset}, {"x": (1, 3, *size)}, {})
    assert found["first"] == shapes["first"]


def test_sizes_that_nodes_compute_are_followed() -> None:
    net = Net()
    x = net.input("x", 2, 6, declared=["N", 6])
    rows = net.op("Gather", net.op("Shape", x), net.constant([0]))
    net.output(net.op("Reshape", x, net.op("Concat", rows, net.constant([3, 2]), axis=0), name="y"))
    model = Model.load(net.model())
    assert infer_shapes(model, bound(model, {"x": [4, 6]}))["y"] == (4, 3, 2)


def test_what_the_file_says_is_believed_of_foreign_operators_alone() -> None:
    net = Net()
    x = net.input("x", 1, 6, declared=["N", 6])
    strange = net.op("Mystery", x, domain="nobody", name="strange")
    net.value_infos += [
        helper.make_tensor_value_info("strange", TensorProto.FLOAT, ["N", 4]),
        helper.make_tensor_value_info("stale", TensorProto.FLOAT, [7, 7]),
    ]
    net.output(net.op("Relu", net.op("Relu", strange, name="stale")), 9, 9)
    model = Model.load(net.model())
    shapes = infer_shapes(model, bound(model, {"x": [3, 6]}))
    assert (shapes["strange"], shapes["stale"]) == ((3, 4), (3, 4))


def test_a_symbol_that_no_input_has_stays_open() -> None:
    net = Net()
    net.op("Mystery", net.input("x", 1, 6), domain="nobody", name="strange")
    net.value_infos.append(helper.make_tensor_value_info("strange", TensorProto.FLOAT, ["found", 4]))
    net.output("strange", 1, 1)
    net.output(net.op("Relu", "strange", name="after"), 1, 4)
    model = Model.load(net.model())
    assert infer_shapes(model, bound(model))["after"] == (None, 4)


def test_a_contradiction_is_refused_and_names_its_node() -> None:
    net = Net()
    h = net.op("MatMul", net.input("x", 2, 3), net.weight(4, 5), name="misfit")
    net.output(net.op("Relu", net.op("Relu", h, name="behind")), 2, 5)
    model = Model.load(net.model())
    with pytest.raises(UnsupportedError, match=r"rejects the model: \(op_type:MatMul, node name: misfit"):
        infer_shapes(model, bound(model))


def test_the_model_is_not_changed() -> None:
    net = Net()
    net.output(net.op("Relu", net.input("x", 1, 3, declared=["N", 3])))
    model = Model.load(net.model())
    before = model.to_proto()
    infer_shapes(model, bound(model, {"x": [4, 3]}))
    assert model.to_proto() == before


# One node.


def test_the_output_of_a_node_follows_from_its_inputs() -> None:
    x, target, y = gs.Variable("x", np.float32), gs.Variable("target", np.int64), gs.Variable("y")
    node = gs.Node("Reshape", inputs=[x, target], outputs=[y])
    values = {"target": np.asarray([2, -1])}
    assert infer_node(node, {"": 17}, {"x": (4, 6), "target": (2,)}, values) == {"y": (2, 12)}


def test_one_node_without_an_answer_gives_none() -> None:
    x, y = gs.Variable("x", np.float32), gs.Variable("y")
    for op, domain in (("Mystery", "nobody"), ("Mystery", ""), ("Reshape", "")):
        assert infer_node(gs.Node(op, inputs=[x], outputs=[y], domain=domain), {"": 17}, {"x": (4, 6)}, {}) == {}


def _blown_up(kind: str, size: int) -> ModelProto:
    """A graph of a few bytes with a vector of ``size`` elements, which data propagation would follow one by one."""
    stored = {"n": [size], "zero": 0, "one": 1, "size": size, "ones": [1, 1]}
    initializers = [numpy_helper.from_array(np.asarray(v, np.int64), name) for name, v in stored.items()]
    made = {
        "Range": helper.make_node("Range", ["zero", "size", "one"], ["big"]),
        "Tile": helper.make_node("Tile", ["ones", "n"], ["big"]),
        "Expand": helper.make_node("Expand", ["one", "n"], ["big"]),
        "ConstantOfShape": helper.make_node("ConstantOfShape", ["n"], ["big"]),
    }[kind]
    nodes = [made, helper.make_node("Gather", ["big", "ones"], ["y"])]
    output = helper.make_tensor_value_info("y", TensorProto.INT64, None)
    graph = helper.make_graph(nodes, "g", [], [output], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("kind", ["Range", "Tile", "Expand", "ConstantOfShape"])
def test_huge_vectors_are_not_followed_element_by_element(kind: str) -> None:
    # With data propagation this takes all memory, or longer than anybody waits.
    inferred = infer_proto(_blown_up(kind, 2**40))
    sizes = {info.name: [d.dim_value for d in info.type.tensor_type.shape.dim] for info in inferred.graph.value_info}
    assert sizes["big"] in ([2**40], [2**41])


@pytest.mark.parametrize("kind", ["Expand", "ConstantOfShape"])
def test_an_input_of_billions_of_sizes_makes_no_tensor_of_as_many_axes(kind: str) -> None:
    sizes = helper.make_tensor_value_info("sizes", TensorProto.INT64, [2**31])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node(kind, ["x", "sizes"] if kind == "Expand" else ["sizes"], ["y"])
    graph = helper.make_graph([node], "g", [x, sizes], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    before = model.SerializeToString()
    inferred = infer_proto(model)
    assert not inferred.graph.output[0].type.tensor_type.HasField("shape")
    assert model.SerializeToString() == before
    del sizes.type.tensor_type.shape.dim[0]
    sizes.type.tensor_type.shape.dim.add(dim_param="n")
    loaded = Model.load(helper.make_model(helper.make_graph([node], "g", [x, sizes], [y]), ir_version=8))
    assert infer_node(loaded.graph.nodes[0], {"": 17}, {"x": (1, 3), "sizes": (2**31,)}, {}) == {}


def test_vectors_of_sizes_are_followed() -> None:
    model = _blown_up("Range", 5)
    model.graph.node.append(helper.make_node("Add", ["ones", "ones"], ["twos"]))
    model.graph.node.append(helper.make_node("ConstantOfShape", ["twos"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    shape = infer_proto(model).graph.output[-1].type.tensor_type.shape
    assert [d.dim_value for d in shape.dim] == [2, 2]


# Tensors whose data is not in the model that is inferred: of a list of this length it is not.

LONG = 9216


def over_a_long_list(*nodes: onnx.NodeProto, length: int = LONG) -> Model:
    """``found`` is made of the integers ``long``, at whose places a vector is read."""
    stored = {"long": np.arange(length), "zero": [0], "two": [2], "one": 1, "shape": [-1]}
    initializers = [numpy_helper.from_array(np.asarray(v, np.int64), name) for name, v in stored.items()]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in (("x", ["n"]), ("y", None)))
    place = helper.make_node("Cast", ["found"], ["place"], to=TensorProto.INT64)
    graph = helper.make_graph(
        [*nodes, place, helper.make_node("Gather", ["x", "place"], ["y"])], "g", [x], [y], initializers
    )
    return Model.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "shape"),
    [
        ("Unsqueeze", ["long", "zero"], {}, (1, LONG)),
        ("Gather", ["long", "one"], {}, ()),
        ("Slice", ["long", "zero", "two"], {}, (2,)),
        ("Concat", ["long", "two"], {"axis": 0}, (LONG + 1,)),
        ("Cast", ["long"], {"to": TensorProto.INT32}, (LONG,)),
        ("Add", ["long", "one"], {}, (LONG,)),
        ("Sub", ["long", "one"], {}, (LONG,)),
        ("Mul", ["long", "one"], {}, (LONG,)),
        ("Div", ["long", "one"], {}, (LONG,)),
        ("Size", ["long"], {}, ()),
        ("Shape", ["long"], {}, (1,)),
        ("Reshape", ["long", "shape"], {}, (LONG,)),
        ("Identity", ["long"], {}, (LONG,)),
        ("ReduceMax", ["long"], {"keepdims": 0}, ()),
    ],
)
def test_operators_that_inference_follows_may_read_a_list_that_lies_elsewhere(
    op: str, inputs: list[str], attributes: dict[str, Any], shape: tuple[int, ...]
) -> None:
    model = over_a_long_list(helper.make_node(op, inputs, ["found"], **attributes))
    assert [info.name for info in infer_proto(model.skeleton()).graph.value_info] == ["found", "place"]
    assert infer_shapes(model, bound(model, {"x": [2 * LONG]}))["y"] == shape


def test_a_subgraph_may_hold_the_list_or_read_it() -> None:
    element, inner = TensorProto.INT64, numpy_helper.from_array(np.arange(LONG), "inner")
    made = helper.make_tensor_value_info("made", element, None)
    branches = {
        f"{branch}_branch": helper.make_graph(
            [helper.make_node("Add", [name, "one"], ["made"])], branch, [], [made], [inner]
        )
        for branch, name in (("then", "long"), ("else", "inner"))
    }
    nodes = [
        helper.make_node("Cast", ["one"], ["flag"], to=TensorProto.BOOL),
        helper.make_node("If", ["flag"], ["found"], **branches),
    ]
    model = over_a_long_list(*nodes)
    assert infer_shapes(model, bound(model, {"x": [LONG]}))["y"] == (LONG,)


def test_a_list_of_millions_that_lies_elsewhere_is_no_list_of_sizes() -> None:
    model = over_a_long_list(helper.make_node("Identity", ["long"], ["found"]), length=(1 << 22) + 1)
    model.graph.nodes.append(
        gs.Node("ConstantOfShape", inputs=[model.graph.tensors()["long"]], outputs=[gs.Variable("z")])
    )
    shapes = infer_shapes(model, bound(model, {"x": [3]}))
    assert "z" not in shapes


def test_a_long_vector_of_weights_keeps_data_propagation() -> None:
    """It is no list of sizes, which are not followed if they are as long."""
    net = Net()
    x = net.input("x", 2, 6, declared=["N", 6])
    flat = net.constant(np.zeros((1 << 22) + 1, np.float16), "flat")
    rows = net.op("Gather", net.op("Shape", x), net.constant([0]))
    net.output(net.op("Reshape", x, net.op("Concat", rows, net.constant([3, 2]), axis=0), name="y"))
    net.output(net.op("ReduceMax", flat, keepdims=0))
    model = Model.load(net.model())
    assert infer_shapes(model, bound(model, {"x": [4, 6]}))["y"] == (4, 3, 2)


@pytest.mark.parametrize("depth", [1, 2])
def test_branches_may_use_the_same_names(depth: int) -> None:
    """Data propagation of onnx fails on a name that another branch has."""
    node = helper.make_node("Add", ["x", "x"], ["made"])
    for level in range(depth):
        made = helper.make_tensor_value_info(node.output[0], TensorProto.INT64, [2])
        branch = helper.make_graph([helper.make_node("Mul", ["x", "two"], [f"twice{level}"]), node], "b", [], [made])
        node = helper.make_node("If", ["flag"], [f"chosen{level}"], then_branch=branch, else_branch=branch)
    x = helper.make_tensor_value_info("x", TensorProto.INT64, [2])
    y = helper.make_tensor_value_info(node.output[0], TensorProto.INT64, [2])
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    graph = helper.make_graph([node], "g", [x, flag], [y], [numpy_helper.from_array(np.array([2]), "two")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(model)
    loaded = Model.load(model)
    assert infer_shapes(loaded, bound(loaded))[y.name] == (2,)


@pytest.mark.parametrize(
    ("size", "keepdims", "expected"),
    [(1, 0, (4,)), (1, 1, (4, 1)), ([1, 1, 1], 0, (4, 1)), ([1, 2], 0, None)],
)
@pytest.mark.parametrize("is_node", [False, True])
def test_an_axis_that_is_split_into_single_positions_may_be_dropped(
    size: int | list[int], keepdims: int, expected: tuple[int, ...] | None, is_node: bool
) -> None:
    """As torch's unbind is exported; shapes are those that onnxruntime gives."""
    tensor = numpy_helper.from_array(np.array(size), "size")
    nodes = [
        *([helper.make_node("Constant", [], ["size"], value=tensor)] if is_node else []),
        helper.make_node("SplitToSequence", ["x", "size"], ["parts"], axis=1, keepdims=keepdims),
        helper.make_node("SequenceAt", ["parts", "last"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    stored = [numpy_helper.from_array(np.array(-1), "last"), *([] if is_node else [tensor])]
    proto = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], stored), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    made = session.run(None, {"x": np.zeros((4, 3), np.float32)})[0].shape
    model = Model.load(proto)
    found = infer_shapes(model, bound(model)).get("y")
    if expected is None:
        assert found == (4, None)
    else:
        assert found == made == expected
