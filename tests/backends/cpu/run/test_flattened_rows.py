"""Steps on rows in front of a reshape that keeps the rows: what follows a layer is a part of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sparse_nets import SparseNet, assert_same_at_batches

from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.backends.lowering.specs import LayerNormalization, Matmul, Reshaped

pytestmark = pytest.mark.usefixtures("every_region_pays")

BATCHES = [1, 3, 17]


def working_steps(program: CpuProgram) -> list[type]:
    """What the only region does, but for reshapes."""
    (part,) = program.parts
    assert isinstance(part, RegionProgram)
    return [type(step.spec) for step in part.region.steps if not isinstance(step.spec, Reshaped)]


def vector(net: SparseNet, size: int, low: float) -> str:
    return str(net.constant(np.linspace(low, 1, size, dtype=np.float32)))


def normalized(net: SparseNet, x: str, size: int) -> str:
    """Of flattened tokens, as LeViT has it: BatchNormalization takes two axes."""
    flat = net.op("Flatten", x, axis=2)
    means = (vector(net, size, -1), vector(net, size, 0.5))
    y = net.op("BatchNormalization", flat, vector(net, size, 0.3), vector(net, size, -0.5), *means)
    return str(net.op("Reshape", y, net.op("Shape", x)))


@pytest.mark.parametrize("tokens", [7, "t"])
def test_a_normalization_of_flattened_tokens_is_folded(tokens: Any) -> None:
    net = SparseNet(opset=17)
    x = net.input("x", 2, 7, 6, declared=["n", tokens, 6])
    y = net.op("HardSwish", normalized(net, net.dense(x, 6, 8), 8))
    y = net.op("Add", normalized(net, net.dense(y, 8, 6), 6), x)
    net.output(net.dense(y, 6, 5))
    program = assert_same_at_batches(net.model(), BATCHES, {"x": (1, 7, 6)})
    assert working_steps(program) == [Matmul, Matmul, Matmul]


def keras_dense(net: SparseNet, x: str, inputs: int, outputs: int) -> str:
    """As TensorFlow computes a product of three axes: of flattened rows, which get their axes back for the bias."""
    flat = net.op("Reshape", x, net.constant([-1, inputs]))
    sizes = net.op("Concat", net.op("Slice", net.op("Shape", x), net.constant([0]), net.constant([2])),
                   net.constant([outputs]), axis=0)  # fmt: skip
    y = net.op("Reshape", net.dense(flat, inputs, outputs), sizes)
    return str(net.op("Add", y, vector(net, outputs, -1)))


@pytest.mark.parametrize("tokens", [7, "t"])
def test_bias_activation_and_residual_behind_a_reshape_are_fused(tokens: Any) -> None:
    net = SparseNet(opset=17)
    x = net.input("x", 2, 7, 6, declared=["n", tokens, 6])
    y = net.op("Relu", keras_dense(net, x, 6, 8))
    y = net.op("Add", keras_dense(net, y, 8, 6), x)
    y = net.op("LayerNormalization", y, vector(net, 6, 0.2), vector(net, 6, -1))
    net.output(keras_dense(net, y, 6, 5))
    program = assert_same_at_batches(net.model(), BATCHES, {"x": (1, 7, 6)})
    assert working_steps(program) == [Matmul, Matmul, LayerNormalization, Matmul]


def test_values_with_other_readers_stay() -> None:
    """A result of the graph, and a value that is read under both sizes."""
    net = SparseNet(opset=17)
    x = net.input("x", 2, 7, 6, declared=["n", 7, 6])
    y = net.op("Reshape", net.dense(net.op("Reshape", x, net.constant([-1, 6])), 6, 8), net.constant([-1, 7, 8]))
    z = net.op("Relu", y)
    net.output(z)
    flat = net.op("Reshape", z, net.constant([-1, 8]))
    net.output(net.dense(flat, 8, 5))
    net.output(net.op("Transpose", y, perm=[0, 2, 1]))
    assert_same_at_batches(net.model(), BATCHES, {"x": (1, 7, 6)})


def test_rows_that_are_cut_up_stay() -> None:
    """A reshape of the last axis: what follows is not on the same rows."""
    net = SparseNet(opset=17)
    x = net.input("x", 2, 7, 6, declared=["n", 7, 6])
    y = net.op("Reshape", net.dense(x, 6, 8), net.constant([-1, 7, 2, 4]))
    y = net.op("Mul", net.op("Relu", y), vector(net, 4, 0.5))
    net.output(net.dense(net.op("Reshape", y, net.constant([-1, 7, 8])), 8, 5))
    assert_same_at_batches(net.model(), BATCHES, {"x": (1, 7, 6)})


def test_a_sum_with_what_is_repeated_stays() -> None:
    net = SparseNet(opset=17)
    x = net.input("x", 2, 7, 6, declared=["n", 7, 6])
    table = net.constant(np.random.default_rng(0).standard_normal((7, 8)).astype(np.float32))
    y = net.op("Reshape", net.dense(net.op("Reshape", x, net.constant([-1, 6])), 6, 8), net.constant([-1, 7, 8]))
    each = net.op("ReduceMean", y, axes=[1], keepdims=1)
    y = net.op("Relu", net.op("Add", net.op("Add", y, table), each))
    net.output(net.dense(net.op("Reshape", y, net.constant([-1, 8])), 8, 5))
    assert_same_at_batches(net.model(), BATCHES, {"x": (1, 7, 6)})
