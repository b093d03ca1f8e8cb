import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sift_onnx.models.clean import clean


def tensor(name, values):
    return numpy_helper.from_array(np.asarray(values, dtype=np.float32), name)


def conv_model(bias_name="val_0", bias=(0.0, 0.0)):
    weight = tensor("w", np.ones((2, 3, 1, 1)))
    node = helper.make_node(
        "Conv", ["x", "w", bias_name], ["y"], name="conv", strides=[1, 1], kernel_shape=[1, 1], group=1
    )
    graph = helper.make_graph(
        [node],
        "main_graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["s77", 3, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["s77", 2, 4, 4])],
        [weight, tensor(bias_name, bias), tensor("unread", [1.0])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def initializers(model):
    return [initializer.name for initializer in model.graph.initializer]


def test_traces_of_the_machine_go():
    model = conv_model()
    secret = "/home/someone/model.py"
    graph = model.graph
    for message in (model, graph, graph.node[0], graph.input[0], graph.output[0], graph.initializer[0]):
        message.doc_string = secret
        helper.set_model_props(message, {"stack_trace": secret})
    cleaned = clean(model, "net", {"w"}, {})
    assert secret.encode() not in cleaned.SerializeToString()
    assert cleaned.graph.name == "net"


def test_initializers_are_no_inputs_and_unread_ones_go():
    model = conv_model()
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [2, 3, 1, 1]))
    cleaned = clean(model, "net", {"w", "val_0"}, {})
    assert [value.name for value in cleaned.graph.input] == ["x"]
    assert initializers(cleaned) == ["w", "val_0"]


def test_only_a_bias_of_zeros_that_the_exporter_made_up_goes():
    assert initializers(clean(conv_model(), "net", {"w"}, {})) == ["w"]
    assert initializers(clean(conv_model("b"), "net", {"w", "b"}, {})) == ["w", "b"]
    assert initializers(clean(conv_model(bias=(0.0, 1.0)), "net", {"w"}, {})) == ["w", "val_0"]


def test_parameters_may_be_inputs_and_unread_ones_go():
    model = conv_model()
    del model.graph.initializer[0]
    for name, dims in (("w", [2, 3, 1, 1]), ("w.unread", [7])):
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
    cleaned = clean(model, "net", {"w", "w.unread"}, {})
    assert [value.name for value in cleaned.graph.input] == ["x", "w"]


def test_constants_are_initializers():
    model = conv_model()
    model.graph.initializer.remove(model.graph.initializer[0])
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=tensor("", np.ones((2, 3, 1, 1)))))
    cleaned = clean(model, "net", set(), {})
    assert [node.op_type for node in cleaned.graph.node] == ["Conv"]
    assert initializers(cleaned) == ["w"]


def test_attributes_are_in_alphabetical_order():
    model = conv_model()
    model.graph.node[0].attribute.sort(key=lambda attribute: attribute.name, reverse=True)
    cleaned = clean(model, "net", {"w"}, {})
    assert [attribute.name for attribute in cleaned.graph.node[0].attribute] == ["group", "kernel_shape", "strides"]


def test_open_batch_axes_get_one_name_and_shapes_in_between_follow():
    model = conv_model()
    model.graph.node.append(helper.make_node("Relu", ["y"], ["z"]))
    model.graph.output[0].name = "z"
    cleaned = clean(model, "net", {"w"}, {"x": {0: "batch"}, "z": {0: "batch"}})
    values = {value.name: value for value in (*cleaned.graph.input, *cleaned.graph.value_info, *cleaned.graph.output)}
    shapes = {name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for name, v in values.items()}
    assert shapes == {"x": ["batch", 3, 4, 4], "y": ["batch", 2, 4, 4], "z": ["batch", 2, 4, 4]}


def test_what_a_branch_reads_from_outside_stays():
    output = helper.make_tensor_value_info("out", TensorProto.FLOAT, [1])
    branch = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["out"], doc_string="here")], "branch", [], [output]
    )
    graph = helper.make_graph(
        [helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)],
        "main_graph",
        [helper.make_tensor_value_info("x", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        [tensor("c", [1.0])],
    )
    cleaned = clean(helper.make_model(graph, ir_version=8), "net", {"c"}, {})
    onnx.checker.check_model(cleaned, full_check=True)
    assert initializers(cleaned) == ["c"]
    assert b"here" not in cleaned.SerializeToString()
