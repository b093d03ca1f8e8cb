"""Reshape, Flatten, Transpose, Squeeze, Unsqueeze, Expand: growth goes where it belongs, and onnxruntime agrees."""

from __future__ import annotations

import numpy as np
import pytest
from nets import Net, widen

# Reshape.


@pytest.mark.parametrize(
    ("asked", "stated"),
    [
        ([1, 5, 3, 4], [1, 5, 3, 8]),
        ([1, 5, -1, 4], [1, 5, -1, 8]),
        ([1, 5, 3, -1], [1, 5, 3, -1]),
        ([0, 0, 3, -1], [0, 0, 3, -1]),
        ([0, -1, 3, 4], [0, -1, 3, 8]),
        ([-1, 5, 3, 4], [-1, 5, 3, 8]),
    ],
)
def test_heads_keep_their_number_and_get_wider(net: Net, asked: list[int], stated: list[int]) -> None:
    """Whichever size is left to the operator: ``-1`` would hide a wrong one."""
    h = net.op("Reshape", net.dense(net.tokens(6), 6, 12, name="q"), net.constant(asked), name="split")
    h = net.op("Transpose", net.op("Transpose", h, perm=[0, 2, 1, 3]), perm=[0, 2, 1, 3])
    net.tokens_end(net.op("Reshape", h, net.constant([0, 0, -1]), name="merged"), 12)
    wide = widen(net)
    assert wide.shape("split") == (1, 5, 3, 8)
    assert wide.read("split", 1) == stated
    assert wide.shape("merged") == (1, 5, 24)


@pytest.mark.parametrize("sparsity", ["0.5", "0.75", "0.9"])
def test_a_width_that_is_split_grows_by_whole_heads(net: Net, sparsity: str) -> None:
    h = net.op("Reshape", net.dense(net.tokens(6), 6, 12, name="q"), net.constant([1, 5, 4, 3]), name="split")
    net.tokens_end(net.op("Reshape", h, net.constant([1, 5, 12])), 12)
    wide = widen(net, sparsity)
    assert wide.shape("split")[2] == 4
    assert wide.shape("q")[2] == 4 * wide.shape("split")[3]


def test_the_number_of_heads_says_why_it_stays(net: Net) -> None:
    """What is learned for each of four heads meets a width that is split into them."""
    h = net.op("Reshape", net.dense(net.tokens(6), 6, 12, name="q"), net.constant([1, 5, 4, 3]))
    per_head = net.op("Gather", net.weight(7, 4, name="table"), net.constant(2))
    h = net.op("Mul", h, net.op("Unsqueeze", per_head, net.constant([1])))
    net.tokens_end(net.op("Reshape", h, net.constant([1, 5, 12])), 12)
    assert "a reshape splits an axis into it and one that grows" in widen(net).reason("table")


def test_a_size_that_is_computed_from_numbers_says_why_it_stays(net: Net) -> None:
    width = net.op("Mul", net.constant([2]), net.constant([3]), name="width")
    asked = net.op("Concat", net.constant([1, 5]), width, axis=0)
    net.tokens_end(net.op("Reshape", net.tokens(6), asked, name="same"), 6)
    assert "a reshape states this size, computed from numbers that stay" in widen(net).reason("before.weight")


def test_stated_sizes_are_rewritten_and_zeros_stay_with_allowzero(net: Net) -> None:
    h = net.op("Reshape", net.dense(net.tokens(6), 6, 12), net.constant([1, 5, 3, 4]), allowzero=1, name="split")
    net.tokens_end(net.op("Reshape", h, net.constant([0, 5, -1])), 12)
    assert widen(net).read("split", 1) == [1, 5, 3, 8]


@pytest.mark.parametrize("asked", [[1, 128], [1, -1], [-1, 128], [0, -1]])
def test_pixels_of_growing_channels_are_flattened(net: Net, asked: list[int]) -> None:
    flat = net.op("Reshape", net.op("Relu", net.images(8, 4)), net.constant(asked), name="flat")
    net.output(net.dense(net.op("Relu", net.dense(flat, 128, 6, name="after")), 6, 2, name="head"))
    wide = widen(net)
    assert wide.shape("flat") == (1, 256)
    assert wide.shape("after.weight") == (256, 12)
    assert wide.read("flat", 1) == [256 if n == 128 else n for n in asked]


def test_flattened_channels_are_images_again(net: Net) -> None:
    flat = net.op("Reshape", net.images(8, 4), net.constant([1, 128]))
    net.images_end(net.op("Reshape", flat, net.constant([1, 8, 4, 4]), name="image"), 8)
    wide = widen(net)
    assert wide.shape("image") == (1, 16, 4, 4)
    assert wide.read("image", 1) == [1, 16, 4, 4]


@pytest.mark.parametrize(("groups", "grown"), [(1, [1, 1, 256]), (4, [1, 4, 64]), (8, [1, 16, 16])])
@pytest.mark.parametrize("rest", [True, False])
def test_channels_go_into_groups_and_come_back(net: Net, groups: int, grown: list[int], rest: bool) -> None:
    """Group normalization, as exporters take it apart; as many groups as channels grow with them."""
    h = net.images(8, 4)
    grouped = net.op("Reshape", h, net.constant([0, groups, -1 if rest else 128 // groups]), name="grouped")
    back = net.op("Reshape", grouped, net.constant([1, 8, 4, 4]), name="back")
    net.images_end(back, 8)
    wide = widen(net)
    assert wide.shape("grouped") == tuple(grown)
    assert wide.read("grouped", 1) == [0, grown[1], -1 if rest else grown[2]]
    assert wide.shape("back") == (1, 16, 4, 4)


def test_pixels_become_tokens_and_pixels_again(net: Net) -> None:
    h = net.op("Reshape", net.images(8, 4), net.constant([1, 8, 16]), name="flat")
    h = net.dense(net.op("Transpose", h, perm=[0, 2, 1]), 8, 8, name="mix")
    h = net.op("Reshape", net.op("Transpose", h, perm=[0, 2, 1]), net.constant([1, 8, 4, 4]), name="image")
    net.images_end(h, 8)
    wide = widen(net)
    assert (wide.shape("flat"), wide.shape("mix"), wide.shape("image")) == ((1, 16, 16), (1, 16, 16), (1, 16, 4, 4))


@pytest.mark.parametrize("sparsity", ["0.5", "0.75", "0.9"])
def test_patches_are_unfolded_and_folded(net: Net, sparsity: str) -> None:
    """MobileViT: channels are merged with rows of patches, and must be found again behind two transposes."""
    h = net.images(6)
    h = net.op("Reshape", h, net.constant([24, 2, 4, 2]), name="rows")
    h = net.op("Reshape", net.op("Transpose", h, perm=[0, 2, 1, 3]), net.constant([1, 6, 16, 4]), name="patches")
    h = net.op("Reshape", net.op("Transpose", h, perm=[0, 3, 2, 1]), net.constant([4, 16, -1]), name="tokens")
    h = net.dense(h, 6, 6, name="mix")
    h = net.op("Reshape", h, net.constant([1, 4, 16, -1]))
    h = net.op("Reshape", net.op("Transpose", h, perm=[0, 3, 2, 1]), net.constant([24, 4, 2, 2]))
    h = net.op("Reshape", net.op("Transpose", h, perm=[0, 2, 1, 3]), net.constant([1, 6, 8, 8]), name="image")
    net.images_end(h, 6)
    wide = widen(net, sparsity)
    channels = {"0.5": 8, "0.75": 12, "0.9": 19}[sparsity]
    assert wide.shape("rows") == (4 * channels, 2, 4, 2)
    assert wide.shape("patches") == (1, channels, 16, 4)
    assert wide.shape("mix.weight") == (channels, channels)
    assert wide.shape("image") == (1, channels, 8, 8)


def test_of_two_growing_axes_that_are_merged_the_inner_one_grows(net: Net) -> None:
    a = net.op("Unsqueeze", net.dense(net.tokens(6), 6, 4, name="a"), net.constant([3]))
    b = net.op("Unsqueeze", net.dense("relu1", 6, 7, name="b"), net.constant([2]))
    flat = net.op("Reshape", net.op("Mul", a, b, name="outer"), net.constant([1, 5, 28]), name="flat")
    net.tokens_end(flat, 28)
    wide = widen(net)
    assert wide.shape("flat") == (1, 5, 56)
    assert wide.shape("outer") == (1, 5, 4, 14)
    assert "merges it with another axis that grows" in wide.reason("a.weight")


def test_a_split_without_a_place_for_growth_keeps_the_width(net: Net) -> None:
    """Growth of 6 in ``[6, 4]`` fits neither 8 nor 3."""
    h = net.op("Transpose", net.dense(net.tokens(4, length=4), 4, 6, name="q"), perm=[0, 2, 1])
    odd = net.op("Reshape", h, net.constant([1, 8, 3]), name="odd")
    back = net.op("Transpose", net.op("Reshape", odd, net.constant([1, 6, 4])), perm=[0, 2, 1])
    net.tokens_end(back, 6)
    wide = widen(net)
    assert wide.shape("odd") == (1, 8, 3)
    assert "no place for growth" in wide.reason("q.weight")


def test_a_size_that_is_copied_from_a_fixed_axis_stays(net: Net) -> None:
    """``[4, 2, 1]`` to ``[2, 0, 2]``: growth of 4 would go into the axis that is copied from the 2 beside it."""
    h = net.op("Transpose", net.dense(net.tokens(6, length=2), 6, 4, name="q"), perm=[2, 1, 0])
    copied = net.op("Reshape", h, net.constant([2, 0, 2]), name="copied")
    net.tokens_end(net.op("Transpose", net.op("Reshape", copied, net.constant([4, 2, 1])), perm=[2, 1, 0]), 4)
    wide = widen(net)
    assert wide.shape("q.weight") == (12, 4)
    assert "graph input" in wide.reason("q.weight")


def test_a_shape_that_is_an_input_keeps_the_width(net: Net) -> None:
    target = net.input("target", values=np.asarray([1, 5, 12]))
    net.op("Reshape", net.dense(net.tokens(6), 6, 12, name="q"), target, name="asked")
    net.tokens_end(net.op("Reshape", "asked", net.constant([1, 5, 12])), 12)
    wide = widen(net)
    assert wide.shape("asked") == (1, 5, 12)
    assert "reshaped to a computed shape" in wide.reason("q.weight")


# Flatten.


@pytest.mark.parametrize(
    ("axis", "shape"),
    [(0, (1, 256)), (1, (1, 256)), (2, (16, 16)), (3, (64, 4)), (4, (256, 1)), (-1, (64, 4)), (-3, (1, 256))],
)
def test_growth_is_flattened_to_either_side(net: Net, axis: int, shape: tuple[int, ...]) -> None:
    flat = net.op("Flatten", net.images(8, 4), axis=axis, name="flat")
    net.images_end(net.op("Reshape", flat, net.constant([1, 8, 4, 4]), name="image"), 8)
    wide = widen(net)
    assert wide.shape("flat") == shape
    assert wide.shape("image") == (1, 16, 4, 4)


def test_the_default_keeps_the_first_axis(net: Net) -> None:
    flat = net.op("Flatten", net.images(8, 4), name="flat")
    net.output(net.dense(net.op("Relu", net.dense(flat, 128, 6, name="after")), 6, 2))
    assert widen(net).shape("after.weight") == (256, 12)


# Transpose.


@pytest.mark.parametrize("perm", [[2, 0, 1], [0, 2, 1], [2, 1, 0], None])
def test_growth_moves_with_its_axis(net: Net, perm: list[int] | None) -> None:
    attrs = {} if perm is None else {"perm": perm}
    moved = net.op("Transpose", net.dense(net.tokens(6), 6, 7, name="q"), name="moved", **attrs)
    order = perm or [2, 1, 0]
    net.tokens_end(net.op("Transpose", moved, perm=[order.index(i) for i in range(3)]), 7)
    wide = widen(net)
    assert wide.shape("moved") == tuple((1, 5, 14)[p] for p in order)


# Squeeze and Unsqueeze.


@pytest.mark.parametrize("opset", [11, 20])
@pytest.mark.parametrize("axes", [[1], [-2], [0, 1], []])
def test_axes_of_one_vanish_and_appear(opset: int, axes: list[int]) -> None:
    """The axes are an attribute before opset 13; without any, all of size 1 go."""
    net = Net(opset=opset)
    h = net.dense(net.op("Relu", net.dense(net.input("x", 1, 1, 4), 4, 6, name="stem")), 6, 7, name="q")
    if opset < 13:
        h = net.op("Squeeze", h, name="squeezed", **({"axes": axes} if axes else {}))
        h = net.op("Unsqueeze", h, axes=axes or [0, 1], name="back")
    else:
        h = net.op("Squeeze", h, *([net.constant(axes)] if axes else []), name="squeezed")
        h = net.op("Unsqueeze", h, net.constant(axes or [0, 1]), name="back")
    net.tokens_end(h, 7)
    wide = widen(net)
    assert wide.shape("back") == (1, 1, 14)
    assert wide.shape("squeezed") == ((14,) if len(axes) != 1 else (1, 14))


@pytest.mark.parametrize("axes", [[0], [3], [-1], [1, -1], [-1, 1], [0, 1, -2]])
def test_new_axes_of_one_take_their_place(net: Net, axes: list[int]) -> None:
    h = net.dense(net.tokens(6), 6, 7, name="q")
    spread = net.op("Unsqueeze", h, net.constant(axes), name="spread")
    net.tokens_end(net.op("Reshape", spread, net.constant([1, 5, 7])), 7)
    assert widen(net).shape("spread") == np.expand_dims(np.empty((1, 5, 14)), axes).shape


@pytest.mark.parametrize("squeezed", [True, False])
def test_a_part_of_one_stays_one_for_whoever_squeezes_or_repeats_it(net: Net, squeezed: bool) -> None:
    """A width of 4 in 4 parts: each could grow, but for what reads it."""
    h = net.dense(net.tokens(6), 6, 4, name="parted")
    parts = net.op("Split", h, outputs=4, axis=2, num_outputs=4, name="part")
    if squeezed:
        net.output(net.op("Squeeze", parts[1], net.constant([2])))
        net.tokens_end(h, 4)
    else:
        net.tokens_end(net.op("Mul", net.dense(h, 4, 5, name="features"), parts[1]), 5)
    wide = widen(net)
    assert wide.shape("parted.weight") == (12, 4)
    assert squeezed or wide.shape("features.weight") == (4, 10)


# Expand.


def test_a_token_that_is_expanded_to_the_batch_is_as_wide_as_the_others(net: Net) -> None:
    """ViT's class token: a parameter ``[1, 1, C]``, expanded to ``[B, 1, C]``, before the patches."""
    patches = net.dense(net.tokens(6, batch=2), 6, 8, name="patches")
    token = net.op("Expand", net.weight(1, 1, 8, name="token"), net.constant([2, 1, 8]), name="tokens")
    net.tokens_end(net.op("Concat", token, patches, axis=1, name="joined"), 8)
    wide = widen(net)
    assert wide.shape("token") == (1, 1, 16)
    assert wide.read("tokens", 1) == [2, 1, 16]
    assert wide.shape("joined") == (2, 6, 16)


def test_a_width_that_only_an_expansion_states_is_what_its_readers_need(net: Net) -> None:
    """``[1, 5, 1]`` becomes ``[1, 5, 7]``: nothing but the sum with features says what 7 is."""
    h = net.dense(net.tokens(6), 6, 7, name="q")
    mean = net.op("ReduceMean", h, net.constant([2]), name="mean")
    spread = net.op("Expand", mean, net.constant([1, 5, 7]), name="spread")
    net.tokens_end(net.op("Sub", h, spread), 7)
    wide = widen(net)
    assert wide.shape("spread") == (1, 5, 14)
    assert wide.read("spread", 1) == [1, 5, 14]


def test_an_expansion_by_ones_changes_nothing(net: Net) -> None:
    h = net.op("Expand", net.dense(net.tokens(6), 6, 7, name="q"), net.constant([1, 1]), name="same")
    net.tokens_end(h, 7)
    wide = widen(net)
    assert wide.shape("same") == (1, 5, 14)
    assert wide.read("same", 1) == [1, 1]


def test_an_expansion_to_an_input_keeps_what_it_expands(net: Net) -> None:
    target = net.input("target", values=np.asarray([1, 5, 7]))
    net.op("Expand", net.dense(net.tokens(6), 6, 7, name="q"), target, name="spread")
    net.tokens_end(net.op("Reshape", "spread", net.constant([1, 5, 7])), 7)
    wide = widen(net)
    assert wide.shape("spread") == (1, 5, 7)
    assert "expanded to a computed shape" in wide.reason("q.weight")
