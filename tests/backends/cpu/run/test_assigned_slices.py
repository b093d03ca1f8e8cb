"""Layers around assignments to slices are one region, and right at any size."""

from __future__ import annotations

import numpy as np
import pytest
from assigned_nets import END, Part, assigned, assigned_rows, part_of
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime

from sift_onnx.backends.cpu.run.program import CpuProgram

pytestmark = pytest.mark.usefixtures("every_region_pays")


RANGE, COLUMNS = (None, (1, END)), (None, None, (2, 6))


@pytest.mark.parametrize(
    ("parts", "is_turned"),
    [
        (RANGE, False),
        (COLUMNS, False),
        ((None, 0), False),
        ((None, (1, END), (2, 6)), False),
        (RANGE, True),
        (COLUMNS, True),
    ],
)
def test_between_layers(parts: tuple[Part, ...], is_turned: bool) -> None:
    net = SparseNet(17)
    x = net.op("MatMul", net.input("x", 2, 9, 16, declared=["batch", "length", 16]), net.weight(16, 16))
    value = net.op("Tanh", part_of(net, x, *parts))
    y = assigned_rows(net, x, value, parts[-1], 3, len(parts) - 1) if is_turned else assigned(net, x, value, *parts)
    net.output(net.op("MatMul", y, net.weight(16, 16)), 2, 9, 16)
    assert_parts(net, 1)


@pytest.mark.parametrize("part", [(0, 3), (2, END), (-2, END), (0, -1)])
def test_a_number_is_repeated_by_sizes_of_the_input(part: Part) -> None:
    """onnxruntime makes it before the layers, since the sizes of a part follow from those of the input."""
    net = SparseNet(17)
    x = net.op("MatMul", net.input("x", 2, 9, 16, declared=["batch", "length", 16]), net.weight(16, 16))
    value = net.op("Expand", net.constant(np.float32(3)), net.op("Shape", part_of(net, x, None, part)))
    net.output(net.op("MatMul", assigned(net, x, value, None, part), net.weight(16, 16)), 2, 9, 16)
    assert_parts(net, 2)


def assert_parts(net: SparseNet, count: int) -> None:
    """Check how many parts the model has, and what they compute at several sizes."""
    model = net.model()
    for dim in (0, 1):
        model.graph.output[0].type.tensor_type.shape.dim[dim].Clear()
    program = CpuProgram(model, ONE_THREAD)
    assert len(program.parts) == count
    rng = np.random.default_rng(0)
    for batch, length in ((2, 9), (1, 2), (16, 5), (3, 17)):
        feeds = {"x": rng.standard_normal((batch, length, 16)).astype(np.float32)}
        assert_same_as_onnxruntime(model, feeds, program)
