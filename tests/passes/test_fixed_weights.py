"""Fixed functions in transforms: they keep their values, are no layers, and the layers before them are the last."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from nets import Net
from onnx import numpy_helper

from sift_onnx.analysis.cost import inspect
from sift_onnx.analysis.first_and_last import first_and_last
from sift_onnx.analysis.graph_analysis import analyze
from sift_onnx.model import Model, masks
from sift_onnx.passes import Doped, Factorized, Parallel, Prune, Wide

BINS, CLASSES = 16, 4
BLUR = np.outer([1.0, 2, 1], [1, 2, 1]) / 16
HEADS = {f"{branch}{scale}.weight" for branch in ("box", "class") for scale in range(3)}


def detector() -> onnx.ModelProto:
    """A head as YOLOv8 has it: per scale a branch for boxes, as distributions over bins, and one for classes."""
    net = Net()
    h = net.conv(net.input("x", 1, 3, 32, 32), 3, 8, 3, name="stem", strides=[2, 2])
    scales, cells = [], 0
    for scale, size in enumerate((8, 4, 2)):
        h = net.op("Relu", net.conv(net.op("Relu", h), 8, 8, 3, name=f"down{scale}", strides=[2, 2]))
        box = net.op("Relu", net.conv(h, 8, 8, 3, name=f"box_before{scale}"))
        kind = net.op("Relu", net.conv(h, 8, 8, 3, name=f"class_before{scale}"))
        box, kind = net.conv(box, 8, 4 * BINS, name=f"box{scale}"), net.conv(kind, 8, CLASSES, name=f"class{scale}")
        both = net.op("Concat", box, kind, axis=1)
        scales.append(net.op("Reshape", both, net.constant([1, 4 * BINS + CLASSES, -1])))
        cells += size * size
    box, kind = net.op("Split", net.op("Concat", *scales, axis=2), net.constant([4 * BINS, CLASSES]), outputs=2, axis=1)
    bins = net.op("Transpose", net.op("Reshape", box, net.constant([1, 4, BINS, cells])), perm=[0, 2, 1, 3])
    weight = net.constant(np.arange(BINS, dtype=np.float32).reshape(1, BINS, 1, 1), "integral.weight")
    sides = net.op("Conv", net.op("Softmax", bins, axis=1), weight, name="integral")
    sides = net.op("Reshape", sides, net.constant([1, 4, cells]))
    near, far = net.op("Split", sides, net.constant([2, 2]), outputs=2, axis=1)
    anchors = net.constant(np.arange(2 * cells, dtype=np.float32).reshape(1, 2, cells) / cells)
    corner, other = net.op("Sub", anchors, near), net.op("Add", anchors, far)
    middle = net.op("Div", net.op("Add", corner, other), net.constant([2.0]))
    boxes = net.op("Concat", middle, net.op("Sub", other, corner), axis=1)
    net.output(net.op("Concat", boxes, net.op("Sigmoid", kind), axis=1))
    return net.model()


def weight(model: Any, name: str) -> Any:
    proto = model if isinstance(model, onnx.ModelProto) else model.to_proto()
    (tensor,) = (tensor for tensor in proto.graph.initializer if tensor.name == name)
    return numpy_helper.to_array(tensor)


def run(model: Any, x: Any) -> Any:
    proto = model if isinstance(model, onnx.ModelProto) else model.to_proto()
    return onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})[0]


def test_the_last_layers_of_a_detector_are_the_convolutions_before_its_integral() -> None:
    roles = first_and_last(analyze(Model.load(detector())))
    assert roles == {"stem.weight": "first layer"} | dict.fromkeys(HEADS, "last layer")


@pytest.mark.parametrize(
    "transform",
    [
        Wide(0.75),
        Wide(0.75, init="embed"),
        Wide(0.5, pattern="2:4"),
        Parallel(0.5),
        Factorized(0.5),
        Doped(0.75),
        Prune(0.75),
        Prune(0.75, method="random"),
    ],
    ids=lambda transform: f"{transform.name}-{getattr(transform, 'init', '')}-{transform.masking.pattern}",
)
def test_a_detector_keeps_its_integral_and_dense_last_layers(transform: Any) -> None:
    model = detector()
    result = transform(model)
    assert result.changed
    np.testing.assert_array_equal(weight(result.model, "integral.weight"), weight(model, "integral.weight"))
    layers = {layer["name"]: layer for layer in result.report["layers"]}
    assert layers["integral.weight"]["status"] == "unchanged"
    assert "fixed function: 0, 1, ..., 15 is an arithmetic progression" in layers["integral.weight"]["reason"]
    assert "integral.weight" not in masks(result.model)
    if getattr(transform, "init", "random") != "embed":
        assert not HEADS & masks(result.model).keys()
        assert {layers[name]["reason"] for name in HEADS} == {"last layer"}
    assert run(result.model, np.zeros((1, 3, 32, 32), np.float32)).shape == (1, 4 + CLASSES, 84)
    assert not transform(result.model).changed


def test_an_embedded_detector_computes_what_the_original_does() -> None:
    model = detector()
    x = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)
    np.testing.assert_allclose(run(Wide(0.75, init="embed")(model).model, x), run(model, x), atol=1e-5)


def test_a_detector_costs_the_same_after_it_is_widened() -> None:
    totals = Wide(0.75)(detector()).report["totals"]
    assert totals["weight_macs_ratio"] == pytest.approx(1, abs=1e-3)


def blurred() -> onnx.ModelProto:
    """Layers with a blur between them, one kernel for all channels."""
    net = Net()
    h = net.op("Relu", net.conv(net.input("x", 1, 3, 16, 16), 3, 8, 3, name="stem"))
    h = net.op("Relu", net.conv(h, 8, 8, 3, name="before"))
    kernel = net.constant(np.tile(BLUR, (8, 1, 1, 1)).astype(np.float32), "blur.weight")
    h = net.op("Conv", h, kernel, name="blur", group=8, strides=[2, 2], pads=[1] * 4)
    h = net.op("Relu", net.conv(h, 8, 8, 3, name="after"))
    net.output(net.conv(h, 8, 2, name="head"))
    return net.model()


@pytest.mark.parametrize("init", ["random", "embed"])
def test_a_blur_has_the_same_kernel_for_the_channels_that_are_added(init: Any) -> None:
    result = Wide(0.75, init=init)(blurred())
    kernels = weight(result.model, "blur.weight")
    assert kernels.shape == (16, 1, 3, 3)
    np.testing.assert_array_equal(kernels, np.tile(BLUR, (16, 1, 1, 1)).astype(np.float32))
    (layer,) = (layer for layer in result.report["layers"] if layer["name"] == "blur.weight")
    assert (layer["status"], layer["sparsity"]) == ("dense", 0)
    after = inspect(result.model).to_dict()["totals"]
    assert after["effective_macs"] == result.report["totals"]["weight_macs_after"]
    if init == "embed":
        x = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)
        np.testing.assert_allclose(run(result.model, x), run(blurred(), x), atol=1e-5)
    assert not Wide(0.75, init=init)(result.model).changed


def test_a_blur_is_not_pruned_and_no_last_layer() -> None:
    result = Prune(0.5)(blurred())
    assert masks(result.model).keys() == {"before.weight", "after.weight"}


def test_what_transforms_a_signal_before_the_first_layer_is_not_one() -> None:
    net = Net()
    angles = 2 * np.pi * np.outer(np.arange(17), np.arange(32)) / 32
    waves = np.concatenate([np.cos(angles), -np.sin(angles)])[:, None].astype(np.float32)
    h = net.op("Conv", net.input("x", 1, 1, 320), net.constant(waves, "waves"), name="stft", strides=[16])
    h = net.op("Conv", h, net.weight(8, 34, 3, name="first"), name="conv0")
    h = net.op("Conv", net.op("Relu", h), net.weight(8, 8, 3, name="second"), name="conv1")
    net.output(net.op("Conv", net.op("Relu", h), net.weight(2, 8, 1, name="third"), name="conv2"))
    model = Model.load(net.model())
    assert first_and_last(analyze(model)) == {"first": "first layer", "third": "last layer"}
    result = Wide(0.75, budget="layer")(model)
    np.testing.assert_array_equal(weight(result.model, "waves"), waves)
