"""Pooling and reductions: channels pass, reduced axes vanish, spatial sizes stay."""

from __future__ import annotations

import numpy as np
import pytest
from nets import Net, widen


@pytest.mark.parametrize("kind", ["AveragePool", "MaxPool", "LpPool"])
@pytest.mark.parametrize(("sparsity", "width"), [("0.5", 11), ("0.75", 16), ("0.9", 25)])
def test_channels_pass_a_pooling(net: Net, kind: str, sparsity: str, width: int) -> None:
    h = net.op(kind, net.images(8), name="pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    net.images_end(h, 8)
    assert widen(net, sparsity).shape("pool") == (1, width, 4, 4)


def test_the_indices_of_a_max_pool_have_its_channels(net: Net) -> None:
    values, indices = net.op("MaxPool", net.images(8), name="pool", outputs=2, kernel_shape=[2, 2], strides=[2, 2])
    h = net.op("Add", values, net.op("Mul", net.op("Cast", indices, to=1), net.constant(1e-6)))
    net.images_end(h, 8)
    assert widen(net).shape(indices) == (1, 16, 4, 4)


@pytest.mark.parametrize("kind", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
def test_channels_pass_a_pooling_of_everything(net: Net, kind: str) -> None:
    net.images_end(net.op(kind, net.images(8), name="pool"), 8)
    assert widen(net).shape("pool") == (1, 16, 1, 1)


def test_features_that_are_pooled_over_stay_and_say_so(net: Net) -> None:
    h = net.tokens(8)
    pooled = net.op("MaxPool", h, name="pool", kernel_shape=[2], strides=[2])
    net.output(net.dense(pooled, 4, 2))
    net.tokens_end(net.dense(h, 8, 12, name="free"), 12)
    wide = widen(net)
    assert wide.shape("pool") == (1, 5, 4)
    assert wide.shape("free") == (1, 5, 24)
    assert "pool" in wide.reason("before.weight")


REDUCTIONS = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_features_pass_a_reduction_over_positions(net: Net, kind: str) -> None:
    h = net.op("Add", net.op("Sigmoid", net.tokens(8)), net.constant(0.5))
    net.tokens_end(net.op(f"Reduce{kind}", h, net.constant([1]), name="reduced"), 8)
    assert widen(net).shape("reduced") == (1, 1, 16)


@pytest.mark.parametrize(
    ("opset", "axes", "keepdims", "shape"),
    [
        (13, [1], 1, (1, 1, 16)),
        (13, [1], 0, (1, 16)),
        (13, [-2], 1, (1, 1, 16)),
        (13, [-1], 1, (1, 5, 1)),
        (13, None, 1, (1, 1, 1)),
        (18, [1], 1, (1, 1, 16)),
        (18, [0, 1], 0, (16,)),
        (18, [2], 0, (1, 5)),
        (18, None, 1, (1, 1, 1)),
        (18, [], 1, (1, 1, 1)),
    ],
)
def test_reduced_axes_become_one_or_vanish(
    opset: int, axes: list[int] | None, keepdims: int, shape: tuple[int, ...]
) -> None:
    net = Net(opset)
    h = net.tokens(8)
    if opset < 18:
        mean = net.op("ReduceMean", h, name="mean", keepdims=keepdims, **({"axes": axes} if axes else {}))
    else:
        stated = [] if axes is None else [net.constant(np.array(axes, np.int64))]
        mean = net.op("ReduceMean", h, *stated, name="mean", keepdims=keepdims)
    if (shape[-1:] == (16,) and len(shape) < 3) or shape == (1, 5):
        net.output(net.op("ReduceSum", mean, keepdims=0))
        net.tokens_end(h, 8)
    else:
        net.tokens_end(net.op("Sub", h, mean), 8)
    assert widen(net).shape("mean") == shape


def test_a_reduction_over_no_axes_may_do_nothing(net: Net) -> None:
    none = net.constant(np.array([], np.int64))
    h = net.op("ReduceMean", net.tokens(8), none, name="same", noop_with_empty_axes=1)
    net.tokens_end(h, 8)
    assert widen(net).shape("same") == (1, 5, 16)


@pytest.mark.parametrize("kind", ["ArgMax", "ArgMin"])
def test_the_best_position_of_each_feature(net: Net, kind: str) -> None:
    h = net.tokens(8)
    best = net.op("Cast", net.op(kind, h, name="best", axis=1, keepdims=1), to=1)
    net.tokens_end(net.op("Add", h, best), 8)
    assert widen(net).shape("best") == (1, 1, 16)


def test_a_squeeze_and_excitation_block(net: Net) -> None:
    h = net.images(8)
    gate = net.op("Relu", net.conv(net.op("GlobalAveragePool", h), 8, 4, name="squeeze"))
    h = net.op("Mul", h, net.op("Sigmoid", net.conv(gate, 4, 8, name="excite")))
    net.images_end(h, 8)
    wide = widen(net, "0.9")
    assert wide.shape("squeeze.weight") == (13, 25, 1, 1)
    assert wide.shape("excite.weight") == (25, 13, 1, 1)
