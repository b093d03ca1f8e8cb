"""Regions whose tensors are larger than the last-level cache run image by image, then in lanes."""

import re
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from nets import Net

from sift_onnx.backends.base import CompileOptions, get_backend
from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower import stages
from sift_onnx.backends.lowering.element_types import DType
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import ArgExtreme, Elementwise

_SHARED = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")


def pooled_net(rng):
    net = Net()
    x = net.input("x", 16, 8, 24, 24)
    weights = {}
    for i in range(2):
        weights[i] = rng.standard_normal((8, 8, 3, 3), np.float32)
        weights[i][rng.random(weights[i].shape) < 0.8] = 0
        x = net.op("Relu", net.op("Conv", x, net.constant(weights[i], f"w{i}"), pads=[1, 1, 1, 1]))
        x = net.op("MaxPool", x, kernel_shape=[4, 4], strides=[4, 4]) if i == 0 else x
    net.output(x)
    return net.model()


def layouts_of(program, feeds):
    """Of its convolutions."""
    kernels = [node.kernel for node in program.profile(feeds).nodes if node.op == "Conv"]
    return {layout for layout in ("planes", "images16") for kernel in kernels if layout in kernel}


def layouts_of_pooled_net():
    rng = np.random.default_rng(0)
    program = get_backend("cpu").compile(pooled_net(rng), CompileOptions(2))
    return layouts_of(program, {"x": rng.standard_normal((16, 8, 24, 24), np.float32)})


@pytest.mark.usefixtures("every_region_pays")
@pytest.mark.parametrize(("cache", "layouts"), [(1 << 40, {"images16"}), (64 << 10, {"planes", "images16"})])
def test_what_fits_in_the_cache_runs_in_lanes(monkeypatch, cache, layouts):
    rng = np.random.default_rng(0)
    model = pooled_net(rng)
    monkeypatch.setattr(stages, "_LARGE_BYTES", cache)
    program = get_backend("cpu").compile(model, CompileOptions(2))
    feeds = {"x": rng.standard_normal((16, 8, 24, 24), np.float32)}
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    (found,) = program.run(feeds).values()
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert layouts_of(program, feeds) == layouts


class Bytes:
    """An element type that the kernels do not have."""

    itemsize = 1


@pytest.mark.parametrize(("dtype", "count"), [(DType.FLOAT32, 1), (Bytes, 0)])
def test_what_is_large_follows_from_the_element_type(monkeypatch, dtype, count):
    monkeypatch.setattr(stages, "_LARGE_BYTES", 16 * 8 * 64 * 64)
    monkeypatch.setattr(stages, "_LARGE_OF_LIGHT", 1.0)
    step = Step(Elementwise("first"), ("x",), "y", "image", "image", (0,), dtype=dtype)
    assert stages.count_of_large([step], {"x": ("n", 8, 64, 64)}) == count


@pytest.mark.usefixtures("every_region_pays")
@pytest.mark.parametrize(("share", "most", "layouts"), [(0.5, 100, {"planes", "images16"}), (0.5, 1, {"images16"})])
def test_less_is_large_between_layers_of_little_work(monkeypatch, share, most, layouts):
    """The first tensor has three quarters of the bytes that are too many between any layers."""
    monkeypatch.setattr(stages, "_LARGE_BYTES", 16 * 8 * 24 * 24 * 4 * 4 // 3)
    monkeypatch.setattr(stages, "_LARGE_OF_LIGHT", share)
    monkeypatch.setattr(stages, "_MOST_PER_VALUE", most)
    assert layouts_of_pooled_net() == layouts


@pytest.mark.usefixtures("every_region_pays")
@pytest.mark.parametrize(
    ("most", "huge", "layouts"),
    [(100, 1 << 40, {"planes", "images16"}), (1, 1 << 40, {"images16"}), (1, 64 << 10, {"planes", "images16"})],
)
def test_nothing_but_what_is_huge_is_large_between_layers_of_much_work(monkeypatch, most, huge, layouts):
    monkeypatch.setattr(stages, "_LARGE_BYTES", 64 << 10)
    monkeypatch.setattr(stages, "_MOST_PER_VALUE", most)
    monkeypatch.setattr(stages, "_HUGE_BYTES", huge)
    assert layouts_of_pooled_net() == layouts


@pytest.mark.usefixtures("every_region_pays")
@pytest.mark.parametrize(("most", "layouts"), [(100, {"planes", "images16"}), (1, {"images16"})])
def test_no_more_of_a_huge_cache_counts_than_a_process_has(monkeypatch, most, layouts):
    monkeypatch.setattr(stages, "_LARGE_BYTES", 1 << 40)
    monkeypatch.setattr(stages, "_SHARED_BYTES", 64 << 10)
    monkeypatch.setattr(stages, "_MOST_PER_SHARED_VALUE", most)
    assert layouts_of_pooled_net() == layouts


def test_classes_of_large_pixels_are_found_image_by_image(monkeypatch):
    monkeypatch.setattr(stages, "_LARGE_BYTES", 1 << 20)
    scores = Step(Elementwise("first"), ("x",), "scores", "image", "image", (0,))
    classes = Step(
        ArgExtreme("max", 1, keep_axes=False), ("scores",), "y", "image", "rows", (1,), result_dtype=DType.INT64
    )
    assert stages.count_of_large([scores, classes], {"x": ("n", 8, 64, 64)}) == 2


def test_the_system_says_how_large_caches_are():
    first, second, last = _kernels.cache_bytes()
    assert 16 << 10 <= first < second <= last


@pytest.mark.skipif(not _SHARED.exists(), reason="the system does not say which cache is shared")
def test_the_last_cache_is_the_one_that_cores_share():
    # sysconf reports all of a processor's: on AMD's, one for a few cores each.
    number, unit = re.fullmatch(r"(\d+)([KM]?)", _SHARED.read_text().strip()).groups()
    assert _kernels.cache_bytes()[2] == int(number) << {"": 0, "K": 10, "M": 20}[unit]
