"""GatherElements by places from outside a region, and places that an Expand or a Tile repeats, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from exact_nets import CHANNELS, SIZE, TOKENS, WIDTH, ExactNet, assert_exact, exact_feeds, integers, tokens
from sparse_nets import ONE_THREAD, assert_same_as_onnxruntime, left_to_onnxruntime, places, reasons

from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.errors import UsageError

pytestmark = pytest.mark.usefixtures("every_region_pays")


def relative_positions(axis: int = -1, count: str | int = "k") -> ExactNet:
    """Values of a product by places that come from outside, as those of relative positions."""
    net = ExactNet()
    x = net.input("x", 2, TOKENS, 5, declared=["n", "t", 5])
    places_of = net.input("places", 2, TOKENS, 4, values=np.zeros((2, TOKENS, 4), np.int64), declared=["n", "t", count])
    taken = net.op("GatherElements", net.dense(x, 5, WIDTH), places_of, axis=axis, name="taken")
    net.output(net.op("Relu", taken))
    return net


def test_places_may_come_from_outside() -> None:
    net = relative_positions()
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    rng = np.random.default_rng(0)
    for n, t, k in ((1, 1, 1), (2, 7, 4), (3, 17, 12), (16, 5, 3)):
        x = rng.integers(-3, 4, (n, t, 5)).astype(np.float32)
        feeds = {"x": x, "places": rng.integers(-WIDTH, WIDTH, (n, t, k))}
        assert_same_as_onnxruntime(model, feeds, program, tolerance=0)
    assert left_to_onnxruntime(program) == {}
    assert len(program.parts) == 1
    with pytest.raises(UsageError, match=rf"index {WIDTH} of an axis of {WIDTH} values"):
        program.run({"x": np.zeros((1, 2, 5), np.float32), "places": np.full((1, 2, 1), WIDTH)})


def test_places_of_images_may_come_from_outside() -> None:
    """Each image has its own, and a slab those of its images."""
    net = ExactNet()
    x = net.conv(net.input("x", 2, 4, SIZE, SIZE, declared=["n", 4, SIZE, SIZE]), 4, CHANNELS)
    found = net.input(
        "places", 2, 3, SIZE, SIZE, values=np.zeros((2, 3, SIZE, SIZE), np.int64), declared=["n", 3, SIZE, SIZE]
    )
    net.output(net.conv(net.op("Relu", net.op("GatherElements", x, found, axis=1)), 3, 4))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    rng = np.random.default_rng(0)
    for n in (1, 3, 16, 35):
        x = rng.integers(-3, 4, (n, 4, SIZE, SIZE)).astype(np.float32)
        feeds = {"x": x, "places": rng.integers(-CHANNELS, CHANNELS, (n, 3, SIZE, SIZE))}
        assert_same_as_onnxruntime(model, feeds, program, tolerance=0)
    assert len(program.parts) == 1


def test_places_that_onnxruntime_computes_are_read_by_kernels() -> None:
    """As DeBERTa's: differences of positions, clipped to a table, for each query and key."""
    net = ExactNet()
    x = net.input("x", 2, TOKENS, 5, declared=["n", "t", 5])
    length = net.op("Squeeze", net.op("Gather", net.op("Shape", x), integers(net, 1)), integers(net, 0))
    steps = net.op("Range", net.constant(0), length, net.constant(1))
    gaps = net.op("Sub", net.op("Unsqueeze", steps, integers(net, 1)), net.op("Unsqueeze", steps, integers(net, 0)))
    places_of = net.op("Clip", net.op("Add", gaps, net.constant(4)), net.constant(0), net.constant(WIDTH - 1))
    target = net.op("Concat", net.op("Slice", net.op("Shape", x), *(integers(net, n) for n in (0, 2))),
                    net.op("Unsqueeze", length, integers(net, 0)), axis=0)  # fmt: skip
    y = net.dense(x, 5, WIDTH, name="before")
    taken = net.op("GatherElements", y, net.op("Expand", places_of, target), axis=-1, name="taken")
    net.output(net.op("MatMul", taken, y))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    rng = np.random.default_rng(0)
    for n, t in ((1, 1), (2, 7), (3, 17), (16, 5)):
        feeds = {"x": rng.integers(-3, 4, (n, t, 5)).astype(np.float32)}
        assert_same_as_onnxruntime(model, feeds, program, tolerance=0)
    assert places(program)["taken"] == "kernels"
    assert len(program.parts) == 2


@pytest.mark.parametrize("kind", ["constant", "int32"])
def test_places_that_are_constant_or_of_another_type_are_left_to_onnxruntime(kind: str) -> None:
    net = ExactNet()
    x = net.dense(net.input("x", 2, TOKENS, 5), 5, WIDTH)
    found = np.arange(2 * TOKENS * 3).reshape(2, TOKENS, 3) % WIDTH
    if kind == "constant":
        name = net.constant(found)
    else:
        name = net.input("places", 2, TOKENS, 3, values=found.astype(np.int32))
    net.output(net.dense(net.op("GatherElements", x, name, axis=-1, name="taken"), 3, 4))
    program = CpuProgram(net.model(), ONE_THREAD)
    assert_same_as_onnxruntime(net.model(), net.feeds, program)
    assert reasons(program)["taken"].endswith("are constants, or no int64")


def test_places_go_through_expands_that_repeat_nothing() -> None:
    """As torch exports a gather of whole tokens: an Expand to ones, and a Tile along the channels."""
    net = ExactNet()
    x = tokens(net, length="t")
    best = net.op("ReduceMax", net.dense(x, WIDTH, 3), integers(net, -1), keepdims=0)
    _, found = net.op("TopK", best, integers(net, 4), outputs=2, axis=1)
    column = net.op("Expand", net.op("Unsqueeze", found, integers(net, -1)), integers(net, 1, 1, 1))
    taken = net.op("GatherElements", x, net.op("Tile", column, integers(net, 1, 1, WIDTH)), axis=1)
    length = net.op("Gather", net.op("Shape", taken), integers(net, 0), axis=0)
    parted = net.op("Reshape", taken, net.op("Concat", length, integers(net, 2, 2 * WIDTH), axis=0))
    net.output(net.dense(parted, 2 * WIDTH, 4))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for n, t in ((1, 6), (3, 9), (17, 4)):
        assert_same_as_onnxruntime(model, exact_feeds(program, n, t=t), program, tolerance=0)
    assert left_to_onnxruntime(program) == {}
    assert len(program.parts) == 1


@pytest.mark.parametrize(("op", "repeats"), [("Tile", (1, 1, 2)), ("Expand", (2, 1, 1, 1)), ("Expand", (1, 1, 2))])
def test_places_that_are_repeated_for_others_are_so_by_onnxruntime(op: str, repeats: tuple[int, ...]) -> None:
    net = ExactNet()
    best = net.op("ArgMax", tokens(net), axis=-1, keepdims=1)
    net.output(net.op(op, best, integers(net, *repeats), name="repeated"))
    program = assert_exact(net)
    assert places(program)["repeated"] == "onnxruntime"
