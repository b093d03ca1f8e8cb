"""Resize and other changes of resolution: channels pass, pixels stay."""

from __future__ import annotations

import numpy as np
import pytest
from nets import Net, widen

WIDTHS = [("0.5", 11), ("0.75", 16), ("0.9", 25)]


@pytest.mark.parametrize(("sparsity", "width"), WIDTHS)
def test_channels_pass_a_resize_by_scales(net: Net, sparsity: str, width: int) -> None:
    h = net.op("Resize", net.images(8), "", net.constant([1.0, 1.0, 2.0, 2.0]), name="up", mode="nearest")
    net.images_end(h, 8)
    assert widen(net, sparsity).shape("up") == (1, width, 16, 16)


@pytest.mark.parametrize(("sparsity", "width"), WIDTHS)
def test_the_channels_in_the_sizes_of_a_resize_are_rewritten(net: Net, sparsity: str, width: int) -> None:
    h = net.op("Resize", net.images(8), "", "", net.constant([1, 8, 12, 20]), name="up", mode="linear")
    net.images_end(h, 8)
    wide = widen(net, sparsity)
    assert wide.shape("up") == (1, width, 12, 20)
    assert wide.read("up", 3) == [1, width, 12, 20]


@pytest.mark.parametrize("axes", [[2, 3], [-1, -2], [1, 2, 3], [3, 1]])
def test_a_resize_of_some_axes(net: Net, axes: list[int]) -> None:
    sizes = [{1: 8, 2: 12, 3: 20}[axis % 4] for axis in axes]
    h = net.op("Resize", net.images(8), "", "", net.constant(sizes), name="up", axes=axes)
    net.images_end(h, 8)
    wide = widen(net)
    assert wide.shape("up") == (1, 16, 12 if len(axes) == 3 or axes != [3, 1] else 8, 20)


def test_sizes_that_are_computed_from_the_input(net: Net) -> None:
    """torch's ``interpolate(x, scale_factor=2)`` with a dynamic batch: channels come from Shape."""
    h = net.images(8)
    kept = net.op("Slice", net.op("Shape", h), net.constant([0]), net.constant([2]), net.constant([0]))
    sizes = net.op("Concat", kept, net.constant([16, 16]), axis=0)
    net.images_end(net.op("Resize", h, "", "", sizes, name="up"), 8)
    assert widen(net).shape("up") == (1, 16, 16, 16)


def test_a_resize_of_channels_last_images(net: Net) -> None:
    """TensorFlow's layout: the features are the last axis, whose scale is 1."""
    h = net.op("Reshape", net.tokens(8, length=16), net.constant([1, 4, 4, 8]))
    h = net.op("Resize", h, "", net.constant([1.0, 2.0, 2.0, 1.0]), name="up", mode="nearest")
    net.tokens_end(net.op("Reshape", h, net.constant([1, 64, 8])), 8)
    assert widen(net).shape("up") == (1, 8, 8, 16)


def test_an_upsample_of_old_opsets() -> None:
    net = Net(9)
    h = net.op("Upsample", net.images(8), net.constant([1.0, 1.0, 2.0, 2.0]), name="up", mode="nearest")
    net.images_end(h, 8)
    assert widen(net).shape("up") == (1, 16, 16, 16)


def test_features_that_are_resampled_stay_and_say_so(net: Net) -> None:
    h = net.tokens(8)
    up = net.op("Resize", h, "", net.constant([1.0, 1.0, 2.0]), name="up")
    net.output(net.dense(up, 16, 2))
    net.tokens_end(net.dense(h, 8, 12, name="free"), 12)
    wide = widen(net)
    assert wide.shape("up") == (1, 5, 16)
    assert wide.shape("free") == (1, 5, 24)
    assert "resampled" in wide.reason("before.weight")


def test_channels_pass_a_grid_sample(net: Net) -> None:
    grid = net.input("grid", 1, 5, 7, 2)
    net.images_end(net.op("GridSample", net.images(8), grid, name="sampled"), 8)
    assert widen(net).shape("sampled") == (1, 16, 5, 7)


@pytest.mark.parametrize("axes", [None, [2, 3]])
def test_channels_pass_a_centre_crop(net: Net, axes: list[int] | None) -> None:
    sizes = net.constant([5, 10] if axes else [1, 8, 5, 10])
    h = net.op("CenterCropPad", net.images(8), sizes, name="crop", **({"axes": axes} if axes else {}))
    net.images_end(h, 8)
    assert widen(net, reference=True).shape("crop") == (1, 16, 5, 10)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize(("sparsity", "width"), [("0.5", 16), ("0.75", 24), ("0.9", 36)])
def test_channels_become_pixels_in_whole_blocks(net: Net, mode: str, sparsity: str, width: int) -> None:
    h = net.op("DepthToSpace", net.images(12), name="shuffled", blocksize=2, mode=mode)
    net.images_end(h, 3)
    wide = widen(net, sparsity)
    assert wide.shape("before")[1] == width
    assert wide.shape("shuffled") == (1, width // 4, 16, 16)


def test_pixels_become_channels(net: Net) -> None:
    net.images_end(net.op("SpaceToDepth", net.images(3), name="folded", blocksize=2), 12)
    wide = widen(net, "0.9")
    assert wide.shape("before")[1] == 9
    assert wide.shape("folded") == (1, 36, 4, 4)


def test_a_pixel_shuffle_spelled_as_reshapes_is_left_alone(net: Net) -> None:
    """Which of the three axes grows cannot be told from heads and their size."""
    h = net.op("Reshape", net.images(12), net.constant([1, 3, 2, 2, 8, 8]))
    h = net.op("Transpose", h, perm=[0, 1, 4, 2, 5, 3])
    h = net.op("Reshape", h, net.constant([1, 3, 16, 16]), name="shuffled")
    net.images_end(net.conv(h, 3, 10, name="free"), 10)
    wide = widen(net)
    assert wide.shape("shuffled") == (1, 3, 16, 16)
    assert wide.shape("free")[1] == 20
    assert "kernel slides over it" in wide.reason("before.weight")


@pytest.mark.parametrize("kind", ["RoiAlign", "MaxRoiPool"])
def test_channels_pass_a_pooling_of_regions(net: Net, kind: str) -> None:
    boxes = np.array([[0, 0, 4, 4], [2, 2, 7, 7], [1, 0, 5, 6]], np.float32)
    h = net.images(8)
    if kind == "RoiAlign":
        inputs = net.constant(boxes), net.constant([0, 0, 0])
        h = net.op(kind, h, *inputs, name="regions", output_height=2, output_width=3)
    else:
        h = net.op(kind, h, net.constant(np.pad(boxes, ((0, 0), (1, 0)))), name="regions", pooled_shape=[2, 3])
    net.images_end(h, 8)
    assert widen(net).shape("regions") == (3, 16, 2, 3)


def test_columns_become_an_image_again(net: Net) -> None:
    h = net.op(
        "Col2Im",
        net.op("Transpose", net.tokens(12, length=16), perm=[0, 2, 1]),
        net.constant([5, 5]),
        net.constant([2, 2]),
        name="image",
    )
    net.images_end(h, 3)
    wide = widen(net)
    assert wide.shape("image") == (1, 6, 5, 5)
    assert wide.shape("before") == (1, 16, 24)
