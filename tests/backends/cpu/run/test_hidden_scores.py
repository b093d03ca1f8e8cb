"""Attention whose masks put a number in the place of scores."""

from __future__ import annotations

import numpy as np
import pytest
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime

from sift_onnx.backends.cpu.run.program import CpuProgram

pytestmark = pytest.mark.usefixtures("every_region_pays")
HEADS, WIDTH = 2, 32


def test_tokens_behind_the_end_of_a_sequence_are_hidden() -> None:
    """As XLM does, with tokens cut to the length that they have, and keys that are joined with nothing."""
    net = SparseNet(17)
    x = net.input("x", 2, 7, WIDTH, declared=["n", "t", WIDTH])
    lengths = net.input("lengths", 2, 1, values=np.array([[7], [4]]), declared=["n", 1])

    def number(*values: int) -> str:
        return str(net.constant(list(values), dtype=np.int64))

    def size(of: str, axis: int) -> str:
        return str(net.op("Unsqueeze", net.op("Gather", net.op("Shape", of), net.constant(axis)), number(0)))

    places = net.op("Range", net.constant(0), net.op("Squeeze", size(x, 1)), net.constant(1))
    counts = net.op("Less", places, lengths)
    counts = net.op("Slice", counts, net.op("Neg", size(x, 1)), number(2**63 - 1), number(1))

    def heads(of: str) -> str:
        target = net.op("Concat", size(x, 0), number(-1), number(HEADS), number(WIDTH // HEADS), axis=0)
        return str(net.op("Transpose", net.op("Reshape", of, target), perm=[0, 2, 1, 3]))

    for _ in range(2):
        queries = net.op("Mul", heads(net.dense(x, WIDTH, WIDTH)), net.constant(np.float32(0.25)))
        keys, values = (net.op("Concat", heads(net.dense(x, WIDTH, WIDTH)), axis=2) for _ in range(2))
        scores = net.op("MatMul", queries, net.op("Transpose", keys, perm=[0, 1, 3, 2]))
        hidden = net.op("Reshape", net.op("Not", counts), net.op("Concat", size(x, 0), number(1, 1, -1), axis=0))
        hidden = net.op("Cast", net.op("Expand", hidden, net.op("Shape", scores)), to=9)
        scores = net.op("Where", hidden, net.constant(np.finfo(np.float32).min), scores)
        y = net.op("Transpose", net.op("MatMul", net.op("Softmax", scores, axis=-1), values), perm=[0, 2, 1, 3])
        y = net.op("Reshape", y, net.op("Concat", size(x, 0), number(-1, WIDTH), axis=0))
        x = net.op("Add", net.dense(y, WIDTH, WIDTH), x)
    net.output(x, 2, 7, WIDTH)
    model = net.model()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    program = CpuProgram(model, ONE_THREAD)
    random = np.random.default_rng(0)
    for batch, tokens in ((2, 7), (1, 30), (3, 1), (2, 18), (2, 7)):
        feeds = {
            "x": random.standard_normal((batch, tokens, WIDTH)).astype(np.float32),
            "lengths": random.integers(0, tokens + 1, (batch, 1)),
        }
        assert_same_as_onnxruntime(model, feeds, program)
    assert len(program.parts) == 2
