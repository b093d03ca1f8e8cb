"""Transformers as onnxruntime's optimizer writes them, in kernels but for the places that are gathered, at any size."""

from __future__ import annotations

import numpy as np
import pytest
from nets import MICROSOFT
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime, left_to_onnxruntime

from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram
from sift_onnx.model import Model

pytestmark = pytest.mark.usefixtures("every_region_pays")

CHANNELS, HEADS, WORDS, PLACES = 16, 4, 30, 12


def vector(net: SparseNet, channels: int = CHANNELS) -> str:
    return net.constant(np.linspace(0.5, 1.5, channels))


def encoder(layers: int = 2, has_heads: bool = False, **attrs: int) -> SparseNet:
    """Embedding, and layers of attention and of products with GELU between them.

    Args:
        layers: how many.
        has_heads: attention reads queries, keys and values, which products make.
        attrs: of attention.
    """
    net = SparseNet(17)
    inputs = [
        net.input(name, 2, 5, values=np.ones((2, 5), np.int32), declared=["batch", "length"])
        for name in ("ids", "mask")
    ]
    tables = [net.constant(np.sin(np.arange(n * CHANNELS).reshape(n, -1))) for n in (WORDS, PLACES)]
    embedding = [inputs[0], "", *tables, "", vector(net), vector(net), inputs[1]]
    x, lengths = net.op("EmbedLayerNormalization", *embedding, outputs=2, domain=MICROSOFT, epsilon=1e-5)
    for _ in range(layers):
        if has_heads:
            parts = [net.op("MatMul", x, net.weight(CHANNELS, CHANNELS)) for _ in range(3)]
            operands = [*parts, vector(net, 3 * CHANNELS), lengths]
        else:
            operands = [x, net.weight(CHANNELS, 3 * CHANNELS), vector(net, 3 * CHANNELS), lengths]
        kind = "MultiHeadAttention" if has_heads else "Attention"
        y = net.op(kind, *operands, domain=MICROSOFT, num_heads=HEADS, **attrs)
        y = net.op("MatMul", y, net.weight(CHANNELS, CHANNELS))
        x = net.op("SkipLayerNormalization", y, x, *[vector(net) for _ in range(3)], domain=MICROSOFT, epsilon=1e-5)
        y = net.op("MatMul", x, net.weight(CHANNELS, 2 * CHANNELS))
        y = net.op("BiasGelu", y, vector(net, 2 * CHANNELS), domain=MICROSOFT)
        y = net.op("MatMul", y, net.weight(2 * CHANNELS, CHANNELS))
        x = net.op("SkipLayerNormalization", y, x, *[vector(net) for _ in range(3)], domain=MICROSOFT, epsilon=1e-5)
    net.output(x, 2, 5, CHANNELS)
    return net


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("has_heads", [False, True])
def test_an_encoder_is_in_kernels_and_right_at_any_size(has_heads: bool, is_causal: bool) -> None:
    model = encoder(has_heads=has_heads, unidirectional=int(is_causal)).model()
    del model.graph.output[0].type.tensor_type.shape.dim[:2]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    program = CpuProgram(model, ONE_THREAD)
    rng = np.random.default_rng(0)
    for batch, length in ((2, 5), (1, 12), (3, 1), (2, 7)):
        ids = rng.integers(0, WORDS, (batch, length)).astype(np.int32)
        mask = (np.arange(length) < rng.integers(1, length + 1, (batch, 1))).astype(np.int32)
        assert_same_as_onnxruntime(model, {"ids": ids, "mask": mask}, program)
    assert sum(isinstance(part, OnnxRuntimeProgram) for part in program.parts) == 1
    names = {node.name for node in model.graph.node if node.op_type != "EmbedLayerNormalization"}
    assert not names & left_to_onnxruntime(program).keys()


def test_sizes_are_followed_through_fused_operators() -> None:
    """Where a token is repeated for each sequence, ONNX's inference gives the batch another name."""
    net = SparseNet(17)
    x = net.input("x", 2, 5, CHANNELS, declared=["batch", 5, CHANNELS])
    batch = net.op("Slice", net.op("Shape", x), *(net.constant([n], dtype=np.int64) for n in (0, 1)))
    target = net.op("Concat", batch, net.constant([-1, -1], dtype=np.int64), axis=0)
    minus = net.constant([-1, -1, -1], dtype=np.int64)
    ones = net.constant([1, 1, 1], dtype=np.int64)
    target = net.op("Where", net.op("Equal", target, minus), ones, target)
    x = net.op("Concat", net.op("Expand", net.weight(1, 1, CHANNELS), target), x, axis=1)
    for _ in range(2):
        y = net.op("MatMul", x, net.weight(CHANNELS, CHANNELS))
        x = net.op("SkipLayerNormalization", y, x, *[vector(net) for _ in range(3)], domain=MICROSOFT, epsilon=1e-5)
    net.output(x, 2, 6, CHANNELS)
    assert GraphView(Model.load(net.model())).dims(x) == ("batch", 6, CHANNELS)
