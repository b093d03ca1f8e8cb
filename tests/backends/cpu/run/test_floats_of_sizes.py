"""Parameters and tables that a model arranges by sizes which are numbers are constants to the kernels."""

from __future__ import annotations

import numpy as np
import pytest
from sparse_nets import SparseNet, assert_same_at_batches, left_to_onnxruntime

from sift_onnx.backends.lowering import graph

pytestmark = pytest.mark.usefixtures("every_region_pays")


def channels_of(net: SparseNet, x: str) -> str:
    size = net.op("Gather", net.op("Shape", x), net.constant(1, dtype=np.int64), axis=0)
    return str(net.op("Unsqueeze", size, net.constant([0], dtype=np.int64)))


def normalized_images(width: int = 6) -> SparseNet:
    """LayerNorm over channels as image restoration networks write it, with ``weight.view(1, x.shape[1], 1, 1)``."""
    net = SparseNet()
    x = net.conv(net.input("x", 2, 4, 8, 8, declared=["n", 4, "h", "w"]), 4, width, 3)
    ones = net.constant([1], dtype=np.int64)
    target = net.op("Concat", ones, channels_of(net, x), ones, ones, axis=0)
    scale, shift = (
        net.op("Reshape", net.constant(values, dtype=np.float32), target)
        for values in (np.linspace(0.5, 1.5, width), np.linspace(-1, 1, width))
    )
    centred = net.op("Sub", x, net.op("ReduceMean", x, ones))
    variance = net.op("ReduceMean", net.op("Mul", centred, centred), ones)
    y = net.op("Div", centred, net.op("Sqrt", net.op("Add", variance, net.constant(1e-6, dtype=np.float32))))
    net.output(net.conv(net.op("Add", net.op("Mul", y, scale), shift), width, 4, 3))
    return net


def biased_tokens(width: int = 6, tokens: int = 9) -> SparseNet:
    """A bias that is looked up by positions, which the model counts out of the number of its channels."""
    net = SparseNet()
    x = net.op("MatMul", net.input("x", 2, tokens, 4, declared=["n", tokens, 4]), net.weight(4, width))
    count = net.op("Squeeze", channels_of(net, net.op("Transpose", x, perm=[0, 1, 2])))
    zero, one = (net.constant(value, dtype=np.int64) for value in (0, 1))
    places = net.op("Range", zero, count, one)
    table = net.constant(np.random.default_rng(3).standard_normal((tokens, width)), dtype=np.float32)
    bias = net.op("Gather", table, net.op("Sub", net.constant(tokens - 1, dtype=np.int64), places), axis=0)
    net.output(net.op("MatMul", net.op("Relu", net.op("Add", x, bias)), net.weight(width, 5)))
    return net


def test_a_scale_by_channels_is_no_operand_from_outside() -> None:
    program = assert_same_at_batches(normalized_images().model(), [1, 3, 16], {"x": (1, 4, 8, 6)})
    (part,) = program.parts
    assert left_to_onnxruntime(program) == {}
    assert part.region.constants == {}
    assert {type(step.spec).__name__ for step in part.region.steps} == {"Conv", "LayerNormalization"}


@pytest.mark.parametrize("most", [1 << 18, 4])
def test_a_small_table_that_positions_look_up_is_a_constant(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "_MOST_FOLDED", most)
    program = assert_same_at_batches(biased_tokens().model(), [1, 3])
    ops = {placement.op: placement.placement for placement in program.placements}
    assert (ops["Range"] == "folded") == (most > 4)
    assert ops["MatMul"] == "kernels"


def test_what_follows_from_open_sizes_is_no_constant() -> None:
    net = SparseNet()
    x = net.conv(net.input("x", 2, 4, 8, 8, declared=["n", 4, "h", 8]), 4, 6, 3)
    height = net.op("Gather", net.op("Shape", x), net.constant(2, dtype=np.int64), axis=0)
    factor = net.op("Sqrt", net.op("Cast", height, to=1))
    net.output(net.conv(net.op("Mul", x, factor), 6, 4, 3))
    for height in (8, 10, 5):
        assert_same_at_batches(net.model(), [2], {"x": (2, 4, height, 8)})
