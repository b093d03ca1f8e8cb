"""Models that were exported for training: what becomes of them, and what cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from nets import Net
from onnx import helper, numpy_helper

import sift_onnx
from sift_onnx.errors import UnsupportedError
from sift_onnx.passes import (
    Densify,
    Doped,
    Factorized,
    FoldBatchNorm,
    InferenceMode,
    LowRank,
    Parallel,
    Prune,
    Wide,
    run_recipe,
)
from sift_onnx.passes.base import Pass
from sift_onnx.recipe import Recipe

Array = np.ndarray[Any, np.dtype[Any]]
STATISTICS = {11: 5, 13: 5, 14: 3, 17: 3, 20: 3}


def network(opset: int = 17, *, training: bool = True, attributes: bool = True, dropout: str = "flag") -> Net:
    """Three convolutions on a batch of any size, with BatchNormalization behind the second and Dropout behind that."""
    net = Net(opset)
    x = net.input("x", 2, 3, 6, 6, declared=["batch", 3, 6, 6])
    x = net.op("Relu", net.conv(x, 3, 16, 3, name="stem"))
    rng = np.random.default_rng(3)
    values = {"scale": rng.uniform(0.5, 1.5, 16), "shift": rng.uniform(-1, 1, 16)}
    values |= {"mean": rng.uniform(-1, 1, 16), "var": rng.uniform(0.5, 1.5, 16)}
    parameters = [net.constant(value, f"bn.{name}") for name, value in values.items()]
    mode = {"training_mode": int(training)} if opset >= 14 and attributes else {}
    outputs = STATISTICS[opset] if training else 1
    y = net.op("BatchNormalization", net.conv(x, 16, 16, 3, name="a"), *parameters, name="bn", outputs=outputs, **mode)
    y = y if isinstance(y, str) else y[0]
    if opset >= 12:
        ratio = net.constant(np.float32(0.5), "ratio")
        if dropout == "flag":
            flag = net.constant(np.array(training), "flag")
        else:
            value = numpy_helper.from_array(np.array(dropout == "node"), "value")
            flag = net.op("Constant", name="flag", value=value)
            flag = net.op("Not", flag, name="negated") if dropout == "negated" else flag
        y = net.op("Dropout", y, ratio, flag, name="drop", outputs=2 if training else 1)
    else:
        y = net.op("Dropout", y, name="drop", ratio=0.5, outputs=2 if training else 1)
    y = y if isinstance(y, str) else y[0]
    x = net.op("Add", x, net.conv(net.op("Relu", y), 16, 16, 3, name="b"))
    net.output(net.conv(net.op("Relu", x), 16, 4, name="head"), "batch", 4, 6, 6)  # type: ignore[arg-type]
    return net


def computed(proto: onnx.ModelProto, x: Array) -> Array:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def images(count: int = 5) -> Array:
    return np.random.default_rng(0).standard_normal((count, 3, 6, 6)).astype(np.float32)


def assert_alone_as_in_batch(proto: onnx.ModelProto) -> None:
    x = images()
    together = computed(proto, x)
    for i in range(len(x)):
        np.testing.assert_allclose(computed(proto, x[i : i + 1])[0], together[i], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("opset", STATISTICS)
def test_a_training_export_computes_what_the_inference_export_does(opset: int) -> None:
    result = InferenceMode()(network(opset).model())
    assert result.changed
    assert result.report["inference_mode"] == (["bn", "drop"] if opset >= 12 else ["bn"])
    found = result.model.to_proto()
    onnx.checker.check_model(found, full_check=True)
    x = images()
    np.testing.assert_array_equal(computed(found, x), computed(network(opset, training=False).model(), x))
    norms = [node for node in found.graph.node if node.op_type == "BatchNormalization"]
    assert [len(node.output) for node in norms] == [1]
    again = InferenceMode()(result.model)
    assert not again.changed
    assert again.model is result.model


@pytest.mark.parametrize("opset", STATISTICS)
def test_an_inference_export_is_handed_back_as_it_is(opset: int) -> None:
    model = sift_onnx.load(network(opset, training=False).model())
    result = InferenceMode()(model)
    assert result.model is model
    assert not result.changed


@pytest.mark.parametrize("dropout", ["node", "negated"])
def test_a_mode_that_nodes_make_is_known_and_goes_with_them(dropout: str) -> None:
    proto = network(dropout=dropout).model()
    found = InferenceMode()(proto).model.to_proto()
    drop = next(node for node in found.graph.node if node.op_type == "Dropout")
    assert list(drop.input) == ["bn", "ratio"]
    assert not [node for node in found.graph.node if node.op_type in ("Constant", "Not")]


def test_a_constant_that_something_else_reads_stays() -> None:
    net = network(dropout="node")
    net.output(net.op("Identity", "flag", name="shown"))
    proto = net.model()
    proto.graph.output[1].CopyFrom(helper.make_tensor_value_info("shown", onnx.TensorProto.BOOL, []))
    found = InferenceMode()(proto).model.to_proto()
    assert [node.name for node in found.graph.node if node.op_type == "Constant"] == ["flag"]


PASSES: dict[str, Callable[[], Pass]] = {
    "wide": lambda: Wide("0.75", budget="layer"),
    "wide-embed": lambda: Wide("0.75", init="embed"),
    "wide-of-nothing": lambda: Wide(0),
    "parallel": lambda: Parallel("0.75"),
    "factorized": lambda: Factorized("0.5"),
    "doped": lambda: Doped("0.5"),
    "doped-of-nothing": lambda: Doped(0),
    "low-rank": lambda: LowRank(1),
    "prune": lambda: Prune("0.5"),
    "prune-of-nothing": lambda: Prune(0),
    "densify": lambda: Densify(),
    "fold-batch-norm": lambda: FoldBatchNorm(),
}


@pytest.mark.parametrize("name", PASSES)
def test_whatever_a_pass_makes_is_an_inference_graph(name: str) -> None:
    result = PASSES[name]()(network().model())
    assert result.changed
    assert result.report["inference_mode"] == ["bn", "drop"]
    found = result.model.to_proto()
    onnx.checker.check_model(found, full_check=True)
    assert_alone_as_in_batch(found)
    again = PASSES[name]()(result.model)
    assert not again.changed
    assert again.report["inference_mode"] == []


@pytest.mark.parametrize(
    "passes", [["unshare-initializers"], ["inference-mode"], [{"prune": {"sparsity": 0.5}}, "densify"]]
)
def test_whatever_a_recipe_makes_is_an_inference_graph(passes: list[Any]) -> None:
    result = run_recipe(sift_onnx.load(network().model()), Recipe.of({"passes": passes}))
    assert result.changed
    assert result.report["inference_mode"] == ["bn", "drop"]
    assert_alone_as_in_batch(result.model.to_proto())


def test_a_model_that_was_transformed_in_training_mode_before_is_put_into_inference_mode() -> None:
    before = Parallel("0.75")(network(training=False).model()).model.to_proto()
    for node in before.graph.node:
        if node.op_type == "BatchNormalization":
            del node.attribute[:]
            node.attribute.append(helper.make_attribute("training_mode", 1))
            node.output.extend([f"{node.name}.mean", f"{node.name}.var"])
    result = Parallel("0.75")(before)
    assert result.changed
    assert_alone_as_in_batch(result.model.to_proto())


def in_branch(training: bool) -> onnx.ModelProto:
    """``y = Dropout(BatchNormalization(x)) if flag else x``, within a branch."""

    def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        output = helper.make_tensor_value_info(f"{name}.out", onnx.TensorProto.FLOAT, ["n", 4])
        return helper.make_graph(list(nodes), name, [], [output])

    parameters = ["scale", "shift", "mean", "var"]
    norm = helper.make_node(
        "BatchNormalization", ["x", *parameters], ["normal", "m", "v"][: 3 if training else 1], "bn",
        training_mode=int(training),
    )  # fmt: skip
    then = branch("then", norm, helper.make_node("Dropout", ["normal", "ratio", "flag"], ["then.out"], "drop"))
    otherwise = branch("else", helper.make_node("Identity", ["x"], ["else.out"]))
    values = {name: np.linspace(0.5, 1, 4, dtype=np.float32) for name in parameters}
    values |= {"ratio": np.float32(0.5), "flag": np.array(training)}
    graph = helper.make_graph(
        [helper.make_node("If", ["flag"], ["y"], "if", then_branch=then, else_branch=otherwise)],
        "branches",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_nodes_in_branches_are_put_into_inference_mode() -> None:
    result = InferenceMode()(in_branch(True))
    assert result.report["inference_mode"] == ["bn", "drop"]
    found = result.model.to_proto()
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in found.graph.initializer}
    expected = (x - values["mean"]) / np.sqrt(values["var"] + 1e-5) * values["scale"] + values["shift"]
    np.testing.assert_allclose(computed(found, x), expected, rtol=1e-5)


def in_function(training: bool, *, mode: str = "attribute") -> onnx.ModelProto:
    """BatchNormalization in a local function; its mode is that of the function or of the call."""
    net = Net(17)
    parameters = ["scale", "shift", "mean", "var"]
    norm = helper.make_node(
        "BatchNormalization", ["a", *parameters], ["b", "m", "v"], "bn", training_mode=int(training)
    )
    given: dict[str, Any] = {}
    if mode == "call":
        attribute = next(entry for entry in norm.attribute if entry.name == "training_mode")
        attribute.CopyFrom(onnx.AttributeProto(name="training_mode", type=attribute.type, ref_attr_name="trains"))
        given = {"trains": int(training)}
    if not training:
        del norm.output[1:]
    function = helper.make_function(
        "local", "Normal", ["a", *parameters], ["b"], [norm], [helper.make_opsetid("", 17)], list(given)
    )
    net.functions.append(function)
    x = net.input("x", 3, 4, declared=["n", 4])
    stored = [net.constant(np.linspace(0.5, 1, 4), name) for name in parameters]
    net.output(net.op("Normal", x, *stored, domain="local", name="call", **given), "n", 4)  # type: ignore[arg-type]
    return net.model()


@pytest.mark.parametrize("mode", ["attribute", "call"])
def test_functions_that_train_are_inlined_and_others_stay(mode: str) -> None:
    result = InferenceMode()(in_function(True, mode=mode))
    assert result.changed
    found = result.model.to_proto()
    assert not found.functions
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    np.testing.assert_array_equal(computed(found, x), computed(in_function(False, mode=mode), x))
    assert not InferenceMode()(in_function(False, mode=mode)).changed


def test_opsets_that_say_is_test_get_it() -> None:
    net = Net(6)
    x = net.input("x", 2, 4, 3, 3)
    parameters = [net.constant(np.ones(4), name) for name in ("scale", "shift", "mean", "var")]
    y = net.op("BatchNormalization", x, *parameters, name="bn", outputs=5)
    net.output(net.op("Dropout", y[0], name="drop"), 2, 4, 3, 3)
    result = InferenceMode()(net.model())
    assert result.report["inference_mode"] == ["bn", "drop"]
    nodes = result.model.to_proto().graph.node
    assert [helper.get_node_attr_value(node, "is_test") for node in nodes] == [1, 1]
    assert [len(node.output) for node in nodes] == [1, 1]
    assert not InferenceMode()(result.model).changed


def test_statistics_that_are_written_over_the_old_ones_are_those_that_are_used() -> None:
    """The specification asked for that before opset 9."""
    net = Net(11)
    x = net.input("x", 2, 4, 3, 3)
    parameters = [net.constant(np.linspace(0.5, 1, 4), name) for name in ("scale", "shift", "mean", "var")]
    outputs = net.op("BatchNormalization", x, *parameters, name="bn", outputs=5)
    net.output(outputs[0], 2, 4, 3, 3)
    proto = net.model()
    proto.graph.node[0].output[1:3] = ["mean", "var"]
    found = InferenceMode()(proto).model.to_proto()
    assert list(found.graph.node[0].output) == ["bn"]
    assert {tensor.name for tensor in found.graph.initializer} == {"scale", "shift", "mean", "var"}
    onnx.checker.check_model(found, full_check=True)


def test_dropouts_of_onnxruntime_are_put_into_inference_mode() -> None:
    net = Net(17)
    x = net.input("x", 2, 4)
    inputs = [x, net.constant(np.ones(4)), x, net.constant(np.float32(0.5)), net.constant(np.array(True))]
    y = net.op("BiasDropout", *inputs, domain="com.microsoft", name="drop", outputs=2)
    net.output(y[0], 2, 4)
    found = InferenceMode()(net.model()).model.to_proto()
    assert len(found.graph.node[0].input) == 4
    assert list(found.graph.node[0].output) == ["drop"]


def test_statistics_that_are_read_are_refused_by_name() -> None:
    net = network()
    net.output(net.op("Mul", "bn.1", "bn.1", name="squares"), 16)
    with pytest.raises(UnsupportedError, match=r"'bn' \(BatchNormalization\) cannot .* node 'squares' reads its runn"):
        Wide("0.75")(net.model())


def test_statistics_that_are_outputs_are_refused_by_name() -> None:
    net = network()
    net.output("bn.2", 16)
    with pytest.raises(UnsupportedError, match=r"'bn' .* the model returns its running statistics 'bn.2'"):
        Prune("0.5")(net.model())


def test_a_mask_that_is_an_output_is_refused_by_name() -> None:
    net = network()
    net.output("drop.1")
    proto = net.model()
    with pytest.raises(UnsupportedError, match=r"'drop' \(Dropout\) .* the model returns its mask 'drop.1'"):
        InferenceMode()(proto)


def test_a_mode_that_is_an_input_is_refused_by_name() -> None:
    proto = network().model()
    kept = [tensor for tensor in proto.graph.initializer if tensor.name != "flag"]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    proto.graph.input.append(helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, []))
    with pytest.raises(UnsupportedError, match=r"'drop' \(Dropout\) .* training_mode 'flag' is not a constant"):
        Wide("0.75")(proto)


@pytest.mark.parametrize("training", [0, 1])
def test_statistics_of_the_batch_are_refused_by_name(training: int) -> None:
    """What both exporters of torch write for ``track_running_stats=False``."""
    net = Net(17)
    x = net.op("Relu", net.conv(net.input("x", 2, 3, 6, 6), 3, 8, 3, name="stem"))
    y = net.conv(x, 8, 8, 3, name="a")
    mean = net.op("ReduceMean", y, axes=[0, 2, 3], keepdims=0, name="mean")
    centred = net.op("Sub", y, net.op("ReduceMean", y, axes=[0, 2, 3], name="wide-mean"), name="centred")
    square = net.op("Mul", centred, centred, name="square")
    variance = net.op("ReduceMean", square, axes=[0, 2, 3], keepdims=0, name="variance")
    stored = [net.constant(np.ones(8), "bn.weight"), net.constant(np.zeros(8), "bn.bias")]
    outputs = 3 if training else 1
    y = net.op(
        "BatchNormalization", y, *stored, mean, variance, name="bn", outputs=outputs, training_mode=training
    )  # fmt: skip
    x = net.op("Add", x, net.conv(y[0] if training else y, 8, 8, 3, name="b"))
    net.output(net.conv(x, 8, 4, name="head"), 2, 4, 6, 6)
    for pass_ in (InferenceMode(), Wide("0.75"), Densify()):
        with pytest.raises(UnsupportedError, match=r"'bn' .* no running statistics .*track_running_stats=False"):
            pass_(net.model())


def test_a_standardized_weight_is_no_training() -> None:
    """It is normalized by statistics of its own, which no sample has a part in."""
    net = Net(17)
    weight = net.weight(1, 8, 27, name="weight")
    parameters = [net.constant(np.full(8, value), name) for name, value in (("one", 1), ("zero", 0), ("var", 1))]
    one, zero, variance = parameters
    normal = net.op("BatchNormalization", weight, one, zero, zero, variance, name="bn", outputs=3, training_mode=1)
    kernel = net.op("Reshape", normal[0], net.constant(np.array([8, 3, 3, 3])), name="kernel")
    x = net.input("x", 2, 3, 6, 6)
    net.output(net.op("Conv", x, kernel, name="conv"), 2, 8, 4, 4)
    result = InferenceMode()(net.model())
    assert not result.changed


def test_running_statistics_that_are_fed_are_used() -> None:
    """As in functional exports, where parameters are inputs."""
    net = Net(17)
    x = net.input("x", 2, 4)
    fed = [net.input(name, 4, values=np.ones(4, np.float32)) for name in ("scale", "shift", "mean", "var")]
    y = net.op("BatchNormalization", x, *fed, name="bn", outputs=3, training_mode=1)
    net.output(y[0], 2, 4)
    result = InferenceMode()(net.model())
    assert result.report["inference_mode"] == ["bn"]


def test_nodes_that_draw_are_warned_of_by_name() -> None:
    net = Net(17)
    x = net.op("Relu", net.conv(net.input("x", 1, 3, 6, 6), 3, 16, 3, name="stem"))
    noise = net.op("RandomUniformLike", x, name="noise")
    y = net.op("Mul", net.op("Relu", net.conv(x, 16, 16, 3, name="a")), noise)
    net.output(net.conv(net.conv(y, 16, 16, 3, name="b"), 16, 4, name="head"), 1, 4, 6, 6)
    report = Prune("0.5")(net.model()).report
    assert [text for text in report["warnings"] if "'noise' (RandomUniformLike) draw random numbers" in text]
