"""Layer and RMS normalization as exporters write them, between sparse layers, against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sparse_nets import SparseNet, assert_same_as_onnxruntime, assert_same_at_batches, places

from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.backends.lowering.specs import LayerNormalization

pytestmark = pytest.mark.usefixtures("every_region_pays")

CHANNELS = 6


def scalar(net: SparseNet, value: float) -> str:
    return net.constant(np.asarray(value, np.float32))


def vector(net: SparseNet, *shape: int) -> str:
    return net.constant(np.linspace(0.5, 1.5, CHANNELS, dtype=np.float32).reshape(*shape, CHANNELS))


def mean(net: SparseNet, x: str, axis: int = -1) -> str:
    if net.opset < 18:
        return net.op("ReduceMean", x, axes=[axis])
    return net.op("ReduceMean", x, net.constant(np.asarray([axis], np.int64), dtype=np.int64))


def deviation(net: SparseNet, x: str, *, square: str = "Pow", axis: int = -1) -> str:
    squared = net.op("Mul", x, x) if square == "Mul" else net.op("Pow", x, scalar(net, 2))
    return net.op("Sqrt", net.op("Add", mean(net, squared, axis), scalar(net, 1e-5)))


def centered(net: SparseNet, x: str) -> str:
    return net.op("Sub", x, mean(net, x))


def layer_norm(net: SparseNet, x: str) -> str:
    """As torch's exporter writes it before opset 17."""
    d = centered(net, x)
    return net.op("Add", net.op("Mul", net.op("Div", d, deviation(net, d)), vector(net)), vector(net))


def layer_norm_without_affine(net: SparseNet, x: str) -> str:
    d = centered(net, x)
    return net.op("Div", d, deviation(net, d))


def layer_norm_by_reciprocal(net: SparseNet, x: str) -> str:
    d = centered(net, x)
    quotient = net.op("Mul", d, net.op("Reciprocal", deviation(net, d, square="Mul")))
    return net.op("Add", vector(net, 1), net.op("Mul", vector(net, 1, 1), quotient))


def rms_norm(net: SparseNet, x: str) -> str:
    """As torch's exporter writes that of LLaMA."""
    root = deviation(net, x)
    return net.op("Mul", vector(net), net.op("Mul", x, net.op("Div", scalar(net, 1), root)))


def rms_norm_without_scale(net: SparseNet, x: str) -> str:
    return net.op("Div", x, deviation(net, x, square="Mul"))


def fused_rms_norm(net: SparseNet, x: str) -> str:
    return net.op("SimplifiedLayerNormalization", x, vector(net), epsilon=1e-3)


def weighed(net: SparseNet, x: str, *, has_scale: bool = True) -> tuple[str, str, str]:
    """TensorFlow's parts of a layer normalization: the mean, the factor of x, and x times that."""
    average = mean(net, x)
    difference = net.op("Sub", x, average)
    gain = net.op("Reciprocal", deviation(net, difference, square="Mul"), name="norm")
    gain = net.op("Mul", gain, vector(net)) if has_scale else gain
    return average, gain, net.op("Mul", x, gain)


def layer_norm_of_tensorflow(net: SparseNet, x: str) -> str:
    average, gain, product = weighed(net, x)
    return net.op("Add", product, net.op("Sub", vector(net), net.op("Mul", average, gain)))


def layer_norm_of_keras(net: SparseNet, x: str) -> str:
    average, gain, product = weighed(net, x)
    return net.op("Add", product, net.op("Add", net.op("Mul", net.op("Neg", average), gain), vector(net)))


def layer_norm_of_tensorflow_without_affine(net: SparseNet, x: str) -> str:
    average, gain, product = weighed(net, x, has_scale=False)
    return net.op("Sub", product, net.op("Mul", average, gain))


def layer_norm_by_pooling(net: SparseNet, x: str) -> str:
    """As tf2onnx writes means of the last of three axes."""
    average = net.op("GlobalAveragePool", x)
    difference = net.op("Sub", x, average)
    variance = net.op("GlobalAveragePool", net.op("Mul", difference, difference))
    root = net.op("Sqrt", net.op("Add", variance, scalar(net, 1e-5)))
    gain = net.op("Mul", net.op("Reciprocal", root), vector(net))
    return net.op("Add", net.op("Mul", x, gain), net.op("Sub", vector(net), net.op("Mul", average, gain)))


def layer_norm_by_pooling_and_quotient(net: SparseNet, x: str) -> str:
    d = net.op("Sub", x, net.op("GlobalAveragePool", x))
    variance = net.op("GlobalAveragePool", net.op("Pow", d, scalar(net, 2)))
    return net.op("Mul", net.op("Div", d, net.op("Sqrt", net.op("Add", variance, scalar(net, 1e-5)))), vector(net))


def unit_vectors(net: SparseNet, x: str) -> str:
    """Of lengths around the least one, and of none."""
    length = net.op("ReduceL2", x, axes=[-1]) if net.opset < 18 else net.op("ReduceL2", x, net.constant([-1]))
    return net.op("Div", x, net.op("Clip", length, net.constant(2.0)))


def unit_vectors_by_expand(net: SparseNet, x: str) -> str:
    length = net.op("ReduceL2", x, axes=[-1]) if net.opset < 18 else net.op("ReduceL2", x, net.constant([-1]))
    length = net.op("Max", net.constant(1e-12), length)
    return net.op("Div", x, net.op("Expand", length, net.op("Shape", x)))


def moments(net: SparseNet, x: str, axis: int = -1, *, cut: bool = True) -> tuple[str, str]:
    """The mean, and the deviation by the mean of squares."""
    average = mean(net, x, axis)
    variance = net.op("Sub", mean(net, net.op("Mul", x, x), axis), net.op("Mul", average, average))
    variance = net.op("Max", variance, scalar(net, 0)) if cut else variance
    return average, net.op("Sqrt", net.op("Add", variance, scalar(net, 1e-5)))


def layer_norm_of_flax(net: SparseNet, x: str) -> str:
    average, root = moments(net, x)
    quotient = net.op("Div", net.op("Sub", x, average), root)
    return net.op("Add", net.op("Mul", quotient, vector(net)), vector(net))


def layer_norm_of_flax_by_gain(net: SparseNet, x: str) -> str:
    average, root = moments(net, x, cut=False)
    gain = net.op("Mul", net.op("Div", scalar(net, 1), root), vector(net))
    return net.op("Add", net.op("Mul", net.op("Sub", x, average), gain), vector(net))


def layer_norm_of_flax_without_affine(net: SparseNet, x: str) -> str:
    average, root = moments(net, x)
    return net.op("Mul", net.op("Reciprocal", root), net.op("Sub", x, average))


SPELLINGS = (
    layer_norm_of_flax, layer_norm_of_flax_by_gain, layer_norm_of_flax_without_affine,
    layer_norm, layer_norm_without_affine, layer_norm_by_reciprocal, rms_norm, rms_norm_without_scale, fused_rms_norm,
    layer_norm_of_tensorflow, layer_norm_of_keras, layer_norm_of_tensorflow_without_affine,
    layer_norm_by_pooling, layer_norm_by_pooling_and_quotient,
    unit_vectors, unit_vectors_by_expand,
)  # fmt: skip


def between_products(operator: Callable[[SparseNet, str], str], opset: int) -> SparseNet:
    net = SparseNet(opset=opset)
    x = net.dense(net.input("x", 2, 7, 5, declared=["n", "t", 5]), 5, CHANNELS, name="before")
    net.output(net.dense(operator(net, x), CHANNELS, 4, name="after"))
    return net


@pytest.mark.parametrize("opset", [13, 20])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_all_of_it_runs_on_kernels(spelling: Callable[[SparseNet, str], str], opset: int) -> None:
    net = between_products(spelling, opset)
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert set(places(program).values()) <= {"kernels", "folded"}
    assert len(program.parts) == 1


def over_rows(net: SparseNet, x: str) -> str:
    return net.op("Div", x, deviation(net, x, axis=1), name="norm")


def cube(net: SparseNet, x: str) -> str:
    d = net.op("ReduceMean", net.op("Pow", x, scalar(net, 3)), axes=[-1])
    return net.op("Div", x, net.op("Sqrt", net.op("Add", d, scalar(net, 9))), name="norm")


def another_quotient(net: SparseNet, x: str) -> str:
    return net.op("Div", net.op("Relu", x), deviation(net, x), name="norm")


def inverse(net: SparseNet, x: str) -> str:
    return net.op("Div", deviation(net, x), x, name="norm")


def deviation_that_is_read(net: SparseNet, x: str) -> str:
    root = deviation(net, x)
    net.output(root)
    return net.op("Div", x, root, name="norm")


def difference_that_is_read(net: SparseNet, x: str) -> str:
    d = centered(net, x)
    net.output(d)
    return net.op("Div", d, deviation(net, d), name="norm")


def the_other_way_round(net: SparseNet, x: str) -> str:
    average, gain, product = weighed(net, x)
    return net.op("Sub", net.op("Mul", average, gain), product)


def sign_that_is_kept(net: SparseNet, x: str) -> str:
    average, gain, product = weighed(net, x)
    return net.op("Add", product, net.op("Add", vector(net), net.op("Mul", average, gain)))


def variance_above_one(net: SparseNet, x: str) -> str:
    average = mean(net, x)
    variance = net.op("Sub", mean(net, net.op("Mul", x, x)), net.op("Mul", average, average))
    root = net.op("Sqrt", net.op("Add", net.op("Max", variance, scalar(net, 1)), scalar(net, 1e-5)))
    return net.op("Div", net.op("Sub", x, average), root, name="norm")


def squares_of_another(net: SparseNet, x: str) -> str:
    average, other = mean(net, x), net.op("Relu", x)
    variance = net.op("Sub", mean(net, net.op("Mul", other, other)), net.op("Mul", average, average))
    root = net.op("Sqrt", net.op("Add", net.op("Relu", variance), scalar(net, 1)))
    return net.op("Div", net.op("Sub", x, average), root, name="norm")


def moments_that_are_read(net: SparseNet, x: str) -> str:
    average, root = moments(net, x)
    net.output(average)
    return net.op("Div", net.op("Sub", x, average), root, name="norm")


def gain_that_is_read(net: SparseNet, x: str) -> str:
    average, gain, product = weighed(net, x)
    net.output(gain)
    return net.op("Add", product, net.op("Sub", vector(net), net.op("Mul", average, gain)))


@pytest.mark.parametrize(
    "other",
    [
        over_rows, cube, another_quotient, inverse, deviation_that_is_read, difference_that_is_read,
        the_other_way_round, sign_that_is_kept, gain_that_is_read, variance_above_one, squares_of_another,
        moments_that_are_read,
    ],
)  # fmt: skip
def test_what_looks_like_it_is_computed_as_it_is(other: Callable[[SparseNet, str], str]) -> None:
    net = between_products(other, 13)
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    steps = [step for part in program.parts if isinstance(part, RegionProgram) for step in part.region.steps]
    assert steps
    assert not any(isinstance(step.spec, LayerNormalization) for step in steps)


def test_a_scale_that_is_no_vector_of_channels_stays_a_product() -> None:
    def scaled_by_rows(net: SparseNet, x: str) -> str:
        factors = net.constant(np.linspace(0.5, 1.5, 7, dtype=np.float32).reshape(7, 1))
        return net.op("Mul", net.op("Div", x, deviation(net, x)), factors, name="scaled")

    net = between_products(scaled_by_rows, 13)
    assert_same_as_onnxruntime(net.model(), net.feeds)


def channel_vector(net: SparseNet, *shape: int) -> str:
    return net.constant(np.linspace(0.5, 1.5, CHANNELS, dtype=np.float32).reshape(*shape, CHANNELS, 1, 1))


def centered_channels(net: SparseNet, x: str) -> str:
    return net.op("Sub", x, mean(net, x, 1))


def channel_norm(net: SparseNet, x: str) -> str:
    """With the mean in two nodes, which only a comparison of their values would show to be one."""
    quotient = net.op("Div", centered_channels(net, x), deviation(net, centered_channels(net, x), axis=1))
    return net.op("Add", net.op("Mul", channel_vector(net), quotient), channel_vector(net, 1))


def channel_norm_of_shared_mean(net: SparseNet, x: str) -> str:
    """As torch's exporters write that of ConvNeXt, with the difference twice."""
    average = mean(net, x, 1)
    twice = [net.op("Sub", x, average) for _ in range(2)]
    quotient = net.op("Mul", net.op("Reciprocal", deviation(net, twice[0], axis=1)), twice[1])
    return net.op("Add", net.op("Mul", channel_vector(net), quotient), channel_vector(net))


def channel_rms_norm(net: SparseNet, x: str) -> str:
    return net.op("Mul", net.op("Div", x, deviation(net, x, square="Mul", axis=1)), channel_vector(net))


def channel_norm_without_affine(net: SparseNet, x: str) -> str:
    d = centered_channels(net, x)
    return net.op("Div", d, deviation(net, d, axis=1))


def channel_norm_of_flax(net: SparseNet, x: str) -> str:
    average, root = moments(net, x, 1)
    quotient = net.op("Div", net.op("Sub", x, average), root)
    return net.op("Add", net.op("Mul", quotient, channel_vector(net)), channel_vector(net))


def between_images(operator: Callable[[SparseNet, str], str], opset: int = 13) -> SparseNet:
    net = SparseNet(opset=opset)
    x = net.conv(net.input("x", 2, 4, 5, 7, declared=["n", 4, "h", "w"]), 4, CHANNELS, 3, name="before")
    net.output(net.conv(operator(net, x), CHANNELS, 4, 1, name="after"))
    return net


@pytest.mark.parametrize("opset", [13, 20])
@pytest.mark.parametrize(
    "spelling", [channel_norm_of_shared_mean, channel_rms_norm, channel_norm_without_affine, channel_norm_of_flax]
)
def test_pixels_are_normalized_over_channels(spelling: Callable[[SparseNet, str], str], opset: int) -> None:
    model = between_images(spelling, opset).model()
    for shape in ((1, 4, 5, 7), (3, 4, 8, 8), (17, 4, 3, 1), (16, 4, 1, 1), (1, 4, 1, 40)):
        program = assert_same_at_batches(model, [shape[0]], {"x": shape})
        (part,) = program.parts
        assert sum(isinstance(step.spec, LayerNormalization) for step in part.region.steps) == 1
        assert {type(step.spec).__name__ for step in part.region.steps} == {"Conv", "LayerNormalization"}


def test_a_difference_of_another_mean_is_no_part_of_a_norm() -> None:
    """Two nodes that compute the same mean are two means to the graph: equal, but not one."""
    (part,) = assert_same_at_batches(between_images(channel_norm).model(), [1, 3], {"x": (1, 4, 5, 7)}).parts
    assert not any(isinstance(step.spec, LayerNormalization) for step in part.region.steps)


def over_height(net: SparseNet, x: str) -> str:
    d = net.op("Sub", x, mean(net, x, 2))
    return net.op("Div", d, deviation(net, d, axis=2), name="norm")


def over_two_axes(net: SparseNet, x: str) -> str:
    return net.op("Div", centered_channels(net, x), deviation(net, centered_channels(net, x), axis=2), name="norm")


def mean_that_is_read(net: SparseNet, x: str) -> str:
    average = mean(net, x, 1)
    net.output(average)
    d = net.op("Sub", x, average)
    return net.op("Div", d, deviation(net, d, axis=1), name="norm")


def another_twin(net: SparseNet, x: str) -> str:
    average = mean(net, x, 1)
    return net.op("Div", net.op("Sub", average, x), deviation(net, net.op("Sub", x, average), axis=1), name="norm")


@pytest.mark.parametrize("other", [over_height, over_two_axes, mean_that_is_read, another_twin])
def test_what_is_no_norm_of_pixels_is_computed_as_it_is(other: Callable[[SparseNet, str], str]) -> None:
    net = between_images(other)
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    steps = [step for part in program.parts if isinstance(part, RegionProgram) for step in part.region.steps]
    assert steps
    assert not any(isinstance(step.spec, LayerNormalization) for step in steps)
