"""Networks of videos and volumes, pruned, in one part and against onnxruntime."""

from __future__ import annotations

from collections import Counter
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_volumes import networks
from sparse_nets import assert_same_as_onnxruntime, assert_same_at_batches, emptied, places, some_rows
from volume_nets import VOLUME_NETS, VolumeNet, volume_net

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.run.schedules import frame_steps, region_schedules, tensor_copies
from sift_onnx.backends.lowering.specs import Conv, Matmul, Transposed

pytestmark = pytest.mark.usefixtures("every_region_pays")


@pytest.mark.parametrize("name", VOLUME_NETS)
def test_a_network_is_one_part(name: str) -> None:
    model = volume_net(name).model()
    program = assert_same_at_batches(model, [1, 3, 17])
    assert len(program.parts) == 1
    assert set(places(program).values()) <= {"kernels", "folded"}
    assert [placement.name for placement in program.placements] == [node.name for node in model.graph.node]


def test_as_many_frames_as_lanes() -> None:
    model = volume_net("r2plus1d", sizes=(16, 6, 6)).model()
    program = assert_same_at_batches(model, [1, 2])
    assert len(program.parts) == 1


@pytest.mark.parametrize("frames", [4, 14])
@pytest.mark.parametrize("name", ["c3d", "unet", "residual_unet"])
def test_frames_that_are_read_where_they_lie(name: str, frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are where images are large."""
    monkeypatch.setattr(region_schedules, "_LARGE_FRAME", 1)
    monkeypatch.setattr(frame_steps, "_LEAST_FLOATS", 1)
    net = volume_net(name, sizes=(frames, 8, 8))
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    ((_, schedule),) = program.parts[0]._whole.schedules.kept[-1].slabs
    convolutions = [op for op in schedule.ops if isinstance(op, _kernels.Conv)]
    assert len(convolutions) > frames


def test_volumes_with_their_channels_last() -> None:
    """As Keras exports them: turned around each layer."""
    net = VolumeNet(opset=18)
    x = net.input("x", 2, 4, 6, 6, 3, declared=["n", 4, 6, 6, 3])
    for inputs, outputs in ((3, 6), (6, 8)):
        first = net.op("Transpose", x, perm=[0, 4, 1, 2, 3])
        made = net.op("MaxPool", net.layer(first, inputs, outputs), kernel_shape=[1, 2, 2], strides=[1, 2, 2])
        x = net.op("Transpose", net.norm(made, outputs), perm=[0, 2, 3, 4, 1])
        x = net.op("Relu", net.op("Add", x, net.constant(np.linspace(0, 1, outputs))))
    net.output(net.op("ReduceMean", x, net.constant([1, 2, 3]), keepdims=0))
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert set(places(program).values()) <= {"kernels", "folded"}
    assert sum(isinstance(step.spec, Transposed) for step in program.parts[0].region.steps) <= 2


def test_zeros_are_skipped_in_each_form() -> None:
    net = volume_net("r2plus1d")
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    layers = [step.spec for step in program.parts[0].region.steps if isinstance(step.spec, Conv)]
    assert len(layers) == 7
    assert all(0.2 < layer.weights.density < 0.4 for layer in layers)


@pytest.mark.parametrize("name", ["r2plus1d", "c3d", "unet"])
def test_masks_move_with_their_weights(name: str) -> None:
    """Active weights that are zero are multiplied, as those of images are."""
    net = volume_net(name)
    net.density = 1.0
    model = emptied(net, some_rows)
    program = assert_same_as_onnxruntime(model.to_proto(), net.feeds)
    steps = program.parts[0].region.steps
    counted = Counter(step.spec.weights.nnz for step in steps if isinstance(step.spec, (Conv, Matmul)))
    masked = Counter(constant.nnz for constant in model.masked().values())
    assert masked.total() > 1
    assert masked <= counted


@pytest.mark.parametrize("size", [6, 9])
def test_open_sizes_are_those_of_the_run(size: int) -> None:
    net = VolumeNet(opset=18)
    x = net.input("x", 2, 2, 4, size, size + 1, declared=["n", 2, 4, "h", "w"])
    x = net.op("Relu", net.layer(net.layer(x, 2, 6), 6, 6, (3, 1, 1)))
    x = net.op("MaxPool", x, kernel_shape=[2, 2, 2], strides=[2, 2, 2])
    net.output(net.op("Add", x, net.layer(x, 6, 6, (1, 3, 3))))
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert set(places(program).values()) <= {"kernels", "folded"}


def test_a_layer_that_stays_says_why() -> None:
    net = VolumeNet(opset=18)
    x = net.op("Relu", net.layer(net.volume(2, 3, 4, 4), 2, 6))
    weight = net.weight(6, 4, 3, 3, 3)
    x = net.op("ConvTranspose", x, weight, name="overlapping", strides=[2, 2, 2])
    net.output(net.layer(x, 4, 2))
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    (reason,) = (placement.reason for placement in program.placements if placement.name == "overlapping")
    assert places(program)["overlapping"] == "onnxruntime"
    assert "two-dimensional" in reason


def test_a_value_for_each_class_and_frame() -> None:
    """A volume that leaves as it is, beside one that is read on."""
    net = VolumeNet(opset=18)
    x = net.op("Relu", net.layer(net.volume(2, 3, 4, 4), 2, 6, (1, 3, 3)))
    net.output(x)
    net.output(net.op("ReduceMean", net.layer(x, 6, 4, (3, 1, 1)), net.constant(np.array([2, 3, 4])), keepdims=1))
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert set(places(program).values()) <= {"kernels", "folded"}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(net=networks(), limits=st.tuples(*(st.sampled_from((1, 1 << 20)) for _ in range(2)), st.sampled_from((2, 32))))
def test_any_network_computes_the_same(net: VolumeNet, limits: tuple[int, int, int]) -> None:
    large_frame, least_floats, long_run = limits
    with (
        mock.patch.object(region_schedules, "_LARGE_FRAME", large_frame),
        mock.patch.object(frame_steps, "_LEAST_FLOATS", least_floats),
        mock.patch.object(tensor_copies, "_LONG_RUN", long_run),
    ):
        assert_same_as_onnxruntime(net.model(), net.feeds, tolerance=1e-4)
