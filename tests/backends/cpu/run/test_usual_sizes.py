"""Plans for sizes of usual runs, and what runs in the place of such a plan for others, against onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu.run import opening
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.errors import SiftError

pytestmark = pytest.mark.usefixtures("every_region_pays")


def integers(net: SparseNet, *values: int) -> str:
    return str(net.constant(values, dtype=np.int64))


def size_of(net: SparseNet, x: str, axis: int) -> str:
    return str(net.op("Gather", net.op("Shape", x), integers(net, axis)))


def speech() -> SparseNet:
    """Frames of a waveform, and attention over as many as torch writes for them."""
    net = SparseNet(opset=18)
    x = net.input("x", 2, 1, 97, declared=["n", 1, "s"])
    y = net.op("Relu", net.op("Conv", x, net.weight(8, 1, 10), strides=[5]))
    y = net.op("Relu", net.op("Conv", y, net.weight(8, 8, 3), strides=[2]))
    rows = net.dense(net.op("Transpose", y, perm=[0, 2, 1]), 8, 8)
    fifth = net.op("Div", size_of(net, x, 2), integers(net, 5))
    frames = net.op("Add", net.op("Div", net.op("Sub", fifth, integers(net, 4)), integers(net, 2)), integers(net, 1))
    heads = net.op("Concat", size_of(net, x, 0), frames, integers(net, 2, 4), axis=0)
    split = net.op("Mul", net.op("Reshape", rows, heads), net.weight(2, 4))
    target = net.op("Concat", size_of(net, x, 0), frames, integers(net, 8), axis=0)
    net.output(net.dense(net.op("Add", net.op("Reshape", split, target), rows), 8, 4))
    return net


def ends() -> SparseNet:
    """Tokens without the last ones: of short texts, how many are left out is a number that is negative."""
    net = SparseNet(opset=18)
    x = net.input("x", 2, 30, 6, declared=["n", "t", 6])
    rows = net.dense(x, 6, 8)
    fifth = net.op("Div", size_of(net, x, 1), integers(net, 5))
    end = net.op("Div", net.op("Sub", fifth, integers(net, 4)), integers(net, 2))
    first, second = (
        net.op("Slice", values, integers(net, 0), end, integers(net, 1)) for values in (rows, net.op("Tanh", rows))
    )
    net.output(net.dense(net.op("Add", first, second), 8, 4))
    return net


def audio(stride: int) -> SparseNet:
    """A waveform is made shorter twice and longer again, and added to what it was each time."""
    net = SparseNet(opset=18)
    x = net.input("x", 2, 4, 48, declared=["n", 4, "s"])
    first = net.op("Relu", net.op("Conv", x, net.weight(8, 4, stride), strides=[stride]))
    second = net.op("Relu", net.op("Conv", first, net.weight(8, 8, stride), strides=[stride]))
    states = net.op("Tanh", net.dense(net.op("Transpose", second, perm=[2, 0, 1]), 8, 8))
    second = net.op("Add", second, net.op("Transpose", states, perm=[1, 2, 0]))
    longer = net.op("ConvTranspose", second, net.weight(8, 8, stride), strides=[stride])
    longer = net.op("ConvTranspose", net.op("Add", longer, first), net.weight(8, 4, stride), strides=[stride])
    net.output(net.op("Conv", net.op("Add", longer, x), net.weight(3, 4, 3), pads=[1, 1]))
    return net


def blocks_as_channels(block: int) -> SparseNet:
    """An image whose blocks become channels, as torch writes it where sizes and batch are open."""
    net = SparseNet(opset=18)
    x = net.input("x", 2, 3, 2 * block, 3 * block, declared=["n", 3, "h", "w"])
    y = net.op("Relu", net.op("Conv", x, net.weight(4, 3, 3, 3), pads=[1] * 4))
    rows, columns = (net.op("Div", size_of(net, y, axis), integers(net, block)) for axis in (2, 3))
    parted = net.op("Concat", integers(net, -1, 4), rows, integers(net, block), columns, integers(net, block), axis=0)
    turned = net.op("Transpose", net.op("Reshape", y, parted), perm=[0, 1, 3, 5, 2, 4])
    target = net.op("Concat", integers(net, -1, 4 * block**2), rows, columns, axis=0)
    made = net.op("Reshape", turned, target)
    own = net.op("Concat", size_of(net, y, 0), net.op("Shape", made, start=1), axis=0)
    net.output(net.op("Conv", net.op("Reshape", made, own), net.weight(5, 4 * block**2, 1, 1)))
    return net


def times_of_frames(stride: int) -> SparseNet:
    """Angles that grow with the places of a waveform's frames, which onnxruntime counts."""
    net = SparseNet(opset=18)
    x = net.input("x", 2, 1, 97, declared=["n", 1, "s"])
    y = net.op("Relu", net.op("Conv", x, net.weight(8, 1, 10), strides=[stride]))
    rows = net.dense(net.op("Transpose", y, perm=[0, 2, 1]), 8, 8)
    zero, one = (net.constant(value, dtype=np.int64) for value in (0, 1))
    frames = net.op("Squeeze", size_of(net, rows, 1))
    counted = net.op("Cast", net.op("Range", zero, frames, one), to=onnx.TensorProto.FLOAT)
    times = net.op("Sin", net.op("Unsqueeze", counted, integers(net, 1)))
    net.output(net.dense(net.op("Add", rows, times), 8, 4))
    return net


def shifted() -> SparseNet:
    """All tokens but the last one, twice, and one more, cut to as many as there are: a choice knows no other length."""
    net = SparseNet(opset=18)
    x = net.input("x", 2, 30, 6, declared=["n", "t", 6])
    rows = net.dense(x, 6, 8)
    others = net.op("Slice", net.op("Tanh", rows), integers(net, 0), integers(net, -1), integers(net, 1))
    first = net.op("Slice", rows, integers(net, 0), integers(net, 1), integers(net, 1))
    twice = net.op("Concat", others, others, first, axis=1)
    kept = net.op("Slice", twice, integers(net, 0), size_of(net, x, 1), integers(net, 1))
    scores = net.op("MatMul", rows, net.op("Transpose", kept, perm=[0, 2, 1]))
    own = net.op("MatMul", rows, net.op("Transpose", rows, perm=[0, 2, 1]))
    chosen = net.op("Where", net.op("Greater", own, net.constant(0.0)), scores, net.constant(-0.5))
    net.output(net.dense(net.op("MatMul", chosen, rows), 8, 3))
    return net


def feeds_of(shape: tuple[int, ...]) -> dict[str, Any]:
    return {"x": np.random.default_rng(shape[-1]).standard_normal(shape).astype(np.float32)}


@pytest.mark.parametrize("threads", [1, 2])
def test_frames_are_those_of_long_waveforms(threads: int) -> None:
    model = speech().model()
    program = CpuProgram(model, CompileOptions(threads=threads))
    assert len(program.parts) == 1
    for n, s in ((1, 97), (3, 20), (17, 61), (2, 25), (1, 400)):
        assert_same_as_onnxruntime(model, feeds_of((n, 1, s)), program)


def test_waveforms_without_a_frame_are_refused() -> None:
    program = CpuProgram(speech().model(), ONE_THREAD)
    with pytest.raises(SiftError, match="does not fit"):
        program.run(feeds_of((1, 1, 12)))
    program.run(feeds_of((1, 1, 97)))


def test_short_texts_run_in_a_plan_for_any_sizes() -> None:
    model = ends().model()
    program = CpuProgram(model, ONE_THREAD)
    assert len(program.parts) == 1
    for n, t in ((2, 30), (1, 20), (3, 12), (2, 7), (17, 55), (1, 3), (4, 19)):
        assert_same_as_onnxruntime(model, feeds_of((n, t, 6)), program)
        reason = "planned for sizes 't' of 20 or more" if t >= 20 else f"planned for any sizes: 't' is {t} in input 'x'"
        assert any(reason in placement.reason for placement in program.placements)


@pytest.mark.parametrize("stride", [2, 4])
@pytest.mark.parametrize("threads", [1, 2])
def test_waveforms_are_whole_windows(stride: int, threads: int) -> None:
    model = audio(stride).model()
    program = CpuProgram(model, CompileOptions(threads=threads))
    assert len(program.parts) == 1
    for n, windows in ((1, 3), (3, 1), (17, 2), (2, 5)):
        assert_same_as_onnxruntime(model, feeds_of((n, 4, stride**2 * windows)), program)
    with pytest.raises(SiftError):
        program.run(feeds_of((1, 4, stride**2 * 3 + 1)))
    assert_same_as_onnxruntime(model, feeds_of((2, 4, stride**2)), program)


@pytest.mark.parametrize("block", [2, 3])
@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_cover_images(block: int, threads: int) -> None:
    model = blocks_as_channels(block).model()
    program = CpuProgram(model, CompileOptions(threads=threads, deterministic=True))
    assert len(program.parts) == 1
    for n, h, w in ((1, 2, 3), (3, 1, 1), (8, 5, 2), (2, 4, 7)):
        assert_same_as_onnxruntime(model, feeds_of((n, 3, h * block, w * block)), program)
    with pytest.raises(SiftError):
        program.run(feeds_of((1, 3, 2 * block + 1, block)))
    assert_same_as_onnxruntime(model, feeds_of((2, 3, block, block)), program)


@pytest.mark.parametrize("stride", [1, 5])
def test_what_onnxruntime_counts_does_not_wait_for_frames(stride: int) -> None:
    model = times_of_frames(stride).model()
    program = CpuProgram(model, ONE_THREAD)
    for n, frames in ((1, 1), (3, 7), (17, 40), (2, 39)):
        assert_same_as_onnxruntime(model, feeds_of((n, 1, 10 + stride * (frames - 1))), program)
    assert len(program.parts) == 2


@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_cut_to_a_length_is_not_shorter(threads: int) -> None:
    model = shifted().model()
    program = CpuProgram(model, CompileOptions(threads=threads, deterministic=True))
    assert len(program.parts) == 1
    for n, t in ((1, 30), (3, 1), (8, 17), (2, 2), (2, 64)):
        assert_same_as_onnxruntime(model, feeds_of((n, t, 6)), program)


def test_a_session_from_a_packed_folder_knows_them_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening._shared, "get", lambda *_: None)
    model = ends().model()
    onnx.save(model, tmp_path / "m.onnx")
    for _ in range(2):
        options = CompileOptions(threads=1, deterministic=True, packed_cache=tmp_path / "packed")
        program = CpuProgram(str(tmp_path / "m.onnx"), options)
        assert any("planned for sizes 't' of 20 or more" in placement.reason for placement in program.placements)
        for n, t in ((2, 30), (1, 12), (3, 20)):
            assert_same_as_onnxruntime(model, feeds_of((n, t, 6)), program)


def test_given_sizes_that_are_not_usual_are_planned_as_they_are() -> None:
    model = ends().model()
    program = CpuProgram(model, CompileOptions(threads=1, input_shapes={"x": (2, 12, 6)}))
    assert not any("planned for sizes" in placement.reason for placement in program.placements)
    assert_same_as_onnxruntime(model, feeds_of((2, 12, 6)), program)
