"""Random graphs that cut and join channels: what lies within what is right, whoever reads it and whenever."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sparse_nets import SparseNet, assert_same_as_onnxruntime

from sift_onnx.backends.cpu.run.schedules import tensor_copies

MOST_CHANNELS = 24


class ChannelNet(SparseNet):
    """A net of images of one size, which grows by one operator at a time."""

    def __init__(self, draw: st.DrawFn, batch: int) -> None:
        super().__init__()
        self.draw = draw
        x = self.input("x", batch, 4, 3, 5, declared=["n", 4, 3, 5])
        self.widths = {x: 4, self.conv(x, 4, 6): 6}

    def pick(self, names: list[str]) -> str:
        return self.draw(st.sampled_from(names))

    def grow(self) -> None:
        names = list(self.widths)
        x = self.pick(names)
        width = self.widths[x]
        match self.draw(st.sampled_from(("conv", "relu", "add", "concat", "concat", "split", "slice", "shuffle"))):
            case "conv":
                made = self.draw(st.integers(1, 8))
                self.widths[self.conv(x, width, made, 3)] = made
            case "relu":
                self.widths[self.op("Tanh", x)] = width
            case "add":
                other = self.pick([name for name in names if self.widths[name] == width])
                self.widths[self.op("Add", self.conv(x, width, width), other)] = width
            case "concat":
                others = [x, *(self.pick(names) for _ in range(self.draw(st.integers(1, 3))))]
                total = sum(self.widths[name] for name in others)
                if total <= MOST_CHANNELS:
                    self.widths[self.op("Concat", *others, axis=1)] = total
            case "split" if width > 1:
                first = self.draw(st.integers(1, width - 1))
                sizes = self.constant([first, width - first], dtype="int64")
                a, b = self.op("Split", x, sizes, outputs=2, axis=1)
                self.widths |= {a: first, b: width - first}
            case "slice":
                start = self.draw(st.integers(0, width - 1))
                stop = self.draw(st.integers(start + 1, width))
                bounds = [self.constant([value], dtype="int64") for value in (start, stop, 1)]
                self.widths[self.op("Slice", x, *bounds)] = stop - start
            case "shuffle":
                order = self.draw(st.permutations(range(width)))
                self.widths[self.op("Gather", x, self.constant(order, dtype="int64"), axis=1)] = width

    def end(self) -> None:
        names = list(self.widths)[1:]
        for name in {names[-1], *(self.pick(names) for _ in range(2))}:
            self.output(self.conv(name, self.widths[name], 3))
        self.output(self.op("Identity", self.pick(names)))


@st.composite
def channel_nets(draw: st.DrawFn) -> ChannelNet:
    net = ChannelNet(draw, draw(st.sampled_from((1, 2, 16, 33))))
    for _ in range(draw(st.integers(1, 14))):
        net.grow()
    net.end()
    return net


@pytest.mark.usefixtures("every_region_pays")
@settings(
    max_examples=75,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(net=channel_nets(), long_run=st.sampled_from((2, 32)))
def test_random_cuts_and_joins_compute_the_same(net: ChannelNet, long_run: int) -> None:
    with mock.patch.object(tensor_copies, "_LONG_RUN", long_run):
        program = assert_same_as_onnxruntime(net.model(), net.feeds, tolerance=1e-4)
    assert any(hasattr(part, "region") for part in program.parts)
