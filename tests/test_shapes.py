"""Shape inference, once the sizes of dynamic axes are known."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from nets import Net
from onnx import ModelProto, TensorProto, helper, numpy_helper

from sift_onnx.errors import UnsupportedError
from sift_onnx.input_shapes import bind
from sift_onnx.model import Model
from sift_onnx.shapes import infer_node, infer_proto, infer_shapes
from sift_onnx.tensor_specs import model_inputs


def bound(model: Model, given: dict[str, list[int]] | None = None) -> dict[str, tuple[int, ...]]:
    return bind(model_inputs(model), given).shapes


# Inference.


def test_every_tensor_has_numbers_where_the_batch_was_dynamic() -> None:
    net = Net()
    h = net.conv(net.input("x", 1, 3, 8, 8, declared=["N", 3, "H", "W"]), 3, 4, 3, name="conv", strides=[2, 2])
    net.output(net.op("Flatten", h, name="flat"))
    model = Model.load(net.model())
    shapes = infer_shapes(model, bound(model, {"x": [5, 3, 8, 6]}))
    assert {name: shapes[name] for name in ("x", "conv", "flat")} == {
        "x": (5, 3, 8, 6), "conv": (5, 4, 4, 3), "flat": (5, 48)
    }  # fmt: skip


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
