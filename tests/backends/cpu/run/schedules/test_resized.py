"""Schedules of other numbers of tokens follow from one that is there, and compute what those made by steps do."""

from __future__ import annotations

import numpy as np
import pytest
from attention_nets import DEPTH, HEADS, WIDTH, AttentionNet
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.cpu.run.schedules import region_schedules

pytestmark = pytest.mark.usefixtures("every_region_pays")


class Encoder(AttentionNet):
    """Two layers of attention, of sequences of any length, with what follows it."""

    def __init__(self, masked: bool) -> None:
        SparseNet.__init__(self, 17)
        x = self.dense(self.input("x", 2, 21, 5, declared=["n", "tokens", 5]), 5, WIDTH)
        mask = self.input("mask", 2, 1, 1, 21, declared=["n", 1, 1, "tokens"]) if masked else ""
        heads = self.constant([0, 0, HEADS, DEPTH], dtype=np.int64)
        for _ in range(2):
            q, k, v = (
                self.op("Transpose", self.op("Reshape", self.dense(x, WIDTH, WIDTH), heads), perm=perm)
                for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
            )
            x = self.op("Add", x, self.dense(self.joined(self.attend(q, k, v, mask)), WIDTH, WIDTH))
            scale, shift = (self.weight(WIDTH, fan_in=1) for _ in range(2))
            x = self.op("LayerNormalization", x, scale, shift, axis=-1)
        self.ends(x)

    def attend(self, q: str, k: str, v: str, mask: str = "", nan_to_zero: bool = False) -> str:
        scores = self.op("MatMul", q, k)
        scores = self.op("Add", scores, mask) if mask else scores
        return str(self.op("MatMul", self.op("Softmax", scores, axis=-1), v))

    def joined(self, value: str, *shape: int) -> str:
        turned = self.op("Transpose", value, perm=[0, 2, 1, 3])
        return str(self.op("Reshape", turned, self.constant([0, 0, WIDTH], dtype=np.int64)))


def feeds_of(net: Encoder, batch: int, tokens: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(100 * batch + tokens)
    shapes = {"x": (batch, tokens, 5), "mask": (batch, 1, 1, tokens)}
    return {name: rng.standard_normal(shapes[name]).astype(np.float32) for name in net.feeds}


@pytest.mark.parametrize("masked", [False, True])
def test_lengths_after_the_first_are_not_planned_step_by_step(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Encoder(masked)
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    planned: list[int] = []
    make = region_schedules.planned
    monkeypatch.setattr(region_schedules, "planned", lambda *given: planned.append(1) or make(*given))
    # Sequences or tokens that are one have other axes, and few rows another layout.
    requests = (
        (1, 20, 1),
        (1, 33, 1),
        (1, 16, 1),
        (2, 17, 2),
        (3, 40, 2),
        (13, 1, 3),
        (20, 1, 3),
        (1, 5, 4),
        (1, 64, 5),
    )
    for batch, tokens, plans in requests:
        feeds = feeds_of(net, batch, tokens)
        assert_same_as_onnxruntime(model, feeds, program)
        assert len(planned) == plans
        if (batch, tokens) not in ((1, 16), (3, 40), (20, 1)):
            continue
        (again,), (alone,) = (each.run(feeds).values() for each in (program, CpuProgram(model, ONE_THREAD)))
        planned.pop()
        np.testing.assert_array_equal(again, alone)


def test_what_moves_values_is_planned_for_every_length() -> None:
    """Each second token: which rows are copied depends on how many there are."""
    net = SparseNet(17)
    x = net.dense(net.input("x", 1, 20, 8, declared=[1, "tokens", 8]), 8, 8)
    ends = [net.constant([value], dtype=np.int64) for value in (0, 2**31, 1, 2)]
    net.output(net.dense(net.op("Slice", x, *ends), 8, 8))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for tokens in (40, 64, 33):
        rng = np.random.default_rng(tokens)
        assert_same_as_onnxruntime(model, {"x": rng.standard_normal((1, tokens, 8)).astype(np.float32)}, program)


def test_sequences_of_other_tensors_are_not_resized() -> None:
    def sequence(shape: tuple[int, int, int, int], layout: str, place: tuple[int, int]) -> _kernels.Sequence:
        op = _kernels.Elementwise("first", layout=layout)
        size = int(np.prod(shape))
        return _kernels.Sequence([(op, shape, (0, 0), (None, None, None), place)], 32 * size, [size, size])

    assert sequence((16, 4, 1, 1), "images16", (-1, 0)).resized(48, [], [192, 64]).scratch_size == 3 * 32 * 64
    for shape, layout, place in (
        ((16, 4, 2, 1), "images16", (1, 0)),
        ((16, 4, 1, 1), "planes", (-1, 0)),
        ((48, 4, 1, 1), "images16", (-1, 16)),
    ):
        with pytest.raises(ValueError, match="not matrices of one number of rows"):
            sequence(shape, layout, place).resized(64, [], [256, 256])
    with pytest.raises(ValueError, match="not matrices of one number of rows"):
        sequence((16, 4, 1, 1), "images16", (1, 0)).resized(0, [], [0, 0])
    with pytest.raises(ValueError, match="does not fit in its place"):
        sequence((16, 4, 1, 1), "images16", (1, 0)).resized(48, [], [64, 64])


def test_tokens_that_are_channels_are_planned_step_by_step() -> None:
    net = SparseNet(17)
    x = net.input("x", 3, 21, 12, declared=["n", 21, "tokens"])
    net.output(net.op("Relu", x))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    rng = np.random.default_rng(0)
    for batch, tokens in ((3, 12), (1, 7), (16, 12), (3, 33)):
        feeds = {"x": rng.standard_normal((batch, 21, tokens)).astype(np.float32)}
        assert_same_as_onnxruntime(model, feeds, program)


def test_softmax_of_rows_from_outside_is_planned_for_every_length() -> None:
    """It reads them as they are, not in lanes."""
    net = SparseNet(17)
    weights = net.op("Softmax", net.input("x", 3, 20, 8, declared=["n", "tokens", 8]), axis=-1)
    net.output(net.dense(net.op("Relu", net.dense(weights, 8, 8)), 8, 8))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for batch, tokens in ((4, 12), (12, 12), (3, 40), (2, 33)):
        feeds = {"x": np.random.default_rng(tokens).standard_normal((batch, tokens, 8)).astype(np.float32)}
        assert_same_as_onnxruntime(model, feeds, program)
