"""Global pooling as torch exports it where channels are last: a strided view whose places are counted at run time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from sparse_nets import SparseNet, assert_same_as_onnxruntime, left_to_onnxruntime

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu.run.program import CpuProgram

pytestmark = pytest.mark.usefixtures("every_region_pays")

CHANNELS = 24


def pooled(read: int) -> Any:
    """A layer, its mean over all pixels, ``as_strided`` of ``read`` channels for each image, and a head."""
    net = SparseNet(opset=18)
    x = net.conv(net.input("x", 2, 3, 6, 6, declared=["n", 3, 6, 6]), 3, CHANNELS, name="layer")
    mean = net.op("ReduceMean", x, net.constant([-1, -2]), keepdims=1, name="mean")
    flat = net.op("Reshape", mean, net.constant([-1]))
    images = net.op("Squeeze", net.op("Shape", "x", start=0, end=1))
    rows = net.op("Mul", net.op("Range", net.constant(0), images, net.constant(1)), net.constant(read))
    rows = net.op("Unsqueeze", rows, net.constant([1, 2, 3]))
    places = net.op("Add", rows, net.constant(np.arange(read).reshape(1, read, 1, 1)))
    view = net.op("Gather", flat, net.op("Add", places, net.constant([[[[0]]]])), name="view")
    last = net.op("Transpose", view, perm=[0, 2, 3, 1])
    one = net.constant(np.ones(read, np.float32))
    normal = net.op("LayerNormalization", last, one, net.constant(np.zeros(read, np.float32)))
    head = net.op("Reshape", net.op("Transpose", normal, perm=[0, 3, 1, 2]), net.constant([-1, read]))
    net.output(net.dense(head, read, 8, name="head"))
    model = net.model()
    del model.graph.value_info[:]
    for name, channels in (("mean", CHANNELS), ("view", read)):
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", channels, 1, 1])
        model.graph.value_info.append(value)
    return model


def feeds_of(batch: int) -> dict[str, Any]:
    return {"x": np.random.default_rng(batch).standard_normal((batch, 3, 6, 6)).astype(np.float32)}


def test_a_view_of_the_whole_is_in_the_region_of_its_layers() -> None:
    model = pooled(CHANNELS)
    program = CpuProgram(model, CompileOptions(threads=1, deterministic=True))
    for batch in (1, 2, 5, 17):
        assert_same_as_onnxruntime(model, feeds_of(batch), program)
    assert left_to_onnxruntime(program) == {}
    assert len(program.parts) == 1


def test_a_view_of_a_part_is_looked_up_in() -> None:
    """Of other images' channels as well: half as many of each as there are."""
    model = pooled(CHANNELS // 2)
    program = CpuProgram(model, CompileOptions(threads=1, deterministic=True))
    for batch in (1, 3):
        assert_same_as_onnxruntime(model, feeds_of(batch), program)
    assert "view" in left_to_onnxruntime(program)
