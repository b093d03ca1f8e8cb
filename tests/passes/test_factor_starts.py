"""Starts from trained weights: singular values for Factorized, Doped and low rank; hands dealt to Parallel."""

from __future__ import annotations

import json
from functools import lru_cache

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import linear, random_weight
from nets import Net, run
from onnx import numpy_helper

from sift_onnx.errors import UnsupportedError
from sift_onnx.passes import Doped, Factorized, LowRank, Parallel, Pass, Prune

torch = pytest.importorskip("torch")


@lru_cache
def resnet(*, decaying: bool) -> onnx.ModelProto:
    """ResNet-18 of a quarter of the width; ``decaying`` singular values are what training makes of fresh ones."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from sift_onnx.models import export

    with TemporaryDirectory() as folder:
        export("resnet18-cifar", Path(folder) / "m.onnx", width=0.25, num_classes=10, keep_batch_norm=False, seed=1)
        proto = onnx.load(Path(folder) / "m.onnx")
    for tensor in proto.graph.initializer if decaying else ():
        if len(tensor.dims) == 4:
            values = numpy_helper.to_array(tensor)
            left, singular, right = np.linalg.svd(values.reshape(values.shape[0], -1), full_matrices=False)
            scaled = singular * np.arange(1, singular.size + 1) ** -0.7
            scaled *= np.linalg.norm(singular) / np.linalg.norm(scaled)
            decayed = ((left * scaled) @ right).reshape(values.shape).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(decayed, tensor.name))
    return proto


def outputs(proto: onnx.ModelProto) -> np.ndarray:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    image = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)
    return session.run(None, {session.get_inputs()[0].name: image})[0].astype(np.float64)


def weights(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t).astype(np.float64) for t in proto.graph.initializer}


def matrix(weight: np.ndarray) -> np.ndarray:
    return weight.reshape(weight.shape[0], -1)


def distance(approximation: np.ndarray, weight: np.ndarray) -> float:
    return float(np.linalg.norm(approximation - matrix(weight)) / np.linalg.norm(weight))


def pruned(weight: np.ndarray, nnz: int) -> np.ndarray:
    """The ``nnz`` largest entries of a matrix."""
    kept = np.sort(np.abs(weight).reshape(-1))[-nnz]
    return np.where(np.abs(weight) >= kept, weight, 0)


@pytest.mark.parametrize("decaying", [False, True])
def test_doped_is_nearer_to_the_weights_than_pruning_to_the_same_sparsity(decaying: bool) -> None:
    proto = resnet(decaying=decaying)
    before = weights(proto)
    doped = Doped("0.5", init="svd", activation="none")(proto)
    after, masked = weights(doped.model.to_proto()), weights(Prune("0.5")(proto).model.to_proto())
    compared = 0
    for layer in doped.report["layers"]:
        if "parts" not in layer:
            continue
        weight = before[layer["name"]]
        u, v, s = (matrix(after[part["name"]]) for part in layer["parts"])
        found = distance(v @ u + s, weight)
        alone = distance(pruned(matrix(weight), weight.size // 2), weight)
        assert alone == pytest.approx(distance(matrix(masked[layer["name"]]), weight))
        assert found < alone, layer["name"]
        assert layer["weight_error"] == pytest.approx(found, rel=1e-4)
        compared += 1
    assert compared == 19


@pytest.mark.parametrize(
    ("pass_", "bound"),
    [
        (Doped("0.5", init="svd", activation="none"), 0.6),
        (Factorized("0.5", init="svd", activation="none"), 0.8),
        (LowRank(1, init="svd", activation="none"), 0.8),
    ],
)
def test_trained_weights_are_approximated(pass_: Doped | Factorized | LowRank, bound: float) -> None:
    """Relative error of the outputs, and of each weight: reported, true, and smaller where singular values decay."""
    errors = {}
    for decaying in (False, True):
        proto = resnet(decaying=decaying)
        result = pass_(proto)
        assert json.loads(json.dumps(result.report))["init"] == "svd"
        before, after = weights(proto), weights(result.model.to_proto())
        layers = [layer for layer in result.report["layers"] if "parts" in layer]
        for layer in layers:
            u, v, *sparse = (matrix(after[part["name"]]) for part in layer["parts"])
            found = distance(v @ u + sum(sparse), before[layer["name"]])
            assert layer["weight_error"] == pytest.approx(found, rel=1e-4)
        expected, got = outputs(proto), outputs(result.model.to_proto())
        error = float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
        errors[decaying] = [error, float(np.mean([layer["weight_error"] for layer in layers]))]
    assert errors[True][0] < bound
    assert errors[True][1] < errors[False][1]


def test_every_feature_of_a_start_from_singular_values_is_reached_by_gradients() -> None:
    """Factorized: more features than the weight has rank; U reads something for each of them."""
    net = Net()
    x = net.dense(net.input("x", 2, 4), 4, 16, name="stem")
    net.output(net.dense(net.op("Relu", net.dense(net.op("Relu", x), 16, 16, name="layer")), 16, 3, name="head"))
    result = Factorized("0.75", init="svd")(net.model())
    u = weights(result.model.to_proto())["layer.U.weight"]
    assert u.shape == (16, 32)
    assert np.all(np.abs(u).sum(axis=0) > 0)


@pytest.mark.parametrize("opset", [11, 17])
def test_parallel_without_activation_computes_what_the_original_computes(opset: int) -> None:
    net = Net(opset=opset)
    x = net.conv(net.input("x", 1, 3, 8, 8), 3, 16, 3, name="stem")
    y = net.conv(net.op("Relu", x), 16, 24, 3, name="a", strides=[2, 2])
    vectors = [
        net.constant(np.linspace(low, high, 24).astype(np.float32)) for low, high in ((1, 2), (-1, 1), (0, 1), (1, 3))
    ]
    y = net.op("Relu", net.op("BatchNormalization", y, *vectors, name="bn"))
    net.output(net.conv(net.op("Relu", net.conv(y, 24, 16, 1, name="b")), 16, 4, name="head"))
    proto = net.model()
    for sparsity, branches in (("0.5", 2), ("0.75", 4), ("0.9", 10)):
        result = Parallel(sparsity, init="embed", activation="none")(proto)
        dealt = weights(result.model.to_proto())
        for name in ("a", "b"):
            hands = [dealt[f"{name}.branch{j}.weight"] for j in range(branches)]
            assert np.array_equal(sum(hands), weights(proto)[f"{name}.weight"])
            assert np.max(sum((hand != 0).astype(int) for hand in hands)) == 1
        before, after = run(proto, net.feeds), run(result.model.to_proto(), net.feeds)
        scale = np.abs(before["head"]).max()
        np.testing.assert_allclose(after["head"], before["head"], rtol=1e-5, atol=1e-5 * scale)


@pytest.mark.parametrize("pass_", [Parallel("0.75", init="embed", activation="none")])
def test_resnet_computes_what_it_computed(pass_: Parallel) -> None:
    expected, found = outputs(resnet(decaying=True)), outputs(pass_(resnet(decaying=True)).model.to_proto())
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("family", [Factorized(0.5, init="svd"), Doped(0.5, init="svd"), LowRank(1, init="svd")])
def test_weights_that_are_not_finite_are_not_approximated(family: Pass) -> None:
    bad = np.full((8, 8), np.nan, np.float32)
    model = linear({"a": random_weight(8, 8), "bad": bad, "c": random_weight(8, 8)})
    with pytest.raises(UnsupportedError, match=r"'bad' has values that are not finite.*`keep_dense`"):
        family(model)
