"""The non-linearity inside layerwise passes: which one, how it is spelled, and its own normalization."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from nets import Net, run

from sift_onnx.errors import UnsupportedError
from sift_onnx.passes import Doped, Factorized, LowRank, Parallel

pytest.importorskip("torch")

Export = Callable[..., onnx.ModelProto]
OPSETS = (11, 13, 17, 20, 23)


def gelu(net: Net, x: str) -> str:
    scaled = net.op("Erf", net.op("Div", x, net.constant(np.float32(2**0.5))))
    return net.op(
        "Mul", net.op("Mul", x, net.op("Add", scaled, net.constant(np.float32(1)))), net.constant(np.float32(0.5))
    )


def gelu_tanh(net: Net, x: str) -> str:
    cube = net.op("Mul", net.op("Pow", x, net.constant(np.float32(3))), net.constant(np.float32(0.044715)))
    inner = net.op("Mul", net.op("Add", x, cube), net.constant(np.float32((2 / np.pi) ** 0.5)))
    gate = net.op("Add", net.op("Tanh", inner), net.constant(np.float32(1)))
    return net.op("Mul", net.op("Mul", x, gate), net.constant(np.float32(0.5)))


OWN = {
    "relu": lambda net, x: net.op("Relu", x),
    "gelu": gelu,
    "gelu-tanh": gelu_tanh,
    "silu": lambda net, x: net.op("Mul", x, net.op("Sigmoid", x)),
    "tanh": lambda net, x: net.op("Tanh", x),
}
# As numpy has them; a function that is not known gives way to ReLU.
EXPECTED = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(__import__("math").erf)(x / 2**0.5)),
    "gelu-tanh": lambda x: 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": lambda x: np.maximum(x, 0),
}


def mlp(own: str, opset: int) -> Net:
    net = Net(opset=opset)
    x = OWN[own](net, net.dense(net.input("x", 5, 4), 4, 16, name="stem"))
    net.output(net.dense(OWN[own](net, net.dense(x, 16, 24, name="layer")), 24, 3, name="head"))
    return net


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("own", OWN)
def test_a_linear_layer_gets_the_model_s_own_function_in_the_words_of_its_opset(own: str, opset: int) -> None:
    net = mlp(own, opset)
    proto = Factorized("0.5")(net.model()).model.to_proto()
    onnx.checker.check_model(proto, full_check=True)
    # The reference knows every opset, onnxruntime not the newest.
    values = run(proto, net.feeds, reference=True)
    u, v = (next(n for n in proto.graph.node if n.name == f"layer.{part}") for part in "UV")
    hidden, given = values[u.output[0]], values[v.input[0]]
    np.testing.assert_allclose(given, EXPECTED[own](hidden), rtol=1e-4, atol=1e-5)
    assert np.any(np.abs(given - hidden) > 1e-3)


@pytest.mark.parametrize("opset", [7, 8])
def test_a_function_that_an_old_opset_cannot_write_is_refused(opset: int) -> None:
    with pytest.raises(UnsupportedError, match=rf"'gelu' cannot be written in opset {opset}; use `activation='relu'`"):
        Factorized("0.5", activation="gelu")(mlp("relu", opset).model())


def small_cnn(*, norm: bool = False, opset: int = 17) -> Net:
    net = Net(opset=opset)
    x = net.op("Relu", net.conv(net.input("x", 1, 3, 8, 8), 3, 16, 3, name="stem"))
    y = net.conv(x, 16, 24, 3, name="layer")
    if norm:
        y = net.op(
            "BatchNormalization", y, *(net.constant([v] * 24) for v in (1.0, 0.0, 0.0, 1.0)), name="bn", epsilon=1e-3
        )
    net.output(net.conv(net.op("Relu", y), 24, 4, name="head"))
    return net


def operators(pass_: Parallel | Factorized | Doped | LowRank, net: Net) -> Counter[str]:
    proto = pass_(net.model()).model.to_proto()
    onnx.checker.check_model(proto, full_check=True)
    assert np.isfinite(run(proto, net.feeds)["head"]).all()
    return Counter(node.op_type for node in proto.graph.node)


@pytest.mark.parametrize(
    ("activation", "norm", "norms", "relus"),
    # Besides the two ReLUs of the network itself.
    [("auto", False, 4, 4), ("auto", True, 4, 4), ("none", False, 0, 0), ("none", True, 1, 0), ("relu", False, 0, 4),
     ("relu", True, 4, 4), ("bn-relu", False, 4, 4), ("gelu", True, 4, 0)],
)  # fmt: skip
def test_branches_of_a_convolution(activation: str, norm: bool, norms: int, relus: int) -> None:
    found = operators(Parallel("0.75", activation=activation), small_cnn(norm=norm))
    assert (found["BatchNormalization"], found["Relu"] - 2, found["Conv"]) == (norms, relus, 6)
    assert found["Add"] - 4 * (activation == "gelu") == 3


@pytest.mark.parametrize("opset", OPSETS)
def test_every_family_in_every_opset(opset: int) -> None:
    for net in (small_cnn(opset=opset), small_cnn(norm=True, opset=opset), mlp("gelu", opset)):
        for family in (Parallel, Factorized, Doped):
            onnx.checker.check_model(family("0.75")(net.model()).model.to_proto(), full_check=True)


def test_factors_keep_the_normalization_behind_them() -> None:
    found = operators(Factorized("0.5"), small_cnn(norm=True))
    assert (found["BatchNormalization"], found["Conv"]) == (2, 4)
    found = operators(Doped("0.5"), small_cnn(norm=True))
    assert (found["BatchNormalization"], found["Conv"], found["Add"]) == (2, 5, 1)


def test_a_new_normalization_changes_nothing_at_first() -> None:
    net = small_cnn()
    proto = Factorized("0.5")(net.model()).model.to_proto()
    values = run(proto, net.feeds)
    norm = next(node for node in proto.graph.node if node.op_type == "BatchNormalization")
    np.testing.assert_allclose(values[norm.output[0]], values[norm.input[0]], rtol=1e-6)


def test_no_batch_normalization_is_put_behind_a_product_whose_features_are_last() -> None:
    with pytest.raises(UnsupportedError, match=r"no BatchNormalization can follow MatMul 'layer'.*`keep_dense`"):
        Parallel("0.75", activation="bn-relu")(mlp("relu", 17).model())


@pytest.mark.parametrize("pass_", [Parallel("0.75"), Parallel("0.9"), Factorized("0.75"), Doped("0.5"), LowRank(1)],
                         ids=lambda p: p.name)  # fmt: skip
def test_outputs_keep_their_spread(pass_: Parallel | Factorized | Doped | LowRank) -> None:
    """Second moment of a fresh layer's output, within a factor of three of what it was."""
    net = Net(opset=17)
    x = net.op("Relu", net.conv(net.input("x", 4, 3, 16, 16), 3, 32, 3, name="stem"))
    net.output(net.conv(net.op("Identity", net.conv(x, 32, 48, 3, name="layer"), name="out"), 48, 4, name="head"))
    proto = net.model()
    before, after = run(proto, net.feeds), run(pass_(proto).model.to_proto(), net.feeds)
    ratio = np.mean(np.square(after["out"])) / np.mean(np.square(before["out"]))
    assert 1 / 3 < ratio < 3


VARIANTS = ("torchscript-folded-dynamic", "torchscript-kept-static", "dynamo-folded-static", "dynamo-kept-dynamic")


@pytest.mark.parametrize(
    "variant", [pytest.param(v, marks=[pytest.mark.slow] * v.startswith("dynamo")) for v in VARIANTS]
)
def test_a_residual_network_of_either_exporter(exported: Export, variant: str) -> None:
    proto = exported("resnet18-cifar", variant, 0.125)
    kept = "kept" in variant
    for pass_, norms in (
        (Parallel("0.75"), 4),
        (Factorized("0.5"), 2 if kept else 1),
        (Doped("0.5"), 2 if kept else 1),
    ):
        result = pass_(proto)
        found = result.model.to_proto()
        onnx.checker.check_model(found, full_check=True)
        onnx.shape_inference.infer_shapes(found, check_type=True, strict_mode=True, data_prop=True)
        assert result.report["totals"]["weight_macs_ratio"] == 1
        # 19 layers are replaced; stem and classifier are not, and only the stem has a normalization.
        assert sum("parts" in layer for layer in result.report["layers"]) == 19
        count = sum(node.op_type == "BatchNormalization" for node in found.graph.node)
        assert count == 19 * norms + kept
        assert [i.type for i in found.graph.input] == [i.type for i in proto.graph.input]
        for batch in (1, 3) if variant.endswith("dynamic") else (1,):
            image = np.random.default_rng(0).standard_normal((batch, 3, 32, 32)).astype(np.float32)
            (output,) = (run(found, {found.graph.input[0].name: image})[o.name] for o in found.graph.output)
            assert output.shape[0] == batch
            assert np.isfinite(output).all()


@pytest.mark.parametrize(
    ("variant", "width"),
    [
        ("torchscript-folded-static", "1.41"),
        *(pytest.param("torchscript-folded-static", width, marks=pytest.mark.slow) for width in ("1", "2")),
        pytest.param("dynamo-kept-dynamic", "1.41", marks=pytest.mark.slow),
    ],
)
def test_low_rank_at_the_widths_of_table_11(exported: Export, variant: str, width: str) -> None:
    proto = exported("resnet18-cifar", variant, 0.5)
    pass_ = LowRank(width)
    result = pass_(proto)
    found = result.model.to_proto()
    onnx.checker.check_model(found, full_check=True)
    # Ranks are whole numbers: what is left over pays for less than one more.
    assert 0.999 <= result.report["totals"]["weight_macs_ratio"] <= 1
    assert result.report["width_factor"] == pytest.approx(float(width))
    assert {layer["status"] for layer in result.report["layers"] if "parts" in layer} == {"dense"}
    assert not result.model.masked()
    image = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)
    assert all(np.isfinite(run(found, {found.graph.input[0].name: image})[o.name]).all() for o in found.graph.output)
    again = pass_(found)
    assert not again.changed
    assert {layer["reason"] for layer in again.report["layers"]} == {"transformed before, with these settings"}
    assert again.model.to_proto().SerializeToString() == found.SerializeToString()
    assert pass_(proto).model.to_proto().SerializeToString() == found.SerializeToString()
