"""Softmax and extremes along any axis, roots, and what else is neither a layer nor a copy, against onnxruntime."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sparse_nets import (
    ONE_THREAD,
    SparseNet,
    assert_same_as_onnxruntime,
    assert_same_at_batches,
    left_to_onnxruntime,
    reasons,
)

from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.errors import UsageError

pytestmark = pytest.mark.usefixtures("every_region_pays")

BATCHES = [1, 3, 17]
CHANNELS, SIZE, TOKENS, WIDTH = 7, 5, 6, 9


def integers(net: SparseNet, *values: int) -> str:
    return str(net.constant(values, dtype=np.int64))


def images(net: SparseNet, size: Any = SIZE) -> str:
    x = net.input("x", 2, 4, SIZE, SIZE, declared=["n", 4, size, size])
    return str(net.conv(net.op("Relu", net.conv(x, 4, 6)), 6, CHANNELS, name="before"))


def tokens(net: SparseNet, length: Any = TOKENS) -> str:
    return str(net.dense(net.input("x", 2, TOKENS, 5, declared=["n", length, 5]), 5, WIDTH, name="before"))


def attention_pooling(net: SparseNet) -> str:
    """A sum of tokens by weights that are one for each of them."""
    x = tokens(net)
    weights = net.op("Softmax", net.dense(x, WIDTH, 1), axis=1)
    return net.dense(net.op("ReduceSum", net.op("Mul", x, weights), integers(net, 1), keepdims=0), WIDTH, 3)


def softmax_of_tokens(net: SparseNet) -> str:
    return net.dense(net.op("LogSoftmax", tokens(net), axis=1), WIDTH, 3)


def softmax_of_rows(net: SparseNet) -> str:
    return net.conv(net.op("Softmax", images(net), axis=2), CHANNELS, 3)


def softmax_of_the_batch(net: SparseNet) -> str:
    return net.dense(net.op("Softmax", tokens(net), axis=0), WIDTH, 3)


def largest_tokens(net: SparseNet) -> str:
    x = tokens(net)
    both = net.op("ReduceMax", x, integers(net, 1), keepdims=0), net.op("ReduceMin", x, integers(net, 1), keepdims=0)
    return net.dense(net.op("Concat", *both, axis=1), 2 * WIDTH, 3)


def largest_channels(net: SparseNet) -> str:
    """As attention to places in an image has it."""
    x = images(net)
    both = net.op("ReduceMax", x, integers(net, 1)), net.op("ReduceMin", x, integers(net, 1))
    return net.op("Mul", x, net.op("Sigmoid", net.conv(net.op("Concat", *both, axis=1), 2, 1, 3)))


def largest_rows(net: SparseNet) -> str:
    return net.dense(net.op("ReduceMax", images(net), integers(net, 2), keepdims=0), SIZE, 3)


def largest_columns(net: SparseNet) -> str:
    return net.dense(net.op("ReduceMin", images(net), integers(net, -1), keepdims=0), SIZE, 3)


def largest_of_several_axes(net: SparseNet) -> str:
    x = images(net)
    first = net.op("ReduceMin", x, integers(net, 2, 3), keepdims=0)
    second = net.op("ReduceMax", x, integers(net, 2, 1), keepdims=0)
    return str(net.op("Concat", net.dense(first, CHANNELS, 3), second, axis=1))


def largest_of_the_batch(net: SparseNet) -> str:
    return net.dense(net.op("ReduceMax", tokens(net), integers(net, 0)), WIDTH, 3)


def deviations(net: SparseNet) -> str:
    """Statistics of a speaker's sound: roots of means of squares."""
    x = tokens(net)
    mean = net.op("ReduceMean", net.op("Mul", x, x), integers(net, 1), keepdims=0)
    return net.dense(net.op("Relu", net.op("Sqrt", net.op("Clip", mean, net.constant(1e-4)))), WIDTH, 3)


def roots_of_images(net: SparseNet) -> str:
    x = net.op("Pow", net.op("Abs", images(net)), net.constant(0.5))
    return net.conv(net.op("Transpose", net.op("Sqrt", net.op("Relu", x)), perm=[0, 1, 3, 2]), CHANNELS, 3)


def functions(net: SparseNet) -> str:
    x = tokens(net)
    x = net.op("Add", net.op("Softplus", x), net.op("Exp", net.op("Neg", net.op("Abs", x))))
    x = net.op(
        "Div", net.constant(np.linspace(-1, 1, WIDTH)), net.op("Add", net.op("Reciprocal", x), net.constant(1.0))
    )
    return net.dense(net.op("Tanh", x), WIDTH, 3)


def waves_of_tokens(net: SparseNet) -> str:
    """Positions in octaves, as networks of radiance fields encode them, and a logarithm."""
    x = tokens(net)
    waves = [net.op(kind, net.op("Mul", x, net.constant(scale))) for kind in ("Sin", "Cos") for scale in (1.0, 64.0)]
    logarithm = net.op("Log", net.op("Clip", net.op("Abs", x), net.constant(1e-6)))
    return net.dense(net.op("Concat", x, *waves, logarithm, axis=-1), 6 * WIDTH, 3)


def waves_of_images(net: SparseNet) -> str:
    x = images(net)
    return net.conv(net.op("Add", net.op("Sin", x), net.op("Cos", x)), CHANNELS, 3)


def windows_of_a_series(net: SparseNet) -> str:
    """Patches that overlap, gathered by their places as torch unfolds a series."""
    x = net.op("Transpose", tokens(net), perm=[0, 2, 1])
    places = net.constant(np.arange(3)[:, None] + np.arange(4), dtype=np.int64)
    return net.dense(net.op("Gather", x, places, axis=2), 4, 3)


def tokens_in_any_order(net: SparseNet) -> str:
    x = net.op("Gather", tokens(net), integers(net, 0, 5, 5, 2, -1), axis=1)
    first = net.op("Transpose", x, perm=[1, 0, 2])
    return net.dense(net.op("GatherND", first, net.constant([[3], [0], [3]], dtype=np.int64)), WIDTH, 3)


def softplus_of_torch(net: SparseNet) -> str:
    """By itself, and within Mish."""
    x = images(net)
    guarded = []
    for _ in range(2):
        is_large = net.op("Greater", x, net.constant(20.0))
        guarded.append(net.op("Where", is_large, x, net.op("Softplus", x)))
    return net.conv(net.op("Add", guarded[0], net.op("Mul", x, net.op("Tanh", guarded[1]))), CHANNELS, 3)


def normalized_rows(net: SparseNet) -> str:
    x = net.op("Relu", net.dense(net.input("x", 2, 5, declared=["n", 5]), 5, WIDTH, name="before"))
    vectors = [net.constant(np.linspace(low, 2, WIDTH, dtype=np.float32)) for low in (0.5, -1, -0.5, 0.3)]
    return net.dense(net.op("BatchNormalization", x, *vectors), WIDTH, 3)


def shifted_tokens(net: SparseNet) -> str:
    x = tokens(net)
    before = net.op("Pad", x, integers(net, 0, 1, 0, 0, -1, 0), net.constant(0.5))
    return net.dense(net.op("Pad", net.op("Sub", x, before), integers(net, 0, -2, 0, 0, 0, -1)), WIDTH - 1, 3)


def cropped_images(net: SparseNet) -> str:
    return net.conv(net.op("Pad", images(net), integers(net, 0, 0, -1, 0, 0, 0, 0, -2)), CHANNELS, 3)


def numbers_as_bounds(net: SparseNet) -> str:
    x = net.op("Min", net.op("Max", tokens(net), net.constant(-0.25)), net.constant([0.5]))
    return net.dense(x, WIDTH, 3)


def subtracted_from_one_position(net: SparseNet) -> str:
    """Distances to a mean, and to a value of each token."""
    x = tokens(net)
    first = net.op("Sub", net.op("ReduceMean", x, integers(net, 1)), x)
    return net.dense(net.op("Sub", net.dense(x, WIDTH, 1), first), WIDTH, 3)


def of_all_pairs_of_tokens(net: SparseNet) -> str:
    """Differences and sums of each token and each other one, as distances and additive attention have them."""
    x = tokens(net)
    left, right = (
        net.op("Unsqueeze", x, integers(net, 2)),
        net.op("Unsqueeze", net.dense(x, WIDTH, WIDTH), integers(net, 1)),
    )
    pairs = net.op("Mul", net.op("Sub", left, right), net.op("Add", right, left))
    return net.dense(net.op("ReduceSum", pairs, integers(net, 2), keepdims=0), WIDTH, 3)


def gates_of_channels_and_pixels(net: SparseNet) -> str:
    """A map for all channels by a value for all pixels of each, as focal modulation has them."""
    x = images(net)
    gates = net.op("Mul", net.op("GlobalAveragePool", x), net.conv(x, CHANNELS, 1))
    return net.conv(net.op("Add", x, gates), CHANNELS, 3)


def of_pairs_with_fewer_axes(net: SparseNet) -> str:
    x = net.dense(tokens(net), WIDTH, 1)
    row = net.op("ReduceMax", net.op("Squeeze", x, integers(net, 2)), integers(net, 0), keepdims=1)
    return net.dense(net.op("Add", row, x), TOKENS, 3)


def sinusoidal_embeddings(net: SparseNet) -> str:
    """Sines of a number at several rates, as times of diffusion and positions of pixels are embedded."""
    x = net.dense(tokens(net), WIDTH, 1)
    rates = net.constant(np.geomspace(0.1, 3, 4))
    angles = net.op("Concat", net.op("Mul", rates, x), net.op("Div", x, rates), net.op("Sub", rates, x), axis=-1)
    return net.dense(net.op("Sin", angles), 12, 3)


def noise_of_all_channels(net: SparseNet) -> str:
    x = images(net)
    strengths = net.constant(np.linspace(-1, 1, CHANNELS).reshape(1, CHANNELS, 1, 1))
    noise = net.op("Mul", net.conv(x, CHANNELS, 1), strengths)
    return net.conv(net.op("Add", x, net.op("Relu", noise)), CHANNELS, 3)


def response_normalization(net: SparseNet) -> str:
    """Of ConvNeXt V2: channels by their length over all pixels, relative to the mean of these."""
    x = net.op("Transpose", images(net), perm=[0, 2, 3, 1])
    length = net.op("ReduceL2", x, integers(net, 1, 2))
    mean = net.op("Add", net.op("ReduceMean", length, integers(net, -1)), net.constant(1e-6))
    return net.dense(net.op("Mul", x, net.op("Div", length, mean)), CHANNELS, 3)


def lengths_of_images(net: SparseNet) -> str:
    x = images(net)
    squares = net.op("ReduceSumSquare", x, integers(net, 2, 3), keepdims=0)
    return net.dense(net.op("Add", squares, net.op("ReduceL2", x, integers(net, -2, -1), keepdims=0)), CHANNELS, 3)


def lengths_of_tokens(net: SparseNet) -> str:
    return net.dense(net.op("ReduceL2", tokens(net), integers(net, 1), keepdims=0), WIDTH, 3)


NETS: dict[str, Callable[[SparseNet], str]] = {
    make.__name__.replace("_", " "): make
    for make in (
        attention_pooling, softmax_of_tokens, softmax_of_rows, softmax_of_the_batch, largest_tokens, largest_channels,
        largest_rows, largest_columns, largest_of_several_axes, largest_of_the_batch, deviations, roots_of_images,
        normalized_rows, shifted_tokens, cropped_images, numbers_as_bounds, subtracted_from_one_position,
        of_all_pairs_of_tokens, gates_of_channels_and_pixels, of_pairs_with_fewer_axes,
        sinusoidal_embeddings, noise_of_all_channels, response_normalization, lengths_of_images, lengths_of_tokens,
        functions, waves_of_tokens, waves_of_images, softplus_of_torch, windows_of_a_series, tokens_in_any_order,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_the_whole_net_is_one_region(name: str) -> None:
    net = SparseNet()
    net.output(NETS[name](net))
    program = assert_same_at_batches(net.model(), BATCHES)
    assert left_to_onnxruntime(program) == {}
    assert len(program.parts) == 1


@pytest.mark.parametrize("shape", [[], [1]])
def test_numbers_where_the_last_axis_is_open(shape: list[int]) -> None:
    net = SparseNet()
    x = net.op("Transpose", tokens(net, "t"), perm=[0, 2, 1])
    for op, value in (("Mul", 0.5), ("Add", -0.25), ("Sub", 2.0)):
        x = net.op(op, net.op("Tanh", x), net.constant(np.full(shape, value)))
    net.output(net.dense(net.op("Transpose", x, perm=[0, 2, 1]), WIDTH, 3))
    program = assert_same_at_batches(net.model(), BATCHES)
    assert left_to_onnxruntime(program) == {}


@pytest.mark.parametrize("isa", ["avx2", "portable"])
@pytest.mark.parametrize("name", ["largest tokens", "largest rows", "deviations", "functions"])
def test_other_instruction_sets(name: str, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIFT_ISA", isa)
    net = SparseNet()
    net.output(NETS[name](net))
    assert assert_same_at_batches(net.model(), [2, 17]).isa == isa


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_extremes_of_what_is_no_number(op: str) -> None:
    """NaN is found only where it is the first value."""
    net = SparseNet()
    x = net.op("Add", net.input("x", 18, WIDTH, declared=["n", WIDTH]), net.dense("x", WIDTH, WIDTH))
    net.output(net.op(op, x, integers(net, 1), keepdims=0))
    y = net.op("Add", net.input("y", 18, TOKENS, 3, declared=["n", TOKENS, 3]), net.dense("y", 3, 3))
    net.output(net.op(op, y, integers(net, 1), keepdims=0))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    feeds = {name: array.copy() for name, array in net.feeds.items()}
    feeds["x"][[0, 1], [0, 3]] = feeds["y"][[0, 1], [0, 3]] = math.nan
    assert_same_as_onnxruntime(model, feeds, program)


def test_open_sizes() -> None:
    net = SparseNet()
    x = images(net, "s")
    net.output(net.op("GlobalMaxPool", x))
    net.output(net.op("ReduceMax", x, integers(net, 3), keepdims=0))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for batch, size in ((1, 3), (17, 8), (0, 4)):
        feeds = {"x": np.random.default_rng(size).standard_normal((batch, 4, size, size)).astype(np.float32)}
        assert_same_as_onnxruntime(model, feeds, program)
    with pytest.raises(UsageError, match="its operands are images of"):
        program.run({"x": np.ones((1, 4, 0, 0), np.float32)})


@pytest.mark.parametrize("is_image", [False, True])
def test_sums_over_open_axes(is_image: bool) -> None:
    """Mean and deviation by shares of an open number of tokens, as recognition of speakers has them; and of pixels."""
    net = SparseNet()
    x = images(net, "s") if is_image else tokens(net, "t")
    axes, channels = ((2, 3), CHANNELS) if is_image else ((1,), WIDTH)
    shares = net.op("Sigmoid", x) if is_image else net.op("Softmax", net.dense(x, WIDTH, 1), axis=1)
    mean = net.op("ReduceSum", net.op("Mul", x, shares), integers(net, *axes), keepdims=1)
    far = net.op("Sub", x, mean)
    spread = net.op("ReduceSum", net.op("Mul", net.op("Mul", far, far), shares), integers(net, *axes), keepdims=0)
    lengths = net.op("ReduceL2", x, integers(net, *axes), keepdims=0)
    net.output(net.dense(net.op("Add", spread, lengths), channels, 3))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    assert left_to_onnxruntime(program) == {}
    assert len(program.parts) == 1
    for batch, size in ((1, 3), (17, 8), (2, 41), (3, 1)):
        shape = (batch, 4, size, size) if is_image else (batch, size, 5)
        feeds = {"x": np.random.default_rng(size).standard_normal(shape).astype(np.float32)}
        assert_same_as_onnxruntime(model, feeds, program)


def test_reasons_name_the_axes() -> None:
    net = SparseNet()
    net.output(net.op("ReduceMax", images(net), integers(net, 1, 3), name="apart"))
    assert "an extreme over the axes [1, 3]" in reasons(CpuProgram(net.model(), ONE_THREAD))["apart"]
