"""Transformers with embeddings in front and classes behind: only these are planned for each length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from attention_nets import DEPTH, HEADS, WIDTH
from onnxruntime.quantization import QuantType, quantize_dynamic
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.cpu.run.region_program import RegionProgram
from sift_onnx.backends.cpu.run.schedules import region_schedules, sections
from sift_onnx.backends.lowering.specs import Moving

pytestmark = pytest.mark.usefixtures("every_region_pays")

WORDS = 13


def integers(net: SparseNet, *values: int) -> str:
    return net.constant(values, dtype=np.int64)


def classifier(masked: bool, classes: bool) -> SparseNet:
    """Words and their positions, two layers of attention, and classes of the first token, or all tokens."""
    net = SparseNet(18)
    rng = np.random.default_rng(3)

    def table(rows: int) -> str:
        return str(net.constant(rng.standard_normal((rows, WIDTH)).astype(np.float32)))

    ids = net.input("ids", values=np.zeros((1, 6), np.int64), declared=["n", "t"])
    places = net.input("places", values=np.zeros((1, 6), np.int64), declared=[1, "t"])
    mask = net.input("mask", 1, 1, 1, 6, declared=["n", 1, 1, "t"]) if masked else ""
    x = net.op("Add", net.op("Gather", table(WORDS), ids), net.op("Gather", table(80), places))
    heads = integers(net, 0, 0, HEADS, DEPTH)
    for _ in range(2):
        q, k, v = (
            net.op("Transpose", net.op("Reshape", net.dense(x, WIDTH, WIDTH), heads), perm=perm)
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scores = net.op("MatMul", q, k)
        scores = net.op("Add", scores, mask) if masked else scores
        joined = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
        joined = net.op("Reshape", net.op("Transpose", joined, perm=[0, 2, 1, 3]), integers(net, 0, 0, WIDTH))
        x = net.op("Add", x, net.dense(joined, WIDTH, WIDTH))
        scale, shift = (net.weight(WIDTH, fan_in=1) for _ in range(2))
        x = net.op("LayerNormalization", x, scale, shift, axis=-1)
        x = net.op("Add", x, net.dense(net.op("Relu", net.dense(x, WIDTH, 24)), 24, WIDTH))
    if classes:
        net.output(x)
        first = net.op("Gather", x, net.constant(0, dtype=np.int64), axis=1)
        net.output(net.op("Softmax", net.dense(net.op("Tanh", first), WIDTH, 3), axis=-1))
    else:
        net.output(net.dense(x, WIDTH, 5))
    return net


def feeds_of(net: SparseNet, batch: int, tokens: int) -> dict[str, Any]:
    rng = np.random.default_rng(100 * batch + tokens)
    feeds = {
        "ids": rng.integers(0, WORDS, (batch, tokens)),
        "places": np.arange(tokens)[None],
        "mask": rng.standard_normal((batch, 1, 1, tokens)).astype(np.float32),
    }
    return {name: feeds[name] for name in net.feeds}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("classes", [False, True])
def test_only_the_ends_are_planned_for_each_length(
    masked: bool, classes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = classifier(masked, classes)
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    whole: list[int] = []
    steps: list[int] = []
    make, make_section = region_schedules.planned, sections.planned
    monkeypatch.setattr(region_schedules, "planned", lambda region, *given: whole.append(1) or make(region, *given))
    monkeypatch.setattr(
        sections, "planned", lambda region, *given: steps.append(len(region.steps)) or make_section(region, *given)
    )
    requests = ((1, 20, 1), (1, 33, 1), (1, 64, 1), (1, 17, 1), (2, 17, 2), (3, 40, 2), (1, 5, 3), (1, 48, 4))
    for batch, tokens, plans in requests:
        feeds = feeds_of(net, batch, tokens)
        steps.clear()
        made = assert_same_as_onnxruntime(model, feeds, program).run(feeds)
        assert len(whole) == plans
        if (batch, tokens) in ((1, 33), (1, 64), (1, 17), (3, 40)):
            assert len(steps) == 1 + classes
            assert sum(steps) <= 10
            alone = CpuProgram(model, ONE_THREAD).run(feeds)
            whole.pop()
            for name, values in alone.items():
                np.testing.assert_array_equal(made[name], values)


@pytest.mark.parametrize("masked", [False, True])
def test_quantized_lengths_follow_from_one(masked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As onnxruntime's quantizer writes them: bytes of words, and scales that each run finds."""
    net = classifier(masked, classes=False)
    before, after = tmp_path / "floats.onnx", tmp_path / "bytes.onnx"
    onnx.save(net.model(), before)
    quantize_dynamic(before, after, weight_type=QuantType.QInt8)
    program = CpuProgram(after, ONE_THREAD)
    assert [isinstance(part, RegionProgram) for part in program.parts] == [False, True]  # words are gathered before
    plans: list[int] = []
    make = region_schedules.planned
    monkeypatch.setattr(region_schedules, "planned", lambda region, *given: plans.append(1) or make(region, *given))
    for batch, tokens, count in ((1, 70, 1), (1, 33, 1), (1, 17, 1), (1, 12, 1), (1, 80, 1), (3, 40, 2), (3, 17, 3)):
        feeds = feeds_of(net, batch, tokens)
        # A float that is rounded otherwise moves a byte by one.
        made = assert_same_as_onnxruntime(str(after), feeds, program, tolerance=0.05).run(feeds)
        assert len(plans) == count
        for name, values in CpuProgram(after, ONE_THREAD).run(feeds).items():
            np.testing.assert_array_equal(made[name], values)
        plans.pop()


def test_numbers_from_outside_have_no_axes() -> None:
    """Tokens are scaled by a number that is an input."""
    net = SparseNet(18)
    ids = net.input("ids", values=np.zeros((1, 6), np.int64), declared=["n", "t"])
    scale = net.input("scale", values=np.array(0.5, np.float32), declared=[])
    table = net.constant(np.random.default_rng(0).standard_normal((WORDS, WIDTH)).astype(np.float32))
    x = net.op("Gather", table, ids)
    for _ in range(3):
        x = net.op("Add", x, net.dense(net.op("Relu", net.dense(net.op("Mul", x, scale), WIDTH, WIDTH)), WIDTH, WIDTH))
    net.output(x)
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    rng = np.random.default_rng(1)
    for batch, tokens in ((1, 20), (1, 33), (2, 40), (1, 64), (3, 17)):
        feeds = {"ids": rng.integers(0, WORDS, (batch, tokens)), "scale": np.array(0.25 * tokens, np.float32)}
        assert_same_as_onnxruntime(model, feeds, program)


def test_profiles_name_the_steps_of_a_section_by_their_place_in_the_model() -> None:
    net = classifier(masked=True, classes=True)
    program = CpuProgram(net.model(), ONE_THREAD)
    (part,) = program.parts
    assert isinstance(part, RegionProgram)
    region = part.region
    found = []
    for tokens in (33, 64):
        program.run(feeds_of(net, 1, tokens))
        _, times = program.run_timed(feeds_of(net, 1, tokens))
        steps = [time.step for part in times for time in part.steps if time.step is not None]
        found.append([step for step in steps if not isinstance(region.steps[step].spec, Moving)])
    assert found[0] == found[1]


def test_parts_have_a_place_for_each_of_their_arrays() -> None:
    op = _kernels.Elementwise("first", layout="planes")
    shape = (1, 8, 1, 1)

    def part(places: list[tuple[int, int]]) -> tuple[_kernels.Sequence, list[tuple[int, int]]]:
        return _kernels.Sequence([(op, shape, (0, 0), (None, None, None), (1, 0))], 0, [8, 8]), places

    chain = _kernels.Sequence.chained([part([(0, 0), (-1, 0)]), part([(-1, 0), (1, 0)])], 8, [8, 8])
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    chain.run(_kernels.ThreadPool(1), _kernels.Workspace(), [x, y])
    np.testing.assert_array_equal(x, y)
    for places in ([(0, 0)], [(0, 0), (1, 0), (1, 0)]):
        with pytest.raises(ValueError, match="a place for each array of a part"):
            _kernels.Sequence.chained([part(places)], 0, [8, 8])
    for places in ([(0, 0), (2, 0)], [(-2, 0), (1, 0)], [(0, 1), (1, 0)], [(0, 0), (-1, 9)]):
        with pytest.raises(ValueError, match=r"no such array|does not fit|no input or no output"):
            _kernels.Sequence.chained([part(places)], 8, [8, 8])
