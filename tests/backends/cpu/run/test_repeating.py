"""Tile and Expand between sparse layers, against onnxruntime."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime, assert_same_at_batches, places, reasons

from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.shapes.random_inputs import random_feeds

pytestmark = pytest.mark.usefixtures("every_region_pays")

BATCHES = [1, 3, 16, 17]
WIDTH = 6


def integers(net: SparseNet, *values: int) -> str:
    return net.constant(values, dtype=np.int64)


def size(net: SparseNet, x: str, axis: int) -> str:
    return str(net.op("Gather", net.op("Shape", x), integers(net, axis), axis=0))


def tokens(net: SparseNet, *declared: Any) -> str:
    shape = tuple(n if isinstance(n, int) else 2 for n in declared)
    x = net.input("x", *shape, 5, declared=[*declared, 5])
    return str(net.dense(x, 5, WIDTH, name="before"))


def layer_behind(net: SparseNet, x: str, width: int = WIDTH) -> SparseNet:
    net.output(net.dense(net.op("Relu", x), width, 4, name="after"))
    return net


def assert_one_part(net: SparseNet, batches: list[int] = BATCHES, shapes: Any = None) -> CpuProgram:
    program = assert_same_at_batches(net.model(), batches, shapes)
    assert set(places(program).values()) <= {"kernels", "folded"}
    assert len(program.parts) == 1
    return program


@pytest.mark.parametrize("opset", [6, 11, 13, 18])
@pytest.mark.parametrize("repeats", [(1, 4, 1), (1, 1, 1), (2, 1, 1), (3, 2, 1), (1, 1, 2), (2, 3, 4)])
def test_tiles_of_tokens(repeats: tuple[int, ...], opset: int) -> None:
    net = SparseNet(opset=opset)
    x = net.op("Tile", tokens(net, "n", 7), integers(net, *repeats))
    assert_one_part(layer_behind(net, x, WIDTH * repeats[-1]), [1, 3])


@pytest.mark.parametrize("repeats", [(1, 2, 1, 1), (1, 1, 2, 3), (2, 3, 1, 1), (1, 1, 1, 2)])
def test_tiles_of_images(repeats: tuple[int, ...]) -> None:
    net = SparseNet(opset=18)
    x = net.conv(net.input("x", 2, 4, 5, 5, declared=["n", 4, 5, 5]), 4, WIDTH, 3)
    x = net.op("Tile", net.op("Relu", x), integers(net, *repeats))
    net.output(net.conv(x, WIDTH * repeats[1], 4, 3))
    assert_one_part(net)


def test_repeats_may_be_sizes() -> None:
    """As a vector for each sequence is joined with its tokens, whatever their number."""
    net = SparseNet(opset=18)
    x = net.input("x", 2, 7, 5, declared=["n", "t", 5])
    first = net.op("Slice", net.dense(x, 5, WIDTH), *(integers(net, n) for n in (0, 1, 1)))
    repeats = net.op("Concat", integers(net, 1), size(net, x, 1), integers(net, 1), axis=0)
    joined = net.op("Concat", net.dense(x, 5, WIDTH), net.op("Tile", first, repeats), axis=-1)
    net = layer_behind(net, joined, 2 * WIDTH)
    for length in (1, 2, 7, 17):
        assert_one_part(net, BATCHES, {"x": (1, length, 5)})


def test_axes_of_several_positions_are_tiled_by_sizes() -> None:
    net = SparseNet(opset=18)
    x = net.input("x", 2, 7, 5, declared=["n", "t", 5])
    repeats = net.op("Concat", size(net, x, 1), size(net, x, 0), integers(net, 1), axis=0)
    net = layer_behind(net, net.op("Tile", net.dense(x, 5, WIDTH), repeats))
    for length in (1, 2, 9):
        assert_one_part(net, [1, 2, 5], {"x": (1, length, 5)})


def test_a_table_is_expanded_to_the_batch_and_to_more_axes() -> None:
    net = SparseNet(opset=18)
    x = net.input("x", 2, 7, 5, declared=["n", "t", 5])
    tokens = net.dense(x, 5, WIDTH)
    first = net.op("Slice", tokens, *(integers(net, n) for n in (0, 1, 1)))
    target = net.op("Concat", integers(net, 3), size(net, x, 0), size(net, x, 1), integers(net, WIDTH), axis=0)
    total = net.op("Add", net.op("Expand", first, target), net.op("Expand", tokens, target))
    net = layer_behind(net, total)
    for length in (1, 2, 9):
        assert_one_part(net, [1, 2, 5], {"x": (1, length, 5)})


@pytest.mark.parametrize("op", ["Tile", "Expand"])
def test_what_is_repeated_as_often_as_there_are_images_is_not_cut(op: str) -> None:
    """A slab of fewer images would repeat less."""
    net = SparseNet(opset=18)
    x = net.conv(net.input("x", 2, 4, 3, 3, declared=["n", 4, 3, 3]), 4, WIDTH, 3)
    pooled = net.op("ReduceMean", x, integers(net, 2), keepdims=1)
    counts = net.op("Concat", *(integers(net, 1) for _ in range(2)), size(net, x, 0), integers(net, 1), axis=0)
    net.output(net.conv(net.op("Relu", net.op(op, pooled, counts)), WIDTH, 4, 1))
    assert_one_part(net, [1, 3, 16, 35])


@pytest.mark.parametrize("op", ["Tile", "Expand"])
def test_sizes_that_no_input_of_the_region_has_are_left_to_onnxruntime(op: str) -> None:
    net = SparseNet(opset=18)
    x = net.op("Slice", tokens(net, "n", 7), *(integers(net, n) for n in (0, 1, 1)))
    other = net.input("y", 2, 3, declared=["n", "k"])
    counts = net.op("Concat", integers(net, 1), size(net, other, 1), integers(net, 1), axis=0)
    net = layer_behind(net, net.op(op, x, counts, name="repeated"))
    program = CpuProgram(net.model(), ONE_THREAD)
    for batch, count in ((1, 1), (3, 4)):
        assert_same_as_onnxruntime(net.model(), random_feeds(program.inputs, batch, {"y": (batch, count)}), program)
    assert places(program)["repeated"] == "onnxruntime"
    assert reasons(program)["repeated"] == "its target is computed during the run"


def test_repeats_that_are_values_are_left_to_onnxruntime() -> None:
    net = SparseNet(opset=18)
    x = tokens(net, "n", 7)
    repeats = net.input("repeats", 3, values=np.array([1, 2, 1]))
    net = layer_behind(net, net.op("Tile", x, repeats, name="tiled"))
    program = CpuProgram(net.model(), ONE_THREAD)
    for counts in ((1, 2, 1), (2, 1, 1), (1, 0, 1)):
        feeds = random_feeds(program.inputs, 3) | {"repeats": np.array(counts)}
        assert_same_as_onnxruntime(net.model(), feeds, program)
    assert reasons(program)["tiled"] == "its repeats are an input of the model; the kernels take stored constants"


def test_nothing_is_made_by_onnxruntime_alone() -> None:
    net = SparseNet(opset=18)
    net = layer_behind(net, net.op("Tile", tokens(net, 2, 7), integers(net, 1, 0, 1), name="tiled"))
    program = CpuProgram(net.model(), ONE_THREAD)
    assert_same_as_onnxruntime(net.model(), random_feeds(program.inputs, 2), program)
    assert places(program)["tiled"] == "onnxruntime"


def test_sizes_may_be_zero_in_a_run() -> None:
    net = SparseNet(opset=18)
    x = net.input("x", 2, 7, 5, declared=["n", "t", 5])
    y = net.dense(net.input("y", 2, 1, 5, declared=["n", 1, 5]), 5, WIDTH)
    repeats = net.op("Concat", integers(net, 1), size(net, x, 1), integers(net, 1), axis=0)
    net = layer_behind(net, net.op("Add", net.dense(x, 5, WIDTH), net.op("Tile", y, repeats)))
    program = CpuProgram(net.model(), ONE_THREAD)
    for length in (3, 0, 1):
        feeds = net.feeds | {"x": np.ones((2, length, 5), np.float32)}
        assert_same_as_onnxruntime(net.model(), feeds, program)


def test_negative_repeats_are_an_error_of_onnxruntime() -> None:
    net = SparseNet(opset=18)
    repeats = net.op("Sub", size(net, x := tokens(net, "n", 7), 0), integers(net, 3))
    counts = net.op("Concat", integers(net, 1), repeats, integers(net, 1), axis=0)
    net = layer_behind(net, net.op("Tile", x, counts, name="tiled"))
    program = CpuProgram(net.model(), ONE_THREAD)
    assert places(program)["tiled"] == "onnxruntime"
    assert reasons(program)["tiled"] == "it may repeat values less than once"
    for batch in (3, 4, 5):
        assert_same_as_onnxruntime(net.model(), random_feeds(program.inputs, batch), program)


@pytest.mark.parametrize("op", ["Tile", "Expand"])
def test_a_token_that_is_repeated_for_each_image_is_joined_as_a_constant(op: str) -> None:
    net = SparseNet(opset=18)
    x = tokens(net, "n", 7)
    counts = net.op("Concat", size(net, x, 0), integers(net, 1, 1 if op == "Tile" else WIDTH), axis=0)
    token = net.op(op, net.weight(1, 2 if op == "Tile" else 1, WIDTH), counts)
    assert_one_part(layer_behind(net, net.op("Concat", token, x, axis=1)))


@pytest.mark.parametrize("axis", [1, -2])
@pytest.mark.parametrize("op", ["Tile", "Expand"])
def test_a_token_that_is_repeated_along_the_axis_is_as_many(op: str, axis: int) -> None:
    net = SparseNet(opset=18)
    x = tokens(net, "n", 7)
    counts = net.op("Concat", size(net, x, 0), integers(net, 5, 1 if op == "Tile" else WIDTH), axis=0)
    token = net.op(op, net.weight(1, 1, WIDTH), counts)
    net = layer_behind(net, net.op("Concat", token, x, axis=axis))
    assert_same_at_batches(net.model(), BATCHES)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float64])
def test_other_types_are_left_to_onnxruntime(dtype: Any) -> None:
    net = SparseNet(opset=18)
    x = tokens(net, "n", 7)
    to = {"int64": 7, "int32": 6, "float64": 11}[np.dtype(dtype).name]
    tiled = net.op("Tile", net.op("Cast", x, to=to), integers(net, 1, 2, 1), name="tiled")
    net = layer_behind(net, net.op("Cast", tiled, to=1))
    program = assert_same_at_batches(net.model(), [1, 3])
    assert places(program)["tiled"] == "onnxruntime"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(sizes=[2, 3], repeats=[2, 2, 2], order=[0, 1, 2], target=[1, 1, 1, 1])
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    repeats=st.lists(st.integers(1, 3), min_size=4, max_size=4),
    order=st.permutations(range(3)),
    target=st.lists(st.integers(1, 3), min_size=4, max_size=4),
)
def test_chains_of_tiles_transposes_and_expands(
    sizes: list[int], repeats: list[int], order: list[int], target: list[int]
) -> None:
    net = SparseNet(opset=18)
    rank = len(sizes) + 2
    x = net.op("Relu", tokens(net, "n", *sizes))
    repeats = [*repeats[: rank - 1], 1]
    x = net.op("Tile", x, integers(net, *repeats))
    perm = [*(axis + 1 for axis in order if axis < rank - 2), 0, rank - 1]
    x = net.op("Transpose", x, perm=perm)
    # One more axis in front, and those of one position.
    own = [n * k for n, k in zip(sizes, repeats[1:], strict=False)]
    kept = [own[axis - 1] if axis else 1 for axis in perm[:-1]]
    wanted = [target[-1], *(n if n == 1 and own_n == 1 and axis else own_n
                            for n, own_n, axis in zip(target, kept, perm, strict=False)), WIDTH]  # fmt: skip
    x = net.op("Expand", x, integers(net, *wanted))
    assert math.prod(wanted)
    assert_one_part(layer_behind(net, x), [1, 3])
