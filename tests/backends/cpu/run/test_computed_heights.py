"""Heights and widths that a model computes of those of its images."""

from __future__ import annotations

import numpy as np
import pytest
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime

from sift_onnx.backends.cpu.run.program import CpuProgram

pytestmark = pytest.mark.usefixtures("every_region_pays")


def test_positions_behind_two_strides_are_put_back_in_rows() -> None:
    """torch's newer exporter writes the height behind two convolutions of stride two as ``(h - 1) // 4 + 1``."""
    net = SparseNet(20)
    x = net.input("x", 2, 3, 24, 33, declared=["n", 3, "h", "w"])

    def number(value: int) -> str:
        return net.constant([value], dtype=np.int64)

    batch, height, width = (net.op("Shape", x, start=axis, end=axis + 1) for axis in (0, 2, 3))
    y = x
    for channels in (3, 8):
        y = net.op("Relu", net.conv(y, channels, 8, 3, strides=[2, 2]))
    rows = [net.op("Add", net.op("Div", net.op("Sub", s, number(1)), number(4)), number(1)) for s in (height, width)]
    flat = net.op("Reshape", y, net.op("Concat", batch, number(8), number(-1), axis=0))
    shares = net.op("Softmax", flat, axis=-1)
    back = net.op("Reshape", shares, net.op("Concat", batch, number(8), *rows, axis=0))
    net.output(net.conv(net.op("Mul", y, back), 8, 8), 2, 8, 6, 9)
    model = net.model()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    program = CpuProgram(model, ONE_THREAD)
    for batch_size, size in ((2, (24, 33)), (1, (17, 16)), (3, (9, 40))):
        feeds = {"x": np.random.default_rng(0).standard_normal((batch_size, 3, *size)).astype(np.float32)}
        assert_same_as_onnxruntime(model, feeds, program)
    assert len(program.parts) == 1
