"""Concat, Split, Slice, Pad, Tile: what a part of an axis becomes when the axis grows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nets import Net, widen

INT64_MAX, INT64_MIN = 2**63 - 1, -(2**63)


@pytest.mark.parametrize(("sparsity", "first", "second"), [("0.5", 11, 17), ("0.75", 16, 24), ("0.9", 25, 38)])
def test_joined_channels_add_up(net: Net, sparsity: str, first: int, second: int) -> None:
    h = net.images(8)
    h = net.op("Concat", net.conv(h, 8, 8, name="a"), net.conv(h, 8, 12, name="b"), name="cat", axis=1)
    net.images_end(h, 20)
    wide = widen(net, sparsity)
    assert wide.shape("a")[1] == first
    assert wide.shape("b")[1] == second
    assert wide.shape("after.weight")[1] == first + second


def test_a_join_along_another_axis_keeps_its_parts_alike(net: Net) -> None:
    h = net.tokens(8)
    token = net.weight(1, 1, 8, name="token")
    h = net.op("Concat", token, h, name="cat", axis=1)
    net.tokens_end(h, 8)
    wide = widen(net)
    assert wide.shape("token") == (1, 1, 16)
    assert wide.shape("cat") == (1, 6, 16)


def test_a_join_with_a_graph_input_grows_by_its_own_part_only(net: Net) -> None:
    h = net.tokens(8)
    net.tokens_end(net.op("Concat", h, net.input("y", 1, 5, 3), name="cat", axis=-1), 11)
    assert widen(net).shape("cat") == (1, 5, 19)


def test_dense_blocks_grow_layer_by_layer(net: Net) -> None:
    """Features of DenseNet: sums of sums."""
    h, width = net.images(8), 8
    for i in range(3):
        h = net.op("Concat", h, net.conv(net.op("Relu", h), width, 4, 3, name=f"grow{i}"), name=f"cat{i}", axis=1)
        width += 4
    net.images_end(h, width)
    wide = widen(net)
    assert [wide.shape(f"grow{i}.weight")[:2] for i in range(3)] == [(8, 16), (8, 24), (8, 32)]
    assert wide.shape("cat2")[1] == 40


def split_net(opset: int, sizes: list[int], form: str) -> Net:
    net = Net(opset)
    h = net.images(8)
    inputs, attrs = [h], {}
    if form == "attribute":
        attrs["split"] = sizes
    elif form == "input":
        inputs.append(net.constant(sizes, "sizes"))
    elif form == "num_outputs":
        attrs["num_outputs"] = len(sizes)
    parts = net.op("Split", *inputs, name="part", outputs=len(sizes), axis=1, **attrs)
    ends = [net.conv(part, n, 6, name=f"use{i}") for i, (part, n) in enumerate(zip(parts, sizes, strict=True))]
    net.images_end(net.op("Sum", *ends), 6)
    return net


@pytest.mark.parametrize(
    ("opset", "form"), [(11, "attribute"), (11, "equal"), (13, "input"), (17, "equal"), (18, "num_outputs")]
)
@pytest.mark.parametrize(("sparsity", "half"), [("0.5", 6), ("0.75", 8), ("0.9", 13)])
def test_a_split_in_two_stays_one(opset: int, form: str, sparsity: str, half: int) -> None:
    wide = widen(split_net(opset, [4, 4], form), sparsity)
    assert wide.shape("part") == wide.shape("part.1") == (1, half, 8, 8)


@pytest.mark.parametrize(("opset", "form"), [(11, "attribute"), (13, "input"), (20, "input")])
def test_unequal_parts_keep_their_fractions(opset: int, form: str) -> None:
    wide = widen(split_net(opset, [2, 6], form), "0.9")
    assert wide.shape("part")[1] == 6
    assert wide.shape("part.1")[1] == 18
    assert list(wide.attr("part", "split") if form == "attribute" else wide.read("part", 1)) == [6, 18]


def test_a_split_whose_last_part_is_smaller_keeps_its_axis(net: Net) -> None:
    h = net.images(8)
    h = net.op("Concat", *net.op("Split", h, name="part", outputs=3, axis=1, num_outputs=3), axis=1)
    h = net.conv(net.conv(h, 8, 10, name="free"), 10, 8, name="free2")
    net.images_end(h, 8)
    wide = widen(net)
    assert [wide.shape(name)[1] for name in ("part", "part.1", "part.2")] == [3, 3, 2]
    assert wide.shape("free")[1] == 20
    assert "unequal" in wide.reason("before.weight")


def test_split_sizes_that_two_nodes_share_are_rewritten_for_each(net: Net) -> None:
    """One constant, read by a split of an axis that grows and by one of an axis that does not."""
    h = net.images(8, size=8)
    sizes = net.constant([4, 4], "sizes")
    channels = net.op("Split", h, sizes, name="channels", outputs=2, axis=1)
    rows = net.op("Split", net.op("Add", *channels), sizes, name="rows", outputs=2, axis=2)
    net.images_end(net.op("Add", *rows), 4)
    wide = widen(net)
    assert wide.shape("channels") == (1, 8, 8, 8)
    assert wide.shape("rows") == (1, 8, 4, 8)


def slice_net(start: int, end: int, form: str, step: int = 1) -> tuple[Net, int]:
    net = Net(9 if form == "attribute" else 20)
    h = net.images(8)
    if form == "attribute":
        h = net.op("Slice", h, name="cut", starts=[start], ends=[end], axes=[1])
    else:
        h = net.op("Slice", h, *(net.constant([v]) for v in (start, end, 1, step)), name="cut")
    width = len(range(*slice(start, end, step).indices(8)))
    net.images_end(h, width)
    return net, width


@pytest.mark.parametrize("form", ["attribute", "input"])
@pytest.mark.parametrize(
    ("start", "end"),
    [
        (0, 4),
        (4, 8),
        (4, INT64_MAX),
        (-4, INT64_MAX),
        (-4, 8),
        (0, -4),
        (2, -2),
        (-6, -2),
        (2, 6),
        (0, 8),
        (0, INT64_MAX),
        (-8, INT64_MAX),
        (-100, 100),
        (-8, 4),
        (INT64_MIN, 4),
    ],
)
def test_a_cut_keeps_its_fraction(form: str, start: int, end: int) -> None:
    net, width = slice_net(start, end, form)
    wide = widen(net, "0.75")
    assert wide.shape("before")[1] == 16
    assert wide.shape("cut")[1] == 2 * width


@pytest.mark.parametrize(("start", "end"), [(4, INT64_MAX), (0, 100), (-100, 4)])
def test_bounds_beyond_the_axis_stay_at_its_ends(start: int, end: int) -> None:
    net, _ = slice_net(start, end, "input")
    wide = widen(net)
    bounds = wide.read("cut", 1) + wide.read("cut", 2)
    assert bounds == [v if abs(v) > 100 else 2 * min(max(v, -8), 8) for v in (start, end)]


@pytest.mark.parametrize(("start", "end"), [(INT64_MAX, INT64_MIN), (-1, INT64_MIN), (7, -9), (-1, -9), (100, -100)])
def test_an_axis_that_is_reversed_may_grow(start: int, end: int) -> None:
    net, _ = slice_net(start, end, "input", step=-1)
    wide = widen(net)
    assert wide.shape("cut")[1] == 16


@pytest.mark.parametrize(("start", "end", "step"), [(0, 8, 2), (1, INT64_MAX, 2), (3, 4, 1), (5, 1, -1)])
def test_an_axis_of_which_single_elements_are_picked_stays(start: int, end: int, step: int) -> None:
    net, width = slice_net(start, end, "input", step)
    h = net.conv(net.conv("cut", width, 10, name="free"), 10, 4, name="free2")
    net.output(net.conv(h, 4, 2, name="head2"))
    wide = widen(net)
    assert wide.shape("cut")[1] == width
    assert wide.shape("free")[1] == 20
    assert "single elements" in wide.reason("before.weight")


def test_a_cut_that_would_need_a_coarse_step_leaves_its_axis_alone(net: Net) -> None:
    h = net.images(67)
    h = net.op("Slice", h, net.constant([5]), net.constant([50]), net.constant([1]), name="cut")
    h = net.conv(net.conv(h, 45, 10, name="free"), 10, 4, name="free2")
    net.images_end(h, 4)
    wide = widen(net)
    assert wide.shape("cut")[1] == 45
    assert wide.shape("before")[1] == 67
    assert "fixed place" in wide.reason("before.weight")


def test_a_cut_whose_place_is_computed_from_the_axis_follows_it(net: Net) -> None:
    """torch's ``x[:, x.shape[1] // 2:]``."""
    h = net.images(8)
    half = net.op("Div", net.op("Gather", net.op("Shape", h), net.constant([1])), net.constant([2]))
    h = net.op("Slice", h, half, net.constant([INT64_MAX]), net.constant([1]), name="cut")
    net.images_end(h, 4)
    wide = widen(net, "0.9")
    assert wide.shape("before")[1] == 26
    assert wide.shape("cut")[1] == 13


def test_a_cut_that_ends_where_another_tensor_does(net: Net) -> None:
    """``x[..., :y.shape[-1]]`` of equally wide tensors: the end is as wide as the other one becomes."""
    h = net.tokens(8)
    other = net.dense(net.op("Relu", h), 8, 8, name="other")
    end = net.op("Gather", net.op("Shape", other), net.constant([2]))
    h = net.op("Slice", h, net.constant([0]), end, net.constant([2]), name="cut")
    net.tokens_end(net.op("Mul", h, h), 8)
    net.output(net.dense(net.op("Relu", net.dense(other, 8, 6)), 6, 2))
    wide = widen(net, "0.9")
    assert wide.shape("cut") == wide.shape("other") == (1, 5, 25)


@pytest.mark.parametrize("form", ["attribute", "input", "axes"])
@pytest.mark.parametrize(("sparsity", "width"), [("0.5", 12), ("0.75", 16), ("0.9", 24)])
def test_padded_channels_grow_in_proportion(form: str, sparsity: str, width: int) -> None:
    """The shortcut of a CIFAR ResNet pads with zero channels."""
    net = Net({"attribute": 10, "input": 13, "axes": 18}[form])
    h = net.images(8)
    pads = [0, 2, 0, 0, 0, 6, 0, 0]
    if form == "attribute":
        h = net.op("Pad", h, name="pad", pads=pads)
    elif form == "input":
        h = net.op("Pad", h, net.constant(pads), name="pad")
    else:
        h = net.op("Pad", h, net.constant([2, 6]), net.constant(0.0), net.constant([-3]), name="pad")
    net.images_end(h, 16)
    wide = widen(net, sparsity)
    assert wide.shape("before")[1] == width
    assert wide.shape("pad")[1] == 2 * width
    stated: Any = wide.attr("pad", "pads") if form == "attribute" else wide.read("pad", 1)
    assert [n for n in stated if n] == [width // 4, 3 * width // 4]


def test_padded_pixels_stay_as_many(net: Net) -> None:
    h = net.op("Pad", net.images(8), net.constant([0, 0, 1, 2, 0, 0, 3, 4]), name="pad")
    net.images_end(h, 8)
    wide = widen(net)
    assert wide.shape("pad") == (1, 16, 12, 14)
    assert wide.read("pad", 1) == [0, 0, 1, 2, 0, 0, 3, 4]


def test_pixels_of_the_channels_may_be_cropped(net: Net) -> None:
    h = net.op("Pad", net.images(8), net.constant([0, -2, 0, 0, 0, -2, 0, 0]), name="crop")
    net.images_end(h, 4)
    assert widen(net).shape("crop") == (1, 8, 8, 8)


def test_padding_by_computed_amounts_keeps_the_axes(net: Net) -> None:
    h = net.images(8)
    amounts = net.op("Mul", net.input("amounts", values=np.zeros(8, np.int64)), net.constant(1))
    net.output(net.op("Pad", h, amounts, name="pad"), 1, 8, 8, 8)
    net.images_end(net.conv(h, 8, 10, name="free"), 10)
    wide = widen(net)
    assert wide.shape("pad")[1] == 8
    assert wide.shape("free")[1] == 20
    assert "computed" in wide.reason("before.weight")


def test_a_repeated_axis_is_a_multiple(net: Net) -> None:
    h = net.op("Tile", net.images(8), net.constant([1, 3, 1, 2]), name="tile")
    net.images_end(h, 24)
    wide = widen(net)
    assert wide.shape("tile") == (1, 48, 8, 16)
    assert wide.read("tile", 1) == [1, 3, 1, 2]


def test_an_axis_of_size_one_is_repeated_as_often_as_is_needed(net: Net) -> None:
    h = net.tokens(8)
    gate = net.op("ReduceMean", h, net.constant([-1]))
    h = net.op("Mul", h, net.op("Tile", gate, net.constant([1, 1, 8]), name="tile"))
    net.tokens_end(h, 8)
    wide = widen(net)
    assert wide.shape("tile") == (1, 5, 16)
    assert wide.read("tile", 1) == [1, 1, 16]


@pytest.mark.parametrize("form", ["Split", "DepthToSpace", "Pad"])
def test_a_part_of_size_one_stays_one(net: Net, form: str) -> None:
    """Whatever it meets takes it for an axis to be broadcast."""
    h = net.images(4)
    if form == "Split":
        part = net.op("Split", h, net.constant([1, 3]), name="part", outputs=2, axis=1)[0]
        net.output(net.op("Mul", h, part))
    elif form == "DepthToSpace":
        part = net.op("DepthToSpace", h, name="part", blocksize=2)
    else:
        part = net.op("Pad", h, net.constant([0, -1, 0, 0, 0, -2, 0, 0]), name="part")
    net.images_end(net.conv(part, 1, 10, name="free"), 10)
    wide = widen(net)
    assert wide.shape("part")[1] == 1
    assert wide.shape("free")[1] == 20
    assert wide.shape("before")[1] == 4
