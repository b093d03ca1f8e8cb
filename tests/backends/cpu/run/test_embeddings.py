"""Rows of tables by ids that are inputs of the model, in regions, against onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime, left_to_onnxruntime, places, reasons

import sift_onnx
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.errors import UsageError

pytestmark = pytest.mark.usefixtures("every_region_pays")

ROWS, WIDTH, TOKENS = 11, 8, 6
BATCHES = [1, 3, 16, 37]


def table(net: SparseNet, rows: int = ROWS) -> str:
    return str(net.constant(np.random.default_rng(rows).standard_normal((rows, WIDTH)).astype(np.float32)))


def ids_of(*shape: int, rows: int = ROWS) -> npt.NDArray[np.int64]:
    """All that a Gather takes: also those that are counted from the end."""
    return np.random.default_rng(sum(shape)).integers(-rows, rows, shape)


def normalized(net: SparseNet, x: str) -> str:
    scale, shift = (net.constant(np.linspace(low, 2, WIDTH, dtype=np.float32)) for low in (0.5, -1))
    return str(net.op("LayerNormalization", x, scale, shift))


def encoder() -> SparseNet:
    """Words, their positions, which are a part of a longer table, and their segments."""
    net = SparseNet(opset=20)
    words = net.op("Gather", table(net), net.input("ids", values=ids_of(2, TOKENS), declared=["n", "t"]))
    segments = net.input("segments", values=ids_of(2, TOKENS, rows=2), declared=["n", "t"])
    x = net.op("Add", words, net.op("Gather", table(net, 2), segments))
    position = net.op("Slice", table(net, 9), net.constant([0]), net.constant([1]))
    net.output(net.dense(normalized(net, net.op("Add", x, position)), WIDTH, 3))
    return net


def test_a_model_that_begins_with_ids_is_one_region() -> None:
    net = encoder()
    program = CpuProgram(net.model(), ONE_THREAD)
    for batch in BATCHES:
        for length in (1, TOKENS, 20):
            feeds = {"ids": ids_of(batch, length), "segments": ids_of(batch, length, rows=2)}
            assert_same_as_onnxruntime(net.model(), feeds, program)
    assert left_to_onnxruntime(program) == {}
    assert len(program.parts) == 1


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    batch=st.sampled_from(BATCHES),
    reads_images=st.booleans(),
    is_output=st.booleans(),
)
def test_ids_of_any_shape(sizes: list[int], batch: int, reads_images: bool, is_output: bool) -> None:
    net = SparseNet(opset=20)
    ids = net.input("ids", values=ids_of(batch, *sizes), declared=["n", *sizes])
    x = net.op("Gather", table(net), ids, axis=0)
    if is_output:
        net.output(x)
    if reads_images and len(sizes) == 2:
        net.output(net.conv(net.op("Relu", x), sizes[0], 4, 3))
    net.output(net.dense(net.op("Relu", x), WIDTH, 3))
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert left_to_onnxruntime(program) == {}


def test_one_id_of_each_sequence_and_features() -> None:
    """The voice of a speaker beside each frame of sound."""
    net = SparseNet(opset=20)
    voice = net.op("Gather", table(net), net.input("speaker", values=ids_of(3), declared=["n"]))
    x = net.dense(net.input("x", 3, TOKENS, 5, declared=["n", TOKENS, 5]), 5, WIDTH)
    net.output(net.dense(net.op("Add", x, net.op("Unsqueeze", voice, net.constant([1]))), WIDTH, 3))
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert len(program.parts) == 1


@pytest.mark.parametrize("wrong", [ROWS, -ROWS - 1])
def test_an_id_that_is_none_of_a_row_is_refused(wrong: int) -> None:
    net = encoder()
    program = CpuProgram(net.model(), ONE_THREAD)
    feeds: dict[str, Any] = {**net.feeds, "ids": np.full((2, TOKENS), wrong)}
    with pytest.raises(UsageError, match=rf"index {wrong} of an axis of {ROWS} values"):
        program.run(feeds)


def test_a_model_opens_again_from_a_cache_with_its_tables(tmp_path: Path) -> None:
    net = encoder()
    model = net.model()
    first, second = (sift_onnx.InferenceSession(model, threads=1, packed_cache=tmp_path / "cache") for _ in range(2))
    np.testing.assert_array_equal(first.run(None, net.feeds)[0], second.run(None, net.feeds)[0])


def test_profiles_name_the_look_up() -> None:
    net = encoder()
    found = {node.op: node.kernel for node in CpuProgram(net.model(), ONE_THREAD).profile(net.feeds).nodes}
    assert found["Gather"].startswith("gatherrows")


def test_a_table_of_many_rows() -> None:
    net = SparseNet(opset=20)
    rows = 1 << 16
    ids = net.input("ids", values=ids_of(2, TOKENS, rows=rows), declared=["n", "t"])
    net.output(net.dense(net.op("Gather", table(net, rows), ids), WIDTH, 3))
    assert_same_as_onnxruntime(net.model(), net.feeds)


def test_ids_that_onnxruntime_makes() -> None:
    net = SparseNet(opset=20)
    ids = net.op("Mod", net.input("ids", values=ids_of(2, TOKENS), declared=["n", "t"]), net.constant([5]), name="mod")
    net.output(net.dense(net.op("Gather", table(net), ids, name="rows"), WIDTH, 3, name="product"))
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert places(program)["rows"] == "kernels"
    assert places(program)["mod"] == "onnxruntime"


def test_ids_of_other_types_are_looked_up_in_onnxruntime() -> None:
    net = SparseNet(opset=20)
    ids = net.input("ids", values=ids_of(2, TOKENS).astype(np.int32), declared=["n", "t"])
    net.output(net.dense(net.op("Gather", table(net), ids, name="rows"), WIDTH, 3))
    program = assert_same_as_onnxruntime(net.model(), net.feeds)
    assert places(program)["rows"] == "onnxruntime"
    assert "the kernels take stored constants" in reasons(program)["rows"]
