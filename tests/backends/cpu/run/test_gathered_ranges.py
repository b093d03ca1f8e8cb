"""Windows of axes of open size, gathered at places that a range counts, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sparse_nets import SparseNet, assert_same_as_onnxruntime, left_to_onnxruntime

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.lowering.gathered_ranges import with_sliced_ranges
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.errors import SiftError
from sift_onnx.model import Model

pytestmark = pytest.mark.usefixtures("every_region_pays")

WIDTH = 6
SIZES = ((1, 5), (3, 4), (2, 1), (8, 17), (1, 64))


def integers(net: SparseNet, *values: int) -> str:
    return str(net.constant(values, dtype=np.int64))


def number(net: SparseNet, value: int) -> str:
    return str(net.constant(value, dtype=np.int64))


def channels(net: SparseNet) -> str:
    """Tokens behind a layer, as channels of an axis of open size."""
    rows = net.dense(net.input("x", 2, 4, 5, declared=["n", "t", 5]), 5, WIDTH, name="before")
    return str(net.op("Transpose", rows, perm=[0, 2, 1]))


def size_of(net: SparseNet, x: str, axis: int) -> str:
    return str(net.op("Gather", net.op("Shape", x), number(net, axis)))


def ends(net: SparseNet, windows: str, count: int) -> Any:
    """A layer over all offsets and channels of each window ``[n, WIDTH, count, t]``."""
    rows = net.op("Transpose", windows, perm=[0, 3, 1, 2])
    rows = net.op("Reshape", rows, integers(net, 0, 0, WIDTH * count))
    net.output(net.dense(rows, WIDTH * count, 4, name="after"))
    return net.model()


def unfolded(kernel: int, stride: int, offsets_first: bool = True, dilation: int = 1) -> Any:
    """As torch exports ``unfold``: padded, and gathered at the sum of a row and a column."""
    net = SparseNet(opset=18)
    reach = dilation * (kernel - 1)
    padded = net.op("Pad", channels(net), integers(net, 0, 0, reach // 2, 0, 0, reach - reach // 2), net.constant(0.0))
    limit = net.op("Sub", size_of(net, padded, 2), number(net, reach))
    counted = net.op("Range", number(net, 0), limit, number(net, stride))
    offsets = np.arange(kernel) * dilation
    if offsets_first:
        places = net.op("Add", net.op("Unsqueeze", counted, integers(net, 0)), net.constant(offsets[:, None]))
        return ends(net, str(net.op("Gather", padded, places, axis=2)), kernel)
    places = net.op("Add", net.constant(offsets), net.op("Unsqueeze", counted, integers(net, 1)))
    windows = net.op("Gather", padded, places, axis=-1)
    return ends(net, str(net.op("Transpose", windows, perm=[0, 1, 3, 2])), kernel)


def feeds_of(batch: int, length: int) -> dict[str, Any]:
    rng = np.random.default_rng(batch + 31 * length)
    return {"x": rng.standard_normal((batch, length, 5)).astype(np.float32)}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("offsets_first", [True, False])
@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(3, 1, 1), (9, 1, 1), (1, 1, 1), (2, 2, 1), (3, 2, 2)])
def test_windows_are_in_one_region(kernel: int, stride: int, dilation: int, offsets_first: bool, threads: int) -> None:
    model = unfolded(kernel, stride, offsets_first, dilation)
    program = CpuProgram(model, CompileOptions(threads=threads, deterministic=True))
    for batch, length in SIZES:
        assert_same_as_onnxruntime(model, feeds_of(batch, length), program)
    assert left_to_onnxruntime(program) == {}
    assert len(program.parts) == 1


@pytest.mark.parametrize("start", [0, 1])
def test_a_range_is_a_slice(start: int) -> None:
    net = SparseNet(opset=18)
    x = channels(net)
    counted = net.op("Range", number(net, start), size_of(net, x, 2), number(net, 1))
    taken = net.op("Transpose", net.op("Gather", x, counted, axis=2), perm=[0, 2, 1])
    net.output(net.dense(taken, WIDTH, 4, name="after"))
    model = net.model()
    program = CpuProgram(model, CompileOptions(threads=1, deterministic=True))
    for batch, length in ((1, 5), (3, 4), (2, 2)):
        assert_same_as_onnxruntime(model, feeds_of(batch, length), program)
    assert len(program.parts) == 1


def test_places_that_may_not_be_there_are_refused_as_they_were() -> None:
    """Without padding, the last windows reach beyond the axis: that is an error, and no shorter window."""
    net = SparseNet(opset=18)
    x = channels(net)
    counted = net.op("Range", number(net, 0), size_of(net, x, 2), number(net, 1))
    places = net.op("Add", net.op("Unsqueeze", counted, integers(net, 0)), net.constant(np.arange(2)[:, None]))
    model = ends(net, str(net.op("Gather", x, places, axis=2)), 2)
    graph = GraphView(Model.load(model))
    assert with_sliced_ranges(graph) is graph
    with pytest.raises(SiftError):
        CpuProgram(model, CompileOptions(threads=1, deterministic=True)).run(feeds_of(2, 4))


@pytest.mark.parametrize("offset", [-1, -2])
def test_places_that_are_counted_from_the_end_stay(offset: int) -> None:
    net = SparseNet(opset=18)
    x = channels(net)
    counted = net.op("Range", number(net, 0), number(net, 3), number(net, 1))
    places = net.op("Add", net.op("Unsqueeze", counted, integers(net, 0)), net.constant(np.array([[offset], [0]])))
    model = ends(net, str(net.op("Gather", x, places, axis=2)), 2)
    program = CpuProgram(model, CompileOptions(threads=1, deterministic=True))
    for batch, length in ((1, 5), (3, 4)):
        assert_same_as_onnxruntime(model, feeds_of(batch, length), program)
