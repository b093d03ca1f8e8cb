"""Sums of residuals between layers of integers: floats beside bytes, with onnxruntime's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nets import Net
from quantized_nets import inputs_of
from sparse_nets import ONE_THREAD, places, reasons

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu.lower.region import Region
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram

pytestmark = pytest.mark.usefixtures("every_region_pays")


class ResidualNet(Net):
    """[n, channels, size, size]; layers as Neural Magic's exporter writes them."""

    def __init__(self, channels: int, size: int, seed: int = 0) -> None:
        super().__init__(opset=13)
        self.rng = np.random.default_rng(seed)
        self.channels = channels
        self.quantized: dict[str, tuple[str, str, float]] = {}
        self.x = self.input("x", 2, channels, size, size, declared=["n", channels, size, size])

    def bytes_of(self, x: str) -> tuple[str, str, float]:
        """Quantized once for all readers."""
        if x not in self.quantized:
            scale, zero = float(self.rng.uniform(0.01, 0.05)), int(self.rng.integers(0, 60))
            zero_name = self.constant(np.uint8(zero))
            q = self.op("QuantizeLinear", x, self.constant(np.float32(scale)), zero_name)
            self.quantized[x] = q, zero_name, scale
        return self.quantized[x]

    def conv(self, x: str, inputs: int, rows: int, kernel: int = 1, stride: int = 1) -> str:
        q, zero, scale = self.bytes_of(x)
        shape = (rows, inputs, kernel, kernel)
        kept = self.rng.random(shape) < 0.25
        weight = np.where(kept, self.rng.integers(28, 228, shape), 128).astype(np.uint8)
        y = self.op("ConvInteger", q, self.constant(weight), zero, self.constant(np.uint8(128)),
                    pads=[kernel // 2] * 4, strides=[stride] * 2)  # fmt: skip
        bias = self.rng.integers(-500, 500, (1, rows, 1, 1)).astype(np.int32)
        y = self.op("Cast", self.op("Add", y, self.constant(bias)), to=1)
        return str(self.op("Mul", y, self.constant(np.float32(scale * 0.02 / (0.25 * inputs * kernel**2) ** 0.5))))

    def block(self, x: str, inputs: int, rows: int, stride: int = 1, is_clipped: bool = True) -> str:
        """A bottleneck; a layer brings its operand to other sizes."""
        y = self.op("Relu", self.conv(x, inputs, 8))
        y = self.op("Relu", self.conv(y, 8, 8, 3, stride))
        y = self.conv(y, 8, rows)
        same = x if stride == 1 and inputs == rows else self.conv(x, inputs, rows, 1, stride)
        total = self.op("Add", y, same)
        return str(self.op("Relu", total) if is_clipped else total)


def residual_net(channels: int, rows: int, size: int, *, is_pooled: bool = False, is_clipped: bool = True,
                 end: str = "sum", seed: int = 0) -> onnx.ModelProto:  # fmt: skip
    """Three bottlenecks.

    Args:
        channels: of the input.
        rows: of the sums.
        size: of the input, in pixels along each side.
        is_pooled: whether the maximum of windows comes before the first block.
        is_clipped: whether sums are.
        end: what makes the result: the last ``sum``, a ``layer``, or the last ``two`` sums.
        seed: of weights and scales.
    """
    net = ResidualNet(channels, size, seed)
    x = net.op("Relu", net.conv(net.x, channels, rows, 3))
    if is_pooled:
        x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    x = net.block(x, rows, rows, is_clipped=is_clipped)
    before = net.block(x, rows, rows + 4, stride=2, is_clipped=is_clipped)
    x = net.block(before, rows + 4, rows + 4, is_clipped=is_clipped)
    net.output(net.conv(x, rows + 4, 6) if end == "layer" else x)
    if end == "two":
        net.output(before)
    return net.model()


def region_of(program: CpuProgram) -> Region:
    (part,) = program.parts
    assert isinstance(part, RegionProgram)
    return part.region


def assert_same_bits(model: onnx.ModelProto, batches: tuple[int, ...], options: CompileOptions = ONE_THREAD) -> Region:
    program = CpuProgram(model, options)
    whole = OnnxRuntimeProgram(model, ONE_THREAD)
    assert set(places(program).values()) <= {"kernels", "folded"}, reasons(program)
    for batch in batches:
        feeds = inputs_of(model, batch, seed=batch)
        found, wanted = program.run(feeds), whole.run(feeds)
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array)
            # Few pixels may all be clipped.
            assert np.unique(array).size > min(20, array.size // 16)
    return region_of(program)


@pytest.mark.parametrize("end", ["sum", "layer", "two"])
def test_sums_are_stored_with_their_bytes(end: str) -> None:
    region = assert_same_bits(residual_net(8, 20, 10, end=end), batches=(1, 3, 17))
    sums = {"sum": 2, "layer": 3, "two": 1}[end]
    # The first layer's floats, the sums that are added again or quantized, and what the second block adds.
    assert len(region.float_quads) == 1 + sums + 1
    assert list(region.float_quads.values()).count(None) == 1


def test_sums_of_any_number_of_threads() -> None:
    model = residual_net(8, 36, 24, end="layer")
    for threads in (2, 3):
        assert_same_bits(model, batches=(1, 5), options=CompileOptions(threads=threads, deterministic=True))


def test_sums_of_what_other_operators_make() -> None:
    """The maximum of windows is floats in planes, which are quantized by themselves."""
    region = assert_same_bits(residual_net(8, 16, 9, is_pooled=True), batches=(1, 2))
    assert len(region.float_quads) == 3


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    channels=st.integers(1, 9),
    rows=st.integers(5, 40),
    size=st.integers(3, 9),
    is_pooled=st.booleans(),
    is_clipped=st.booleans(),
    end=st.sampled_from(["sum", "layer", "two"]),
    seed=st.integers(0, 99),
    batch=st.integers(1, 18),
)
def test_any_sums_have_the_bits_of_onnxruntime(batch: int, **net: Any) -> None:
    assert_same_bits(residual_net(**net), batches=(batch,))
