"""Models whose layers run in bands of rows compute what onnxruntime computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sparse_nets import SparseNet, assert_same_as_onnxruntime

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower import stages
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.shapes.random_inputs import random_feeds

pytestmark = pytest.mark.usefixtures("every_region_pays")


@pytest.fixture(autouse=True)
def always_in_bands(monkeypatch):
    """Of small images as well, and single images at any batch."""
    monkeypatch.setattr(_kernels.BandedDepthwise, "pays", lambda *_: True)
    monkeypatch.setattr(stages, "_LARGE_BETWEEN_BYTES", 0)
    monkeypatch.setattr(stages, "_LEAST_PIXELS", 0)


def relu6(net, x):
    return net.op("Clip", x, net.constant(np.float32(0)), net.constant(np.float32(6)))


ACTIVATIONS = {
    "relu6": relu6,
    "silu": lambda net, x: net.op("Mul", x, net.op("Sigmoid", x)),
    "hard_swish": lambda net, x: net.op("HardSwish", x),
}


def block(net, x, inputs, outputs, kernel=3, stride=1, dilation=1, activation="relu6", gate=False):
    """An inverted bottleneck, with its residual where sizes allow one."""
    act, inner = ACTIVATIONS[activation], 3 * inputs
    y = act(net, net.conv(x, inputs, inner, 1))
    pad = (kernel - 1) * dilation // 2
    weight = net.weight(inner, 1, kernel, kernel, fan_in=kernel**2)
    pads, strides, dilations = [pad] * 4, [stride] * 2, [dilation] * 2
    y = act(net, net.op("Conv", y, weight, pads=pads, strides=strides, dilations=dilations, group=inner))
    if gate:
        scale = net.op("Relu", net.conv(net.op("GlobalAveragePool", y), inner, inputs, 1))
        y = net.op("Mul", y, net.op("HardSigmoid", net.conv(scale, inputs, inner, 1)))
    y = net.conv(y, inner, outputs, 1)
    return net.op("Add", y, x) if stride == 1 and inputs == outputs else y


def mobile_net(size, declared_batch: Any = "n", **options):
    """A stem, three inverted bottlenecks, and a head."""
    net = SparseNet(opset=20)
    height, width = size
    x = net.input("x", 1, 3, height, width, declared=[declared_batch, 3, height, width])
    x = relu6(net, net.op("Conv", x, net.weight(8, 3, 3, 3), strides=[2, 2], pads=[1] * 4))
    x = block(net, x, 8, 8, **options)
    x = block(net, x, 8, 12, stride=2, **options)
    x = block(net, x, 12, 12, **options)
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    net.output(net.dense(x, 12, 10))
    return net.model()


def bands_of(program, feeds):
    """How many layers ran together, for each operator that ran several."""
    nodes = program.profile(feeds).nodes
    return [int(node.kernel.split()[0]) for node in nodes if "in bands of rows" in (node.kernel or "")]


@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((32, 32), {}),
        ((37, 29), {"kernel": 5, "activation": "silu"}),
        ((30, 45), {"dilation": 2, "activation": "hard_swish"}),
        ((17, 64), {"kernel": 7, "gate": True}),
    ],
)
def test_inverted_bottlenecks(size, options):
    model = mobile_net(size, **options)
    together = 2 if options.get("gate") else 3
    for threads in (1, 2):
        program = CpuProgram(model, CompileOptions(threads=threads, deterministic=True))
        for batch in (1, 2, 5, 17):
            feeds = random_feeds(program.inputs, batch)
            assert_same_as_onnxruntime(model, feeds, program)
        assert bands_of(program, feeds) == [together] * 3


def test_bands_have_the_bits_of_single_layers(monkeypatch):
    model = mobile_net((48, 48))
    options = CompileOptions(threads=2, deterministic=True)
    banded = CpuProgram(model, options)
    feeds = random_feeds(banded.inputs, 3)
    (found,) = banded.run(feeds).values()
    monkeypatch.setattr(_kernels.BandedDepthwise, "pays", lambda *_: False)
    single = CpuProgram(model, options)
    (expected,) = single.run(feeds).values()
    assert bands_of(single, feeds) == []
    np.testing.assert_array_equal(found, expected)


def test_separable_convolutions_and_results_outside():
    net = SparseNet(opset=20)
    x = net.input("x", 3, 6, 21, 33)
    for stride in (1, 2, 1):
        x = net.op("Relu", net.op("Conv", x, net.weight(6, 1, 3, 3), strides=[stride] * 2, pads=[1] * 4, group=6))
        x = net.op("Relu", net.conv(x, 6, 6, 1))
        net.output(x)
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert bands_of(program, net.feeds) == [2, 2, 2]


def test_profiles_count_the_work_of_all_layers_of_a_band():
    model = mobile_net((32, 32), declared_batch=1)
    program = CpuProgram(model, CompileOptions(threads=1, deterministic=True))
    feeds = random_feeds(program.inputs, 1)
    first = next(node for node in program.profile(feeds).nodes if "in bands" in (node.kernel or ""))
    assert first.kernel == "3 layers in bands of rows planes"
    # Two activations, two layers and a residual sum.
    assert "5 nodes behind it are fused into it" in first.reason
    assert first.gflops > 0


@pytest.mark.parametrize(("limits", "planes"), [((0, 0), True), ((1 << 40, 0), False), ((0, 1 << 20), False)])
def test_large_tensors_between_layers_make_images_run_one_by_one(monkeypatch, limits, planes):
    for name, limit in zip(("_LARGE_BETWEEN_BYTES", "_LEAST_PIXELS"), limits, strict=True):
        monkeypatch.setattr(stages, name, limit)
    model = mobile_net((32, 32))
    program = CpuProgram(model, CompileOptions(threads=1, deterministic=True))
    feeds = random_feeds(program.inputs, 16)
    assert_same_as_onnxruntime(model, feeds, program)
    assert bool(bands_of(program, feeds)) == planes


def test_work_outside_of_chains_keeps_images_in_lanes():
    net = SparseNet(opset=20)
    x = net.input("x", 1, 3, 24, 24, declared=["n", 3, 24, 24])
    x = net.op("Relu", net.conv(x, 3, 64, 3))
    x = net.op("Relu", net.conv(net.op("Relu", net.conv(x, 64, 64, 3)), 64, 8, 3))
    net.output(block(net, x, 8, 8))
    program = CpuProgram(net.model(), CompileOptions(threads=1, deterministic=True))
    feeds = random_feeds(program.inputs, 16)
    assert_same_as_onnxruntime(net.model(), feeds, program)
    assert bands_of(program, feeds) == []
    assert bands_of(program, random_feeds(program.inputs, 2)) == [3]


def test_images_that_run_at_once_have_the_bits_of_one_thread():
    model = mobile_net((40, 40))
    outputs = []
    for threads in (1, 2, 4):
        program = CpuProgram(model, CompileOptions(threads=threads, deterministic=True))
        (part,) = program.parts
        feeds = random_feeds(program.inputs, 16)
        outputs += program.run(feeds).values()
        prepared = part._stages[0].schedules.kept[-1]
        assert prepared.at_once == (() if threads == 1 else (slice(0, 16),))
        assert [slab.count for slab, _ in prepared.slabs] == [1] * 16
    for found in outputs[1:]:
        np.testing.assert_array_equal(found, outputs[0])
