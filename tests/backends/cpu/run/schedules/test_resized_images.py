"""Schedules of other sizes of images follow from two that are there, and compute what those made step by step do."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.cpu.run.schedules import region_schedules

pytestmark = pytest.mark.usefixtures("every_region_pays")

SIZES = ((8, 8), (12, 8), (20, 28), (4, 32), (36, 12))


class ImageNet(SparseNet):
    """A net of images of any size, which grows by one block at a time; blocks keep the size."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.x = self.input("x", 1, channels, 8, 8, declared=["n", channels, "h", "w"])

    def residual(self, x: str, width: int) -> str:
        return str(self.op("Add", self.op("Relu", self.conv(x, width, width, 3)), x))

    def squeezed(self, x: str, width: int) -> str:
        means = self.op("GlobalAveragePool", x)
        return str(self.op("Mul", x, self.op("Sigmoid", self.conv(means, width, width))))

    def down_and_up(self, x: str, width: int, mode: str = "nearest") -> str:
        small = self.conv(self.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), width, width, 3)
        scales = self.constant([1, 1, 2, 2], dtype=np.float32)
        return str(self.op("Add", x, self.op("Resize", small, "", scales, mode=mode)))

    def dense_block(self, x: str, width: int) -> str:
        first = self.op("Concat", x, self.conv(x, width, 3, 3), axis=1)
        second = self.op("Concat", first, self.conv(first, width + 3, 2, 3), axis=1)
        return str(self.conv(second, width + 5, width))

    def cut_and_joined(self, x: str, width: int) -> str:
        sizes = self.constant([1, width - 1], dtype=np.int64)
        a, b = self.op("Split", x, sizes, outputs=2, axis=1)
        return str(self.op("Concat", self.conv(b, width - 1, width - 1, 3), a, axis=1))

    def inverted(self, x: str, width: int) -> str:
        wide = self.op("Relu", self.conv(x, width, 4 * width))
        filtered = self.op("Relu", self.conv(wide, 4 * width, 4 * width, 3, group=4 * width))
        return str(self.op("Add", x, self.conv(filtered, 4 * width, width)))

    def normalized(self, x: str, width: int) -> str:
        scale, shift = (
            self.constant(values, dtype=np.float32) for values in (np.linspace(0.5, 1.5, width), [0.1] * width)
        )
        # Means of what is normalized are zero but for rounding.
        return str(self.op("Relu", self.op("InstanceNormalization", self.conv(x, width, width), scale, shift)))

    def blocks(self) -> dict[str, Callable[[str, int], str]]:
        return {
            "residual": self.residual,
            "squeezed": self.squeezed,
            "down and up": self.down_and_up,
            "down and up, linearly": lambda x, width: self.down_and_up(x, width, "linear"),
            "dense": self.dense_block,
            "cut and joined": self.cut_and_joined,
            "inverted": self.inverted,
            "normalized": self.normalized,
        }

    def ends(self, x: str, width: int) -> None:
        self.output(self.conv(x, width, 3))
        features = self.op("Flatten", self.op("GlobalAveragePool", x))
        self.output(self.dense(features, width, 5))

    def feeds_of(self, images: int, size: tuple[int, int]) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(images * size[0] + size[1])
        return {"x": rng.standard_normal((images, 4, *size)).astype(np.float32)}


def grown(*blocks: str) -> ImageNet:
    net = ImageNet()
    x, width = net.conv(net.x, 4, 6, 3), 6
    for block in blocks:
        x = net.blocks()[block](x, width)
    net.ends(x, width)
    return net


def planned_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever a schedule is planned step by step."""
    plans: list[int] = []
    make = region_schedules.planned
    monkeypatch.setattr(region_schedules, "planned", lambda *given: plans.append(1) or make(*given))
    return plans


@pytest.mark.parametrize("block", ImageNet().blocks())
@pytest.mark.parametrize("images", [1, 3, 16, 33])
def test_sizes_after_the_second_are_not_planned(block: str, images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    net = grown(block)
    model = net.model()
    program, plans = CpuProgram(model, ONE_THREAD), planned_sizes(monkeypatch)
    for size in SIZES:
        feeds = net.feeds_of(images, size)
        assert_same_as_onnxruntime(model, feeds, program)
        count = len(plans)
        (*again,) = program.run(feeds).values()
        (*alone,) = CpuProgram(model, ONE_THREAD).run(feeds).values()
        del plans[count:]
        for own, other in zip(again, alone, strict=True):
            np.testing.assert_array_equal(own, other)
    follows = images == 1 or (images <= 16 and block not in ("dense", "cut and joined"))
    assert len(plans) == 2 if follows else len(plans) >= len(SIZES)


def test_an_image_of_one_row_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is broadcast depends on which axes have one position."""
    net = grown("residual", "squeezed")
    model = net.model()
    program, plans = CpuProgram(model, ONE_THREAD), planned_sizes(monkeypatch)
    for size, wanted in (((8, 8), 1), ((9, 10), 2), ((11, 7), 2), ((1, 7), 3), ((5, 1), 4), ((3, 3), 4)):
        assert_same_as_onnxruntime(model, net.feeds_of(1, size), program)
        assert len(plans) == wanted, size


def test_layers_that_run_in_bands_at_one_size_alone_are_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    net = grown("inverted")
    model = net.model()
    program, plans = CpuProgram(model, ONE_THREAD), planned_sizes(monkeypatch)
    kernel = _kernels.BandedDepthwise
    with mock.patch.object(kernel, "pays", lambda op, shape, threads: shape[2] > 16):
        for size, wanted in (((8, 8), 1), ((12, 8), 2), ((16, 8), 2), ((20, 8), 3), ((12, 12), 3)):
            assert_same_as_onnxruntime(model, net.feeds_of(1, size), program)
            assert len(plans) == wanted, size


def test_a_schedule_that_differs_from_what_was_expected_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two plans have nothing in common, all sizes are planned."""
    net = grown("residual")
    model = net.model()
    program, plans = CpuProgram(model, ONE_THREAD), planned_sizes(monkeypatch)
    with mock.patch("sift_onnx.backends.cpu.run.schedules.resized_images._are_equal", return_value=False):
        for size in SIZES:
            assert_same_as_onnxruntime(model, net.feeds_of(1, size), program)
    assert len(plans) == len(SIZES)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(
    blocks=st.lists(st.sampled_from(list(ImageNet().blocks())), min_size=1, max_size=5),
    requests=st.lists(
        st.tuples(st.sampled_from((1, 1, 2)), st.integers(1, 12), st.integers(1, 12)), min_size=3, max_size=6
    ),
)
def test_random_nets_at_random_sizes(blocks: list[str], requests: list[tuple[int, int, int]]) -> None:
    net = grown(*blocks)
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for images, height, width in requests:
        assert_same_as_onnxruntime(model, net.feeds_of(images, (2 * height, 2 * width)), program, tolerance=1e-4)
