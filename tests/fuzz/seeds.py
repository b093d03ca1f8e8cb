"""The files that mutations start from: real ones that onnx brings along, and small ones that are built here."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
from builders import branches, convolutions, linear, mask_weights, random_weight, tensor_of, tensors
from nets import Net
from onnx import TensorProto, helper

from sift_onnx.passes import Prune

__all__ = ["seed_files"]

# Of onnx's own test models: single layers that PyTorch exported, and graphs of two nodes with sequences and strings.
_BROUGHT = ("pytorch-converted", "pytorch-operator", "simple")


def seed_files() -> dict[str, bytes]:
    """Serialized models by name, the same ones each time."""
    built = {name: make().SerializeToString(deterministic=True) for name, make in _BUILT.items()}
    return built | dict(_saved_by_us()) | dict(_brought_along())


def _brought_along() -> Iterator[tuple[str, bytes]]:
    root = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for path in sorted(file for kind in _BROUGHT for file in root.glob(f"{kind}/*/model.onnx")):
        yield f"{path.parent.parent.name}/{path.parent.name}", path.read_bytes()


def _saved_by_us() -> Iterator[tuple[str, bytes]]:
    """What this package writes: masks in the metadata, and sparse initializers."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("images", "tokens"):
            pruned = Prune(0.75)(_BUILT[name]()).model
            for storage in ("dense", "sparse"):
                path = Path(folder) / f"{name}-{storage}.onnx"
                mask_weights(pruned, names=sorted(pruned.masked())).save(path, storage=storage)
                yield f"masked/{path.stem}", path.read_bytes()


def _images() -> onnx.ModelProto:
    net = Net(opset=17)
    x = net.conv(net.input("x", 1, 3, 8, 8, declared=["n", 3, 8, 8]), 3, 8, 3, name="stem")
    statistics = [net.constant(np.full(8, value, np.float32)) for value in (1.0, 0.1, 0.0, 0.9)]
    x = net.op("Relu", net.op("BatchNormalization", x, *statistics))
    h = net.op("Relu", net.conv(x, 8, 16, 3, name="up", strides=[1, 1]))
    h = net.op("Relu", net.conv(h, 16, 16, 3, name="depthwise", group=16))
    h = net.op("Add", net.conv(h, 16, 8, 1, name="down"), x)
    h = net.op("Concat", h, net.op("MaxPool", h, kernel_shape=[3, 3], pads=[1, 1, 1, 1]), axis=1)
    h = net.op("Flatten", net.op("GlobalAveragePool", h))
    net.output(net.op("Gemm", h, net.weight(16, 5, name="head.weight"), net.constant(np.zeros(5)), name="head"))
    return net.model()


def _tokens() -> onnx.ModelProto:
    """A block of a transformer: an embedding, attention whose shapes are computed, LayerNormalization, a GELU."""
    net = Net(opset=20)
    ids = net.input("ids", 2, 5, values=np.ones((2, 5), np.int64), declared=["batch", 5])
    x = net.op("Gather", net.weight(11, 12, name="embedding"), ids)
    width = net.constant([12])
    batch_and_length = net.op("Shape", ids)
    heads = net.op("Concat", batch_and_length, net.constant([3, 4]), axis=0)
    q, k, v = (
        net.op("Transpose", net.op("Reshape", net.dense(x, 12, 12, name=name), heads), perm=[0, 2, 1, 3])
        for name in ("q", "k", "v")
    )
    scores = net.op("MatMul", q, net.op("Transpose", k, perm=[0, 1, 3, 2]))
    h = net.op("MatMul", net.op("Softmax", net.op("Div", scores, net.constant(2.0))), v)
    h = net.op("Transpose", h, perm=[0, 2, 1, 3])
    h = net.op("Reshape", h, net.op("Concat", batch_and_length, width, axis=0))
    x = net.op("Add", x, net.dense(h, 12, 12, name="proj"))
    h = net.op("LayerNormalization", x, net.constant(np.ones(12)), net.constant(np.zeros(12)))
    h = net.op("Gelu", net.dense(h, 12, 24, name="fc"))
    net.output(net.op("Add", x, net.dense(h, 24, 12, name="out")))
    return net.model()


def _functions() -> onnx.ModelProto:
    net = Net(opset=20)
    inner = helper.make_node("Relu", ["a"], ["b"], name="inner")
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    net.functions = [
        helper.make_function("local", "act", ["a"], ["b"], [inner], opsets),
        helper.make_function(
            "local",
            "twice",
            ["a"],
            ["c"],
            [
                helper.make_node("act", ["a"], ["b"], domain="local"),
                helper.make_node("act", ["b"], ["c"], domain="local"),
            ],
            opsets,
        ),
    ]
    x = net.dense(net.input("x", 3, 6), 6, 8, name="stem")
    x = net.dense(net.op("act", x, domain="local"), 8, 8, name="middle")
    net.output(net.dense(net.op("twice", x, domain="local"), 8, 4, name="head"), 3, 4)
    return net.model()


def _quantized() -> onnx.ModelProto:
    net = Net(opset=21)
    scale, zero = net.constant(0.02), net.constant(0, dtype=np.int8)
    weight = net.constant(np.arange(-24, 24).reshape(6, 8), name="weight.int8", dtype=np.int8)
    x = net.dense(net.input("x", 2, 4), 4, 6, name="stem")
    x = net.op("DequantizeLinear", net.op("QuantizeLinear", x, scale, zero), scale, zero)
    x = net.op("MatMul", x, net.op("DequantizeLinear", weight, scale, zero))
    net.output(net.dense(x, 8, 2, name="head"))
    return net.model()


def _loop() -> onnx.ModelProto:
    element = TensorProto.FLOAT
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "w"], ["next"], "step"),
            helper.make_node("Identity", ["going"], ["goes-on"], "keep"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", element, [2, 4]),
        ],
        [
            helper.make_tensor_value_info("goes-on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", element, [2, 4]),
        ],
    )
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "stem"], ["h"], "stem"),
            helper.make_node("Loop", ["trips", "", "h"], ["y"], "loop", body=body),
        ],
        "loop",
        [helper.make_tensor_value_info("x", element, [2, 3])],
        [helper.make_tensor_value_info("y", element, [2, 4])],
        [
            tensor_of(random_weight(3, 4), "stem"),
            tensor_of(random_weight(4, 4, seed=1), "w"),
            tensor_of(np.asarray(3, np.int64), "trips"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _types() -> onnx.ModelProto:
    kinds = [np.float16, np.float64, np.int8, np.uint16, np.int64, np.bool_, np.complex64]
    stored = [tensor_of(np.ones((3, 4), kind), np.dtype(kind).name) for kind in kinds]
    packed = helper.make_tensor("int4", TensorProto.INT4, [3, 3], bytes([0x21, 0x43, 0x65, 0x07, 0x01]), raw=True)
    text = helper.make_tensor("text", TensorProto.STRING, [2], [b"one", b"two"])
    typed = helper.make_tensor("typed", TensorProto.FLOAT, [2, 2], [1.0, 2.0, 3.0, 4.0])
    return tensors(*stored, packed, text, typed)


def _external() -> onnx.ModelProto:
    """A model whose weight lies in ``data.bin``, which every case has beside it."""
    model = linear({"w": random_weight(8, 8), "v": random_weight(8, 8, seed=1), "u": random_weight(8, 4, seed=2)})
    for i, tensor in enumerate(model.graph.initializer[:2]):
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        entries = {"location": "data.bin", "offset": str(256 * i), "length": "256"}
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)
    return model


_BUILT: dict[str, Callable[[], onnx.ModelProto]] = {
    "images": _images,
    "tokens": _tokens,
    "functions": _functions,
    "quantized": _quantized,
    "loop": _loop,
    "types": _types,
    "external": _external,
    "linear": lambda: linear({"w": random_weight(6, 8), "v": random_weight(8, 8, seed=1), "u": random_weight(8, 4)}),
    "linear-ir3": lambda: linear({"w": random_weight(6, 8), "u": random_weight(8, 4)}, ir_version=3),
    "convolutions": convolutions,
    "branches": lambda: branches(random_weight(4), random_weight(4, seed=1)),
}
