"""Gather of windows along any axis, and of pairs of places, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime, left_to_onnxruntime

from sift_onnx.backends.cpu.run.program import CpuProgram

pytestmark = pytest.mark.usefixtures("every_region_pays")


def integers(net: SparseNet, *values: int) -> str:
    return str(net.constant(values, dtype=np.int64))


def assert_one_region(net: SparseNet, shape: tuple[int, ...]) -> None:
    program = CpuProgram(net.model(), ONE_THREAD)
    for batch in (1, 3, 8, 17, 1):
        feeds: dict[str, Any] = {"x": np.random.default_rng(batch).standard_normal((batch, *shape)).astype(np.float32)}
        assert_same_as_onnxruntime(net.model(), feeds, program)
    assert left_to_onnxruntime(program) == {}
    assert len(program.parts) == 1


@pytest.mark.parametrize("is_computed", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
def test_patches_of_images_are_gathered_along_both_axes(is_computed: bool, stride: int) -> None:
    """As torch exports unfold; its exporters compute the places of sizes."""
    net = SparseNet(opset=18)
    y = net.conv(net.input("x", 2, 4, 7, 9, declared=["n", 4, 7, 9]), 4, 6, 3)
    positions = []
    for axis, size in ((2, 7), (4, 9)):
        count = (size - 3) // stride + 1
        if is_computed:
            length = net.op("Gather", net.op("Shape", y), net.constant(axis, dtype=np.int64))
            end = net.op("Sub", length, net.constant(2, dtype=np.int64))
            zero, step = (net.constant(value, dtype=np.int64) for value in (0, stride))
            first = net.op("Unsqueeze", net.op("Range", zero, end, step), integers(net, 0))
            places = net.op("Add", first, net.constant(np.arange(3)[:, None], dtype=np.int64))
        else:
            places = net.constant(np.arange(3)[:, None] + stride * np.arange(count)[None], dtype=np.int64)
        positions.append(count)
        y = net.op("Gather", y, places, axis=axis)
    y = net.op("Transpose", y, perm=[0, 1, 2, 4, 3, 5])
    rows = net.op("Reshape", y, integers(net, 0, 54, positions[0] * positions[1]))
    net.output(net.dense(net.op("Transpose", rows, perm=[0, 2, 1]), 54, 5))
    assert_one_region(net, (4, 7, 9))


@pytest.mark.parametrize("behind", [0, 1])
def test_pairs_of_features_are_gathered_as_one_axis(behind: int) -> None:
    """Products of all pairs of embeddings, of which those below the diagonal are taken."""
    net = SparseNet(opset=18)
    rows = net.dense(net.input("x", 2, 6, 5, declared=["n", 6, 5]), 5, 8)
    products = net.op("MatMul", rows, net.op("Transpose", rows, perm=[0, 2, 1]))
    if behind:
        products = net.op("Reshape", net.op("Concat", products, products, axis=2), integers(net, 0, 6, 6, 2))
    turned = net.op("Transpose", products, perm=[1, 2, 0, *([3] if behind else [])])
    places = np.stack(np.tril_indices(6, -1), -1)
    places[3] -= 6  # counted from the ends
    taken = net.op("GatherND", turned, net.constant(places, dtype=np.int64))
    back = net.op("Transpose", taken, perm=[1, *([2] if behind else []), 0])
    net.output(net.dense(back, 15, 4))
    assert_one_region(net, (6, 5))


@pytest.mark.parametrize("place", [[6, 0], [0, -7]])
def test_places_that_are_not_there_are_left_to_onnxruntime(place: list[int]) -> None:
    net = SparseNet(opset=18)
    rows = net.op("Transpose", net.dense(net.input("x", 2, 6, 5, declared=[2, 6, 5]), 5, 6), perm=[1, 2, 0])
    taken = net.op("GatherND", rows, net.constant([[0, 1], place], dtype=np.int64), name="taken")
    net.output(net.dense(net.op("Transpose", taken, perm=[1, 0]), 2, 4))
    program = CpuProgram(net.model(), ONE_THREAD)
    assert "not there" in left_to_onnxruntime(program)["taken"]


@pytest.mark.parametrize("place", [2, -1])
def test_a_single_number_may_be_taken(place: int) -> None:
    net = SparseNet()
    x = net.input("x", 4, 8, declared=["n", 8])
    mean = net.op("ReduceMean", net.op("MatMul", x, net.weight(8, 8)), net.constant([0], dtype=np.int64), keepdims=0)
    net.output(net.op("Gather", mean, net.constant(np.int64(place)), axis=0))
    net.output(net.op("MatMul", net.op("Relu", x), net.weight(8, 3)))
    assert_same_as_onnxruntime(net.model(), net.feeds)
