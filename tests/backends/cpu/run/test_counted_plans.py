"""A model of several parts is planned again only where another plan may have fewer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime

from sift_onnx.backends.cpu.run import lowering
from sift_onnx.backends.cpu.run.program import CpuProgram

pytestmark = pytest.mark.usefixtures("every_region_pays")


def apart(net: SparseNet, x: str, channels: int = 8) -> str:
    """Layers around an operator that kernels do not have."""
    for _ in range(2):
        x = net.dense(net.op("Acos", net.op("Tanh", x)), channels, channels)
    return str(x)


def plans_of(net: SparseNet, monkeypatch: pytest.MonkeyPatch, **sizes: int) -> int:
    """How often a model is planned that runs as in onnxruntime."""
    counted: list[None] = []
    lower = lowering.lower

    def counting(*arguments: Any) -> Any:
        counted.append(None)
        return lower(*arguments)

    monkeypatch.setattr(lowering, "lower", counting)
    program = CpuProgram(net.model(), ONE_THREAD)
    count = len(counted)
    assert len(program.parts) > 2
    shapes = {
        info.name: [sizes[dim.dim_param] if dim.dim_param else dim.dim_value for dim in info.type.tensor_type.shape.dim]
        for info in net.model().graph.input
    }
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    assert_same_as_onnxruntime(net.model(), feeds, program)
    return count


def test_sizes_that_are_the_same_in_usual_runs_are_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net = SparseNet(opset=18)
    x = net.dense(net.input("x", 2, 4, 6, declared=["n", "t", 6]), 6, 8)
    net.output(apart(net, x))
    assert plans_of(net, monkeypatch, n=3, t=5) == 1


def test_sizes_that_meet_are_planned_for_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    net = SparseNet(opset=18)
    first, second = (net.dense(net.input(name, 2, 4, 6, declared=[name, 4, 6]), 6, 8) for name in ("x", "y"))
    net.output(apart(net, net.op("Add", first, second)))
    assert plans_of(net, monkeypatch, x=3, y=3) == 2


def test_axes_that_no_window_parts_are_not_planned_for_as_whole_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    net = SparseNet(opset=18)
    x = net.dense(net.input("x", 2, 4, 6, declared=["n", "t", 6]), 6, 8)
    bounds = [net.constant([value], dtype=np.int64) for value in (1, 1 << 40, 1)]
    rest = net.op("Slice", net.op("Slice", x, *bounds), *bounds)
    net.output(apart(net, rest))
    assert plans_of(net, monkeypatch, n=3, t=5) == 2


def test_axes_in_blocks_are_planned_for_as_whole_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    net = SparseNet(opset=18)
    x = net.input("x", 2, 4, 12, declared=["n", 4, "s"])
    shorter = net.op("Conv", x, net.weight(8, 4, 2), strides=[2])
    longer = net.op("ConvTranspose", shorter, net.weight(8, 4, 2), strides=[2])
    rows = net.dense(net.op("Transpose", net.op("Add", longer, x), perm=[0, 2, 1]), 4, 8)
    net.output(apart(net, rows))
    assert plans_of(net, monkeypatch, n=3, s=8) == 3
