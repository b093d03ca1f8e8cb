"""The architectures of models/ simulate; narrow and shallow here, to be quick."""

import math

import pytest

pytest.importorskip("torch")

from sift_onnx.backends.dataflow.simulation.model_simulation import simulate
from sift_onnx.backends.dataflow.workloads.lowering import lower
from sift_onnx.models import ARCHITECTURES
from sift_onnx.models.export import export

FIRST = ("resnet18-cifar", "gpt3-small")


@pytest.mark.parametrize(
    "name", [name if name in FIRST else pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES]
)
def test_an_architecture_simulates_at_batch_1_and_64(name, tmp_path):
    path = tmp_path / "model.onnx"
    small = {"layers": 1, "sequence": 16, "num_classes": 100} if "layers" in ARCHITECTURES[name].options else {}
    export(name, path, width=0.125 if name == "gpt3-1.3b" else 0.25, keep_batch_norm=False, **small)
    assert not lower(path).uncosted
    for batch, training in ((1, False), (64, True)):
        simulation = simulate(path, batch=batch, training=training)
        assert math.isfinite(simulation.energy_j)
        assert 0 < simulation.utilization <= 1
        for layer in simulation.layers:
            assert 0 < layer.utilization <= 1
            assert layer.stall_cycles >= 0
