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


def test_tokens_are_padded_to_whole_windows() -> None:
    """As torch's older exporter writes Swin: pads by remainders of sizes, which pass a table of pairs."""
    net = SparseNet()
    x = net.input("x", 2, 3, 6, 8, declared=["n", 3, 6, 8])

    def number(*values: int) -> str:
        return str(net.constant(list(values), dtype=np.int64))

    def size(of: str, axis: int) -> str:
        return str(net.op("Unsqueeze", net.op("Gather", net.op("Shape", of), net.constant(axis)), number(0)))

    def reshaped(of: str, *target: str) -> str:
        return str(net.op("Reshape", of, net.op("Concat", *target, axis=0)))

    y = net.op("Transpose", net.conv(x, 3, 16), perm=[0, 2, 3, 1])
    # An axis that is computed of others, which ONNX's inference does not follow.
    y = net.dense(reshaped(y, size(y, 0), number(-1), size(y, 3)), 16, 16)
    y = reshaped(y, size(y, 0), number(-1), number(8), size(y, 2))
    window = number(4)
    missing = [net.op("Mod", net.op("Sub", window, net.op("Mod", size(y, axis), window)), window) for axis in (2, 1)]
    listed = net.op("Concat", number(0, 0), number(0), missing[0], number(0), missing[1], number(0, 0), axis=0)
    pairs = net.op(
        "Slice", net.op("Reshape", listed, number(-1, 2)), number(-1), number(-(2**62)), number(0), number(-1)
    )
    pads = net.op("Cast", net.op("Reshape", net.op("Transpose", pairs, perm=[1, 0]), number(-1)), to=7)
    padded = net.op("Pad", y, pads)
    rows, columns = (net.op("Div", size(padded, axis), window) for axis in (1, 2))
    tiles = reshaped(padded, size(padded, 0), rows, window, columns, window, size(padded, 3))
    tiles = net.op("Transpose", tiles, perm=[0, 1, 3, 2, 4, 5])
    tiles = net.op("Softmax", net.dense(net.op("Reshape", tiles, number(-1, 16, 16)), 16, 16), axis=1)
    back = reshaped(tiles, number(-1), rows, columns, window, window, size(padded, 3))
    back = net.op("Transpose", back, perm=[0, 1, 3, 2, 4, 5])
    back = reshaped(back, number(-1), size(padded, 1), size(padded, 2), size(padded, 3))
    for axis in (1, 2):
        back = net.op("Slice", back, number(0), size(y, axis), number(axis))
    net.output(net.dense(net.op("Add", back, y), 16, 5), 2, 6, 8, 5)
    model = net.model()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    program = CpuProgram(model, ONE_THREAD)
    for batch in (2, 1, 17, 2):
        feeds = {"x": np.random.default_rng(batch).standard_normal((batch, 3, 6, 8)).astype(np.float32)}
        assert_same_as_onnxruntime(model, feeds, program)
    assert len(program.parts) == 1
