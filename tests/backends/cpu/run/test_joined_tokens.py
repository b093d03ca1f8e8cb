"""Tokens of two kinds that are joined and cut apart again, at a place that is the number of the first ones."""

from __future__ import annotations

import numpy as np
import pytest
from assigned_nets import END, integers
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime

from sift_onnx.backends.cpu.run.program import CpuProgram

pytestmark = pytest.mark.usefixtures("every_region_pays")


def joined_tokens(count: int | str, more: int = 0) -> SparseNet:
    """Layers of words and of ``count`` others, cut apart ``more`` positions behind the words and joined in turn."""
    net = SparseNet(17)
    words = net.input("x", 2, 7, 16, declared=["batch", "words", 16])
    number = count if isinstance(count, int) else 3
    others = net.input("y", 2, number, 16, declared=["batch", count, 16])
    x = net.op("Concat", *[net.op("MatMul", name, net.weight(16, 16)) for name in (words, others)], axis=1)
    x = net.op("Tanh", net.op("MatMul", x, net.weight(16, 16)))
    bound = net.op("Slice", net.op("Shape", words), integers(net, 1), integers(net, 2))
    if more:
        bound = net.op("Add", bound, integers(net, more))
    axis = integers(net, 1)
    first = net.op("Slice", x, integers(net, 0), bound, axis)
    second = net.op("Slice", x, bound, integers(net, END), axis)
    for name in (first, second):
        made = net.op("MatMul", name, net.weight(16, 16))
        net.output(made, 2, 1, 16)
    return net


@pytest.mark.parametrize(("count", "more"), [(3, 0), (3, 1), (3, 3), (3, 5), (3, -2), ("others", 0)])
def test_cut_where_they_were_joined(count: int | str, more: int) -> None:
    """The number of those behind need not be known, nor be one at least."""
    model = joined_tokens(count, more).model()
    for output in model.graph.output:
        for dim in (0, 1):
            output.type.tensor_type.shape.dim[dim].Clear()
    program = CpuProgram(model, ONE_THREAD)
    assert len(program.parts) == 1
    rng = np.random.default_rng(0)
    for batch, words, others in ((2, 7, 3), (1, 1, 1), (16, 4, 9), (3, 12, 2)):
        shapes = {"x": (batch, words, 16), "y": (batch, count if isinstance(count, int) else others, 16)}
        feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        assert_same_as_onnxruntime(model, feeds, program)
