"""The architectures of models/ simulate; narrow ones here, to be quick."""

import math

import pytest

pytest.importorskip("torch")

from sift_onnx.backends.dataflow.lower import lower
from sift_onnx.backends.dataflow.model_simulation import simulate
from sift_onnx.models.export import export

CASES = {
    "resnet18-cifar": {},
    "mobilenetv2-cifar": {},
    "mobilevit-s-cifar": {},
    "botnet50-cifar": {},
    "deeplabv3plus-resnet18": {},
    "retinanet-resnet18": {},
    "bert-small": {"layers": 1, "num_classes": 100},
    "gpt3-small": {"layers": 1, "num_classes": 100},
}


@pytest.mark.parametrize("name", CASES)
def test_an_architecture_simulates_at_batch_1_and_64(name, tmp_path):
    path = tmp_path / "model.onnx"
    export(name, path, width=0.25, **CASES[name])
    assert not lower(path).uncosted
    for batch, training in ((1, False), (64, True)):
        simulation = simulate(path, batch=batch, training=training)
        assert math.isfinite(simulation.energy_j)
        assert 0 < simulation.utilization <= 1
        for layer in simulation.layers:
            assert 0 < layer.utilization <= 1
            assert layer.stall_cycles >= 0
