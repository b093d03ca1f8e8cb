"""InsertBatchNorm: calibrated on data, and the model computes what it did."""

import numpy as np
import onnx
import onnxruntime
import pytest

import sift_onnx
from sift_onnx.errors import PreconditionError, UsageError
from sift_onnx.passes import InsertBatchNorm

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    from sift_onnx.models import export

    path = tmp_path_factory.mktemp("models") / "resnet.onnx"
    export("resnet18-cifar", path, width=0.125, num_classes=10, batch="dynamic", keep_batch_norm=False)
    return path


def batches(count=2):
    rng = np.random.default_rng(0)
    return [{"input": rng.random((4, 3, 32, 32), dtype=np.float32)} for _ in range(count)]


def run(model, feeds):
    session = onnxruntime.InferenceSession(model.to_proto().SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def test_the_model_computes_what_it_did(path):
    model = sift_onnx.load(path)
    result = InsertBatchNorm(batches())(model)

    assert result.changed
    assert len(result.report["layers"]) == 20
    onnx.checker.check_model(result.model.to_proto(), full_check=True)
    feeds = {"input": np.random.default_rng(1).random((2, 3, 32, 32), dtype=np.float32)}
    np.testing.assert_allclose(run(result.model, feeds), run(model, feeds), rtol=1e-4, atol=1e-5)


def test_in_training_it_normalizes_as_it_was_calibrated(path):
    import torch

    data = batches(1)
    model = InsertBatchNorm(data)(path).model
    module = sift_onnx.to_torch(model)
    x = torch.from_numpy(data[0]["input"])
    with torch.no_grad():
        calibrated, trained = module(x), module.train()(x)

    # The same batch has the same statistics: training mode changes nothing.
    torch.testing.assert_close(trained, calibrated, rtol=1e-3, atol=1e-4)
    assert "layer1.0.conv1.norm.running_var" in module.state_dict()
    assert "layer1.0.conv1.bias" not in module.state_dict()


def test_a_second_run_changes_nothing(path):
    once = InsertBatchNorm(batches())(path)

    assert not InsertBatchNorm(batches())(once.model).changed


def test_a_model_with_its_normalizations_is_handed_back(tmp_path):
    from sift_onnx.models import export

    export("resnet18-cifar", tmp_path / "m.onnx", width=0.125)
    model = sift_onnx.load(tmp_path / "m.onnx")

    assert InsertBatchNorm(batches())(model).model is model


def test_heads_and_pyramids_are_left_alone(tmp_path):
    from sift_onnx.models import export

    export("retinanet-resnet18", tmp_path / "m.onnx", width=0.125, num_classes=4, keep_batch_norm=False)
    data = [{"input": np.random.default_rng(0).random((1, 3, 256, 256), dtype=np.float32)}]
    names = InsertBatchNorm(data)(tmp_path / "m.onnx").report["layers"]

    assert len(names) == 20
    assert all(name.startswith("backbone.") for name in names)


def test_only_some(path):
    result = InsertBatchNorm(batches(), only=["layer1.*"])(path)

    assert result.report["layers"] == [f"layer1.{i}.conv{j}.weight" for i in range(2) for j in (1, 2)]


def test_no_data_is_refused(path):
    with pytest.raises(PreconditionError, match="no data"):
        InsertBatchNorm([])(path)


def test_data_of_another_shape_is_refused(path):
    with pytest.raises(UsageError, match="does not fit the model"):
        InsertBatchNorm([{"input": np.ones((1, 4, 32, 32), np.float32)}])(path)


def test_a_glob_that_matches_nothing_is_refused(path):
    with pytest.raises(UsageError, match="matches no convolution"):
        InsertBatchNorm(batches(), only=["nothing*"])(path)
