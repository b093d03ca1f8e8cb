"""RotaryEmbedding of both domains outside decoders, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.helper
import pytest
from sparse_nets import SparseNet, assert_same_as_onnxruntime, reasons

from sift_onnx.operators.domains import MICROSOFT

pytestmark = pytest.mark.usefixtures("every_region_pays")

HEADS, DEPTH, TOKENS = 4, 8, 5
CHANNELS = HEADS * DEPTH
POSITIONS = np.array([[3, 0, 1, 9, 2], [0, 1, 2, 3, 4]], np.int64)


def model_of(domain: str, positions: Any = None, layers: int = 1) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Layers between rotations; ``positions`` are a constant, else an input."""
    net = SparseNet(opset=23)
    x = net.input("x", 2, TOKENS, CHANNELS, declared=["n", "t", CHANNELS])
    at = (
        net.constant(positions, name="p")
        if positions is not None
        else net.input("p", values=POSITIONS, declared=["n", "t"])
    )
    angles = np.random.default_rng(1).standard_normal((16, DEPTH // 2))
    tables = net.constant(np.cos(angles)), net.constant(np.sin(angles))
    for _ in range(layers):
        x = net.op("MatMul", x, net.weight(CHANNELS, CHANNELS))
        operands = (x, at, *tables) if domain else (x, *tables, at)
        x = net.op("RotaryEmbedding", *operands, domain=domain, num_heads=HEADS)
    net.output(net.op("MatMul", x, net.weight(CHANNELS, 7)))
    model = net.model()
    if domain:
        model.opset_import.append(onnx.helper.make_opsetid(domain, 1))
    return model, net.feeds


@pytest.mark.parametrize("domain", ["", MICROSOFT])
@pytest.mark.parametrize("layers", [1, 2])
def test_rows_that_are_rotated_keep_their_tokens(domain: str, layers: int) -> None:
    model, feeds = model_of(domain, layers=layers)
    program = assert_same_as_onnxruntime(model, feeds)
    assert len(program.parts) == 1
    for tokens in (1, 3):
        assert_same_as_onnxruntime(model, {name: array[:1, :tokens] for name, array in feeds.items()}, program)


@pytest.mark.parametrize("domain", ["", MICROSOFT])
def test_constant_positions_are_left_to_onnxruntime(domain: str) -> None:
    model, feeds = model_of(domain, POSITIONS)
    program = assert_same_as_onnxruntime(model, feeds)
    assert "'p' is a constant" in reasons(program).values()
