"""What is refused before a graph is built: what is wired to nothing, and functions without an end."""

from __future__ import annotations

import pytest
from builders import linear, model_of, random_weight
from onnx import TensorProto, helper

from sift_onnx.analysis.cost import inspect
from sift_onnx.errors import ModelReadError, UnsupportedError
from sift_onnx.model import Model

LOCAL = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]


def with_functions(*functions, call="f0"):
    """``y = call(x)``, and functions ``a -> b`` given as (name, nodes)."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node(call, ["x"], ["y"], domain="local")], "g", values[:1], values[1:])
    protos = [helper.make_function("local", name, ["a"], ["b"], nodes, LOCAL) for name, nodes in functions]
    return helper.make_model(graph, opset_imports=LOCAL, ir_version=8, functions=protos)


def calls(name, count=1):
    """``count`` calls of a local function, one behind the other."""
    values = ["a", *(f"v{i}" for i in range(count - 1)), "b"]
    return [helper.make_node(name, [values[i]], [values[i + 1]], domain="local") for i in range(count)]


RELU = [helper.make_node("Relu", ["a"], ["b"])]


def inside_if(nodes):
    branch = helper.make_graph(nodes, "branch", [], [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)])
    return [helper.make_node("If", ["a"], ["b"], then_branch=branch, else_branch=branch)]


@pytest.mark.parametrize(
    "functions",
    [
        [("f0", calls("f0"))],
        [("f0", calls("f1")), ("f1", calls("f0"))],
        [("f0", inside_if(calls("f0")))],
        [("f0", RELU), ("f1", calls("f1"))],
    ],
    ids=["itself", "each other", "in a subgraph", "uncalled"],
)
def test_a_function_that_ends_up_calling_itself_is_refused(functions):
    with pytest.raises(ModelReadError, match="calling itself"):
        Model.load(with_functions(*functions))


def test_functions_that_stand_for_billions_of_nodes_are_refused():
    functions = [(f"f{i}", calls(f"f{i + 1}", 2)) for i in range(40)]
    with pytest.raises(UnsupportedError, match=r"stand for \d+ nodes"):
        Model.load(with_functions(*functions, ("f40", RELU)))


@pytest.mark.parametrize("callers_first", [True, False])
def test_calls_that_are_nested_too_deep_are_refused(callers_first):
    functions = [*((f"f{i}", calls(f"f{i + 1}")) for i in range(150)), ("f150", RELU)]
    with pytest.raises(UnsupportedError, match="deep"):
        Model.load(with_functions(*(functions if callers_first else reversed(functions))))


def test_functions_of_ordinary_depth_are_taken():
    functions = [*((f"f{i}", calls(f"f{i + 1}", 2)) for i in range(6)), ("f6", RELU)]
    assert inspect(Model.load(with_functions(*functions))).to_dict()["totals"]["macs"] == 0


@pytest.mark.parametrize("kind", ["Expand", "ConstantOfShape", "Reshape", "Tile", "Unsqueeze"])
@pytest.mark.parametrize("inside", [False, True])
def test_billions_of_axes_are_refused(kind, inside):
    # Inference would write each of them down, and so would onnxruntime when it makes a session.
    sizes = helper.make_tensor_value_info("sizes", TensorProto.INT64, [2**31])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3])
    b = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
    nodes = [helper.make_node(kind, ["sizes"] if kind == "ConstantOfShape" else ["x", "sizes"], ["b"], name="big")]
    if inside:
        branch = helper.make_graph(nodes, "branch", [], [b])
        nodes = [helper.make_node("If", ["yes"], ["b"], then_branch=branch, else_branch=branch)]
    yes = helper.make_tensor_value_info("yes", TensorProto.BOOL, [])
    model = helper.make_model(helper.make_graph(nodes, "g", [x, sizes, yes], [b]), ir_version=8)
    with pytest.raises(UnsupportedError, match=rf"node 'big' \({kind}\): 'sizes' is declared with 2147483648 elements"):
        Model.load(model)
    sizes.type.tensor_type.shape.dim[0].dim_value = 4
    Model.load(helper.make_model(helper.make_graph(nodes, "g", [x, sizes, yes], [b]), ir_version=8))


def test_two_functions_of_one_name_are_refused():
    with pytest.raises(ModelReadError, match="two functions"):
        Model.load(with_functions(("f0", RELU), ("f0", RELU)))


def test_a_list_of_subgraphs_is_looked_into():
    inner = helper.make_graph([helper.make_node("Relu", ["nowhere"], ["b"])], "inner", [], [])
    model = linear({"w": random_weight(4, 4)})
    model.graph.node[0].attribute.append(helper.make_attribute("graphs", [inner]))
    with pytest.raises(ModelReadError, match="'nowhere', which nothing makes"):
        Model.load(model)


def one_node(kind, inputs, outputs, opset=17, **attributes):
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4, 4, 4]) for n in filter(None, inputs)]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    return model_of(
        helper.make_graph([helper.make_node(kind, inputs, outputs, **attributes)], "g", values, results), opset
    )


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (one_node("Concat", ["x"], ["y"], axis=[1]), "attribute 'axis' of .* is INTS, where its operator takes INT"),
        (one_node("Concat", ["x"], ["y"]), "lacks its attribute 'axis'"),
        (one_node("Conv", ["x"], ["y"]), "has 1 inputs, where its operator takes 2 to 3"),
        (one_node("Conv", ["x", ""], ["y"]), "leaves out an input"),
        (one_node("Relu", ["x"], []), "has 0 outputs"),
    ],
)
def test_a_node_that_contradicts_its_operator_is_refused(model, message):
    with pytest.raises(ModelReadError, match=message):
        Model.load(model)


def test_an_attribute_that_comes_twice_is_refused():
    model = one_node("Relu", ["x"], ["y"])
    model.graph.node[0].attribute.extend([helper.make_attribute("a", 1), helper.make_attribute("a", 2)])
    with pytest.raises(ModelReadError, match="twice"):
        Model.load(model)


@pytest.mark.parametrize("version", [0, -1, 2**40, 2**63 - 1])
def test_an_operator_set_of_an_impossible_version_is_refused(version):
    with pytest.raises(ModelReadError, match="version"):
        Model.load(one_node("Relu", ["x"], ["y"], opset=version))


@pytest.mark.parametrize("where", ["input", "value_info", "output"])
def test_a_value_of_a_type_that_does_not_exist_is_refused(where):
    model = one_node("Relu", ["x"], ["y"])
    info = helper.make_tensor_value_info("y" if where == "output" else "x", 1 << 24, None)
    field = getattr(model.graph, where)
    del field[:]
    field.append(info)
    with pytest.raises(ModelReadError, match="unknown data type 16777216"):
        Model.load(model)


def test_unknown_operators_and_attributes_are_accepted():
    model = one_node("Relu", ["x"], ["y"], odd=[1, 2])
    model.graph.node.append(helper.make_node("Strange", ["y"], ["z"], domain="vendor"))
    model.opset_import.append(helper.make_opsetid("vendor", 1))
    assert [node.op for node in Model.load(model).graph.nodes] == ["Relu", "Strange"]


def test_a_message_is_one_line_of_bounded_length_whatever_the_names():
    model = one_node("Relu", ["x"], ["y"])
    model.graph.node[0].input[0] = "\x1b[31m\n" + "x" * 100_000
    with pytest.raises(ModelReadError) as caught:
        Model.load(model)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 2000
    assert "which nothing makes" in str(caught.value)


def test_names_of_onnx_itself_stay_as_they_are():
    assert str(ModelReadError("der Name 'größe/é' ist da")) == "der Name 'größe/é' ist da"


def test_a_reference_to_an_attribute_of_no_function_is_refused():
    model = one_node("Concat", ["x"], ["y"], axis=1)
    model.graph.node[0].attribute[0].ref_attr_name = "axis"
    with pytest.raises(ModelReadError, match="in no function"):
        Model.load(model)


def test_a_model_without_a_version_of_the_standard_operators_is_refused():
    model = one_node("Relu", ["x"], ["y"])
    model.opset_import[0].domain = "vendor"
    with pytest.raises(ModelReadError, match="whose version it lacks"):
        Model.load(model)


def test_an_opaque_value_is_taken():
    model = one_node("Relu", ["x"], ["y"])
    model.graph.value_info.add(name="z").type.opaque_type.domain = "vendor"
    assert len(Model.load(model).graph.nodes) == 1
