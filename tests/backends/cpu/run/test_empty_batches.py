"""Requests without an image or a row, as the first ones of a session and after others, against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime

from sift_onnx.backends.cpu.run.program import CpuProgram

pytestmark = pytest.mark.usefixtures("every_region_pays")

WIDTH = 16


def scattered(net: SparseNet) -> str:
    x = net.op("MatMul", net.input("x", 3, WIDTH, declared=["n", WIDTH]), net.weight(WIDTH, WIDTH))
    places = net.input("places", values=np.tile(np.arange(7), (3, 1)), declared=["n", 7])
    taken = net.op("GatherElements", x, places, axis=1)
    return str(net.op("ScatterElements", x, places, taken, axis=1, reduction="add"))


def largest_of_two(net: SparseNet) -> str:
    x = net.input("x", 3, WIDTH, declared=["n", WIDTH])
    return str(net.op("Max", *(net.op("MatMul", x, net.weight(WIDTH, WIDTH)) for _ in range(2))))


def with_one_more_axis(net: SparseNet) -> str:
    x = net.op("MatMul", net.input("x", 3, WIDTH, declared=["n", WIDTH]), net.weight(WIDTH, WIDTH))
    return str(net.op("Add", x, net.constant(np.ones((1, 1, WIDTH), np.float32))))


def multiplied(net: SparseNet) -> str:
    x = net.op("MatMul", net.input("x", 3, 5, WIDTH, declared=["n", 5, WIDTH]), net.weight(WIDTH, WIDTH))
    return str(net.op("MatMul", x, net.op("Transpose", x, perm=[0, 2, 1])))


def gated_image(net: SparseNet) -> str:
    x = net.conv(net.input("x", 3, WIDTH, 6, 6, declared=["n", WIDTH, 6, 6]), WIDTH, WIDTH, 3)
    gate = net.op("Sigmoid", net.conv(net.op("GlobalAveragePool", x), WIDTH, WIDTH))
    return str(net.op("Mul", x, gate))


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("made", [scattered, largest_of_two, with_one_more_axis, multiplied, gated_image])
def test_an_empty_batch_is_answered_with_nothing(made: Callable[[SparseNet], str], first: int) -> None:
    net = SparseNet()
    net.output(net.op("Relu", made(net)))
    program = CpuProgram(net.model(), ONE_THREAD)
    for count in (first, 0, 3):
        assert_same_as_onnxruntime(net.model(), {name: feed[:count] for name, feed in net.feeds.items()}, program)
