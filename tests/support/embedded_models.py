"""Models that Wide embeds in wider ones, and what must hold of the result."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from builders import linear, random_weight
from nets import Net, run
from onnx import numpy_helper

from sift_onnx.graphs.constants import sparse_weight_of
from sift_onnx.model import Model
from sift_onnx.passes import UnshareInitializers, Wide
from sift_onnx.passes.base import PassResult

Array = np.ndarray[Any, np.dtype[Any]]
NORMS = ("BatchNormalization", "InstanceNormalization")


def as_trained(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with parameters of normalizations, biases and zero-initialised kernels as training leaves them."""
    trained = UnshareInitializers()(Model.load(proto)).model.to_proto()
    rng = np.random.default_rng(0)
    tensors = {tensor.name: tensor for tensor in trained.graph.initializer}

    def draw(name: str, low: float, high: float) -> None:
        values = rng.uniform(low, high, tuple(tensors[name].dims)).astype(np.float32)
        tensors[name].CopyFrom(numpy_helper.from_array(values, name))

    for node in trained.graph.node:
        if node.op_type in NORMS:
            for name, low in zip(node.input[1:], (0.5, -0.3, -0.3, 0.5), strict=False):
                draw(name, low, low + (1.0 if low > 0 else 0.6))
        if node.op_type in ("Conv", "Gemm"):
            for name in node.input[2:]:
                draw(name, -0.3, 0.3)
            if not numpy_helper.to_array(tensors[node.input[1]]).any():
                draw(node.input[1], -0.1, 0.1)
    return trained


def embedded(proto: onnx.ModelProto, feeds: Mapping[str, Array], sparsity: str = "0.75", **settings: Any) -> PassResult:
    """Embed a model in a wider one, and check what is promised."""
    result = Wide(sparsity, init="embed", **settings)(proto)
    wide = result.model.to_proto()
    if not any(node.domain or node.op_type == "SimplifiedLayerNormalization" for node in wide.graph.node):
        # The checker does not know onnxruntime's operators.
        onnx.checker.check_model(wide, full_check=True)
    before, after = run(proto, feeds), run(wide, feeds)
    for output in proto.graph.output:
        expected = before[output.name]
        assert np.ptp(expected) > 0, "an output of one value tells nothing"
        np.testing.assert_allclose(after[output.name], expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert all(np.isfinite(values).all() for values in after.values() if values.dtype.kind == "f")
    assert any(layer["status"] == "sparse" for layer in result.report["layers"])
    masked, before_masks = result.model.masked(), Model.load(proto).masked()
    for layer in result.report["layers"]:
        assert layer["macs_after"] == layer["macs_before"]
        if layer["shape_after"] == layer["shape_before"]:
            continue
        assert layer["status"] == "sparse"
        masked_before = before_masks.get(layer["name"])
        assert layer["nnz"] == (math.prod(layer["shape_before"]) if masked_before is None else masked_before.nnz)
        assert sparse_weight_of(masked[layer["name"]]).nnz == layer["nnz"]
    return result


def kept_for(result: PassResult, node: str) -> str:
    """Why sizes were kept for the sake of a node; nothing if none were."""
    return "; ".join(entry["reason"] for entry in result.report["pinned"] if entry["node"] == node)


def net_of(build: Callable[[Net], None], opset: int = 20) -> Net:
    net = Net(opset)
    build(net)
    return net


def feed(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def squeeze_and_excitation(net: Net) -> None:
    x = net.images(8)
    pooled = net.op("ReduceMean", x, net.constant([2, 3]), keepdims=1)
    gate = net.conv(net.op("Relu", net.conv(pooled, 8, 4)), 4, 8)
    net.images_end(net.op("Mul", x, net.op("HardSigmoid", gate)), 8)


def perceptron(*widths: int) -> onnx.ModelProto:
    return linear({f"w{i}": random_weight(a, b, seed=i) for i, (a, b) in enumerate(itertools.pairwise(widths))})
