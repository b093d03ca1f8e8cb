"""Layerwise passes on graphs as they come: what is replaced works as before, what cannot be is left with a reason."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import tensor_of
from nets import Net, run
from onnx import TensorProto, helper, numpy_helper

from sift_onnx.errors import UnsupportedError
from sift_onnx.passes import Doped, Factorized, LowRank, Parallel

ml_dtypes = pytest.importorskip("ml_dtypes")

# Gives the same outputs where every layer is replaced as it should be.
SAME = Parallel("0.75", activation="none", init="embed")
OTHERS = (
    Parallel("0.75"),
    Factorized("0.5"),
    Factorized("0.5", init="svd"),
    Doped("0.5"),
    Doped("0.5", init="svd", activation="none"),
    LowRank(1),
)


def convolutional(middle: Callable[[Net, str], str], opset: int = 17) -> Net:
    """A stem of 8 channels, ``middle``, and a head."""
    net = Net(opset=opset)
    x = middle(net, net.conv(net.input("x", 1, 3, 8, 8), 3, 8, 3, name="stem"))
    net.output(net.conv(x, 8, 4, name="head"))
    return net


def linear(middle: Callable[[Net, str], str], opset: int = 17) -> Net:
    """A stem of 16 features, ``middle``, and a head."""
    net = Net(opset=opset)
    x = middle(net, net.dense(net.input("x", 2, 4), 4, 16, name="stem"))
    net.output(net.dense(x, 16, 3, name="head"))
    return net


def batch_norm(net: Net, x: str, name: str, scale: float = 1.0, outputs: int = 1, **attrs: object) -> str:
    vectors = [net.constant((np.linspace(a, b, 8) * f).astype(np.float32)) for a, b, f in
               ((1, 2, scale), (-1, 1, 1), (0, 1, 1), (1, 3, 1))]  # fmt: skip
    found = net.op("BatchNormalization", x, *vectors, name=name, outputs=outputs, **attrs)
    return found if outputs == 1 else found[0]


def bias(net: Net, size: int, name: str = "") -> str:
    return net.constant(np.linspace(-1, 1, size).astype(np.float32), name)


def conv(
    net: Net, x: str, *more: str, name: str = "layer", shape: tuple[int, ...] = (8, 8, 3, 3), **attrs: object
) -> str:
    if "auto_pad" not in attrs:
        attrs.setdefault("pads", [1] * 2 * (len(shape) - 2))
    weight = net.weight(*shape, name=f"{name}.weight", fan_in=int(np.prod(shape[1:])))
    return net.op("Conv", x, weight, *more, name=name, **attrs)


def gemm(net: Net, x: str, **attrs: object) -> str:
    shape = (16, 16)
    return net.op("Gemm", x, net.weight(*shape, name="layer.weight"), bias(net, 16), name="layer", **attrs)


def behind_carriers(net: Net, x: str) -> str:
    turned = net.op("Transpose", net.weight(16, 16, name="layer.weight"), perm=[1, 0])
    product = net.op("MatMul", x, net.op("Identity", turned), name="layer")
    return net.op("Add", bias(net, 16), product)


def shared_bias(net: Net, x: str) -> str:
    vector = bias(net, 8)
    return conv(net, conv(net, x, vector, name="first"), vector)


def shared_weight(net: Net, x: str) -> str:
    first = conv(net, x, bias(net, 8))
    return net.op("Conv", first, "layer.weight", name="second", pads=[2] * 4, dilations=[2, 2])


def constant_nodes(net: Net, x: str) -> str:
    values = np.random.default_rng(0).standard_normal((8, 8, 3, 3)).astype(np.float32) / 8
    weight = net.op("Constant", name="layer.weight", value=numpy_helper.from_array(values))
    return net.op("Conv", x, weight, name="layer", pads=[1] * 4)


def computed_bias(net: Net, x: str) -> str:
    return conv(net, x, net.op("ReduceMean", x, axes=[0, 2, 3], keepdims=0))


def output_between(net: Net, x: str) -> str:
    y = conv(net, x, bias(net, 8))
    net.output(y)
    return batch_norm(net, y, "bn")


def output_behind(net: Net, x: str) -> str:
    y = batch_norm(net, conv(net, x, bias(net, 8)), "bn")
    net.output(y)
    return net.op("Relu", y)


def odd_names(net: Net, x: str) -> str:
    return conv(net, x, bias(net, 8, "b [0]/ü"), name="layer [x]::/*")


def taken_names(net: Net, x: str) -> str:
    x = net.op(
        "Conv", x, net.weight(8, 8, 3, 3, name="layer.branch0.weight"), bias(net, 8, "layer.U.weight"), pads=[1] * 4
    )
    return conv(net, x, bias(net, 8, "layer.branch0.bias"))


GRAPHS = {
    "convolution": convolutional(lambda net, x: conv(net, x, bias(net, 8))),
    "convolution without bias": convolutional(conv),
    "automatic padding": convolutional(lambda net, x: conv(net, x, auto_pad="SAME_UPPER", strides=[2, 2])),
    "groups": convolutional(lambda net, x: conv(net, x, shape=(8, 4, 3, 3), group=2)),
    "strides and dilations": convolutional(lambda net, x: conv(net, x, strides=[2, 1], dilations=[1, 2])),
    "normalization": convolutional(lambda net, x: batch_norm(net, conv(net, x), "bn")),
    "shared bias": convolutional(shared_bias),
    "shared weight": convolutional(shared_weight),
    "Constant nodes": convolutional(constant_nodes),
    "computed bias": convolutional(computed_bias),
    "output before the normalization": convolutional(output_between),
    "output behind the normalization": convolutional(output_behind),
    "odd names": convolutional(odd_names),
    "taken names": convolutional(taken_names),
    "Gemm": linear(lambda net, x: gemm(net, x)),
    "Gemm with factors": linear(lambda net, x: gemm(net, x, alpha=2.0, beta=0.5, transB=1)),
    "behind Transpose and Identity": linear(behind_carriers),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_layer_is_replaced_where_it_stands(name: str) -> None:
    net = GRAPHS[name]
    proto = net.model()
    expected = run(proto, net.feeds)
    outputs = [info.name for info in proto.graph.output]
    for pass_ in (SAME, *OTHERS):
        result = pass_(proto)
        found_proto = result.model.to_proto()
        onnx.checker.check_model(found_proto, full_check=True)
        onnx.shape_inference.infer_shapes(found_proto, check_type=True, strict_mode=True, data_prop=True)
        found = run(found_proto, net.feeds)
        for output in outputs:
            assert found[output].shape == expected[output].shape
            assert np.isfinite(found[output]).all()
            if pass_ is SAME:
                np.testing.assert_allclose(found[output], expected[output], rtol=1e-4, atol=1e-5)
        replaced = [layer for layer in result.report["layers"] if layer["status"] != "unchanged"]
        assert replaced
        if pass_.name != "low-rank":
            assert all(layer["macs_after"] == layer["macs_before"] for layer in replaced)
        again = pass_(found_proto)
        assert not again.changed
        assert again.model.to_proto().SerializeToString() == found_proto.SerializeToString()


@pytest.mark.parametrize("opset", [7, 8, 9, 10])
def test_a_gemm_of_an_old_opset_is_replaced_where_it_stands(opset: int) -> None:
    net = linear(lambda net, x: gemm(net, x, alpha=2.0, beta=0.5, transB=1), opset)
    proto = net.model()
    expected = run(proto, net.feeds)["head"]
    for pass_ in (SAME, *OTHERS):
        found_proto = pass_(proto).model.to_proto()
        onnx.checker.check_model(found_proto, full_check=True)
        found = run(found_proto, net.feeds)["head"]
        assert np.isfinite(found).all()
        if pass_ is SAME:
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(16, 0), (0, 16)])
def test_a_layer_without_weights_is_left_with_a_reason(shape: tuple[int, int]) -> None:
    def middle(net: Net, x: str) -> str:
        x = net.op("MatMul", x, net.constant(np.zeros((16, shape[0]))))
        x = net.op("MatMul", x, net.weight(*shape, name="w"))
        return net.op("MatMul", x, net.constant(np.zeros((shape[1], 16))))

    net = linear(lambda net, x: net.dense(middle(net, x), 16, 16, name="layer"))
    proto = net.model()
    for pass_ in (SAME, *OTHERS):
        result = pass_(proto)
        reasons = {layer["name"]: layer["reason"] for layer in result.report["layers"]}
        if pass_.name != "low-rank":
            assert reasons["w"] == "it has no weights"
        onnx.checker.check_model(result.model.to_proto(), full_check=True)
        assert np.isfinite(run(result.model.to_proto(), net.feeds)["head"]).all()


@pytest.mark.parametrize("rank", [1, 3])
def test_convolutions_of_other_ranks(rank: int) -> None:
    net = Net(opset=17)
    x = conv(net, net.input("x", 1, 3, *[6] * rank), name="stem", shape=(8, 3, *[3] * rank))
    x = batch_norm(net, conv(net, x, shape=(8, 8, *[3] * rank)), "bn")
    net.output(conv(net, x, name="head", shape=(2, 8, *[1] * rank), pads=[0] * 2 * rank))
    proto = net.model()
    before, after = run(proto, net.feeds), run(SAME(proto).model.to_proto(), net.feeds)
    np.testing.assert_allclose(after["head"], before["head"], rtol=1e-4, atol=1e-5)
    for pass_ in OTHERS:
        assert np.isfinite(run(pass_(proto).model.to_proto(), net.feeds)["head"]).all()


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (lambda net, x: gemm(net, net.op("Transpose", x), transA=1), "transposes the activations"),
        (
            lambda net, x: net.op("Gemm", x, net.weight(16, 16), net.constant(np.ones((1, 16), np.float32))),
            "is not a stored vector of 16 biases",
        ),
        (
            lambda net, x: net.op("Transpose", net.op("MatMul", net.weight(16, 16), net.op("Transpose", x))),
            "does not read it as its second input",
        ),
    ],
)
def test_what_cannot_be_replaced_is_left_with_a_reason(layer: Callable[[Net, str], str], reason: str) -> None:
    net = linear(lambda net, x: net.dense(layer(net, x), 16, 16, name="other"))
    proto = net.model()
    result = SAME(proto)
    unchanged = [entry for entry in result.report["layers"] if entry["status"] == "unchanged"]
    assert any(reason in entry["reason"] for entry in unchanged)
    before, after = run(proto, net.feeds), run(result.model.to_proto(), net.feeds)
    np.testing.assert_allclose(after["head"], before["head"], rtol=1e-4, atol=1e-5)


def test_nothing_to_replace_is_said_with_the_reasons() -> None:
    with pytest.raises(UnsupportedError, match=r"'stem\.weight': first layer; 'head\.weight': last layer"):
        SAME(linear(lambda net, x: net.op("Relu", x)).model())


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16], ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("function", ["Relu", "Erf", "Tanh"])
def test_other_float_types(dtype: type, function: str) -> None:
    """Weights, biases and the constants of written-out activations keep the type of the model."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    rng = np.random.default_rng(0)
    shapes = {"stem": (8, 16), "w": (16, 16), "b": (16,), "head": (16, 4)}
    weights = [tensor_of(rng.standard_normal(shape).astype(dtype), name) for name, shape in shapes.items()]
    one = tensor_of(np.asarray(1).astype(dtype).reshape(()), "one")
    nodes = [
        helper.make_node("MatMul", ["x", "stem"], ["h"]),
        helper.make_node(function, ["h"], ["f"]),
        helper.make_node("Add", ["f", "one"], ["g"]),
        helper.make_node("MatMul", ["g", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["m"]),
        helper.make_node("MatMul", ["m", "head"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(name, element, shape) for name, shape in (("x", [2, 8]), ("y", [2, 4]))]
    graph = helper.make_graph(nodes, "typed", infos[:1], infos[1:], [*weights, one])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for pass_ in (SAME, *OTHERS):
        found = pass_(proto).model.to_proto()
        onnx.checker.check_model(found, full_check=True)
        assert {tensor.data_type for tensor in found.graph.initializer} == {element}


def branched(
    then: list[onnx.NodeProto], otherwise: list[onnx.NodeProto], more: list[onnx.NodeProto]
) -> onnx.ModelProto:
    """``h = x stem``, ``more``, an If whose branches make ``t`` and ``e``, and ``y = i head`` behind it."""

    def branch(name: str, nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 8])])

    rng = np.random.default_rng(0)
    sizes = {"stem": (4, 8), "w": (8, 8), "v": (8, 8), "b": (8,), "head": (8, 3)}
    weights = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in sizes.items()]
    weights.append(numpy_helper.from_array(np.array(True), "flag"))
    nodes = [
        helper.make_node("MatMul", ["x", "stem"], ["h"], "stem"),
        *more,
        helper.make_node(
            "If", ["flag"], ["i"], "if", then_branch=branch("t", then), else_branch=branch("e", otherwise)
        ),
        helper.make_node("MatMul", ["i", "v"], ["k"], "behind"),
        helper.make_node("MatMul", ["k", "head"], ["y"], "head"),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [2, 4]), ("y", [2, 3])))
    graph = helper.make_graph(nodes, "branched", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


LAYER = [helper.make_node("MatMul", ["h", "w"], ["p"], "layer")]
BIASED = [*LAYER, helper.make_node("Add", ["p", "b"], ["q"], "biased")]
FROM_H = [helper.make_node("Identity", ["h"], ["e"])]


@pytest.mark.parametrize(
    "proto",
    [
        # The one reader of the product is in a branch, and looks like the layer's bias.
        branched([helper.make_node("Add", ["p", "b"], ["t"])], FROM_H, LAYER),
        # The bias belongs to the layer and to a branch; a branch reads the product before the bias.
        branched([helper.make_node("Add", ["q", "b"], ["t"])], [helper.make_node("Identity", ["p"], ["e"])], BIASED),
        # A branch multiplies by the weight too.
        branched([helper.make_node("MatMul", ["q", "w"], ["t"])], FROM_H, BIASED),
        # Only branches do.
        branched([helper.make_node("MatMul", ["h", "w"], ["t"])], FROM_H, []),
    ],
)
def test_branches_go_on_reading_what_they_read(proto: onnx.ModelProto) -> None:
    onnx.checker.check_model(proto, full_check=True)
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 4)).astype(np.float32)}

    def computed(model: onnx.ModelProto) -> np.ndarray:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return session.run(None, feeds)[0]

    np.testing.assert_allclose(computed(SAME(proto).model.to_proto()), computed(proto), rtol=1e-4, atol=1e-4)
    for pass_ in OTHERS:
        found = pass_(proto).model.to_proto()
        onnx.checker.check_model(found, full_check=True)
        assert np.isfinite(computed(found)).all()


def test_weights_that_are_inputs_too() -> None:
    """IR version 3: what took a weight's place is listed as an input, the weight no more."""
    net = convolutional(lambda net, x: conv(net, x, bias(net, 8, "layer.bias")), opset=8)
    proto = net.model()
    proto.ir_version = 3
    proto.graph.input.extend(
        helper.make_tensor_value_info(t.name, TensorProto.FLOAT, list(t.dims)) for t in proto.graph.initializer
    )
    before = run(proto, net.feeds)
    found = SAME(proto).model.to_proto()
    onnx.checker.check_model(found, full_check=True)
    assert found.ir_version == 3
    inputs, stored = {i.name for i in found.graph.input}, {t.name for t in found.graph.initializer}
    assert inputs - stored == {"x"}
    assert "layer.weight" not in inputs
    assert "layer.branch3.weight" in inputs
    np.testing.assert_allclose(run(found, net.feeds)["head"], before["head"], rtol=1e-4, atol=1e-5)


def test_a_normalization_in_training_mode_is_the_layer_s_own() -> None:
    """It is put into inference mode first; each branch gets one like it."""
    net = convolutional(lambda net, x: batch_norm(net, conv(net, x), "bn", outputs=3, training_mode=1))
    for pass_, count in ((Parallel("0.75"), 4), (SAME, 1), (Factorized("0.5"), 2), (Doped("0.5"), 2)):
        found = pass_(net.model()).model.to_proto()
        onnx.checker.check_model(found, full_check=True)
        norms = [node for node in found.graph.node if node.op_type == "BatchNormalization"]
        assert len(norms) == count
        assert all(len(node.output) == 1 for node in norms)
        assert not any(attribute.name == "training_mode" for node in norms for attribute in node.attribute)


def test_a_normalization_whose_new_statistics_are_read_is_refused() -> None:
    """There are none at inference."""
    net = convolutional(lambda net, x: batch_norm(net, conv(net, x), "bn", outputs=3, training_mode=1))
    net.output("bn.1", 8)
    with pytest.raises(UnsupportedError, match=r"the model returns its running statistics 'bn\.1'"):
        Parallel("0.75")(net.model())


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_no_rectifier_stands_behind_a_scale_of_zero(scale: float) -> None:
    """Where a residual branch starts at zero, its gradient would be zero too."""
    net = convolutional(lambda net, x: net.op("Add", x, batch_norm(net, conv(net, x), "bn", scale=scale)))
    for pass_ in (Parallel("0.75"), Factorized("0.5"), Doped("0.5"), LowRank(1), Doped("0.5", init="svd")):
        found = pass_(net.model()).model.to_proto()
        values = {t.name: numpy_helper.to_array(t) for t in found.graph.initializer}
        makers = {node.output[0]: node for node in found.graph.node}
        scales = [makers[node.input[0]].input[1] for node in found.graph.node if node.op_type == "Relu"]
        assert scales
        assert all(np.all(values[name] != 0) for name in scales)


def test_a_zero_initialised_branch_stays_zero_behind_the_last_factor() -> None:
    """Folded exports have zero weights; a last factor of zeros has a gradient."""
    net = convolutional(lambda net, x: net.op("Add", x, conv(net, x)))
    proto = net.model()
    weight = next(t for t in proto.graph.initializer if t.name == "layer.weight")
    weight.CopyFrom(numpy_helper.from_array(np.zeros(weight.dims, np.float32), weight.name))
    for pass_ in (Factorized("0.5"), LowRank(1)):
        result = pass_(proto)
        values = {t.name: numpy_helper.to_array(t) for t in result.model.to_proto().graph.initializer}
        assert not values["layer.V.weight"].any()
        assert values["layer.U.weight"].any()
        again = pass_(result.model.to_proto())
        assert not again.changed
    for pass_ in (Parallel("0.5"), Doped("0.5")):
        values = {t.name: numpy_helper.to_array(t) for t in pass_(proto).model.to_proto().graph.initializer}
        assert all(v.any() for name, v in values.items() if name.startswith("layer.") and name.endswith((".weight",)))


@pytest.mark.parametrize("opset", [13, 17])
def test_a_weight_whose_shape_alone_is_read_does_not_stay(opset: int) -> None:
    """As exporters have it that compute the zeros of a missing bias; the type may be asked for too."""

    def layer(net: Net, x: str) -> str:
        shape = net.op("Shape", net.weight(8, 8, 3, 3, name="layer.weight"), **({"end": -3} if opset > 14 else {}))
        size = shape if opset > 14 else net.op("Gather", shape, net.constant([0], dtype=np.int64), axis=0)
        zero = net.constant(np.float32(0))
        zeros = net.op("Expand", net.op("CastLike", zero, "layer.weight") if opset > 14 else zero, size)
        return net.op("Conv", x, "layer.weight", zeros, name="layer", pads=[1] * 4)

    net = convolutional(layer, opset)
    proto = net.model()
    found = SAME(proto).model.to_proto()
    onnx.checker.check_model(found, full_check=True)
    assert "layer.weight" not in {tensor.name for tensor in found.graph.initializer}
    before, after = run(proto, net.feeds), run(found, net.feeds)
    np.testing.assert_allclose(after["head"], before["head"], rtol=1e-4, atol=1e-5)
