"""Weights that are fixed functions are imported as what no optimizer touches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nets import Net

from sift_onnx import to_torch, write_back
from sift_onnx.training.module import ImportedModule

BINS = np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1)


@pytest.fixture
def net() -> Net:
    """Two layers and an integral over fixed bins."""
    net = Net()
    h = net.op("Relu", net.conv(net.input("x", 1, 3, 4, 4), 3, 8, name="first"))
    bins = net.op("Softmax", net.conv(h, 8, 16, name="second"), axis=1)
    net.output(net.op("Conv", bins, net.constant(BINS, "integral"), name="sum"))
    return net


def step(module: ImportedModule, net: Net) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, weight_decay=0.1)
    module(torch.from_numpy(net.feeds["x"])).square().sum().backward()
    optimizer.step()


def test_a_fixed_weight_is_a_buffer_and_survives_training(net: Net) -> None:
    model = net.model()
    module = to_torch(model)
    assert {name for name, _ in module.named_parameters()} == {"first.weight", "second.weight"}
    assert "integral" in module.state_dict()
    step(module, net)
    trained = {tensor.name: tensor for tensor in write_back(model, module).graph.initializer}
    before = {tensor.name: tensor for tensor in model.graph.initializer}
    assert trained["integral"] == before["integral"]
    assert trained["second.weight"] != before["second.weight"]


def test_weights_of_products_that_onnxruntime_fused_are_trained() -> None:
    net = Net()
    h = net.op("FusedMatMul", net.tokens(6), net.weight(6, 8, name="w"), domain="com.microsoft", alpha=0.5)
    net.output(h, 1, 5, 8)
    module = to_torch(net.model())
    assert "w" in dict(module.named_parameters())


def test_a_fixed_weight_is_trained_where_that_is_asked_for(net: Net) -> None:
    module = to_torch(net.model(), trainable=["integral"])
    assert "integral" in dict(module.named_parameters())
