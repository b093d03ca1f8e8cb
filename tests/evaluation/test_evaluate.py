"""Evaluation of models on back ends, against predictions of onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import sift_onnx
from sift_onnx.errors import CheckError, UsageError
from sift_onnx.evaluation.evaluate import evaluate

RNG = np.random.default_rng(0)
X = RNG.standard_normal((37, 6)).astype(np.float32)
WEIGHT = RNG.standard_normal((6, 8)).astype(np.float32)
TARGET = (X @ WEIGHT + RNG.standard_normal((37, 8))).argmax(1)


def linear(path: Path, weight: np.ndarray = WEIGHT, batch: int | str = "n") -> Path:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 8])],
        [numpy_helper.from_array(weight.astype(np.float32), "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluate")
    linear(folder / "net.onnx")
    linear(folder / "worse.onnx", np.roll(WEIGHT, 1, axis=1))
    linear(folder / "four.onnx", batch=4)
    np.savez(folder / "d.npz", x=X[:5], target=TARGET[:5], val_x=X, val_target=TARGET)
    return folder


def accuracy(path: Path) -> float:
    session = onnxruntime.InferenceSession(str(path))
    (scores,) = session.run(None, {"x": X})
    return float((scores.argmax(1) == TARGET).mean())


def test_back_ends_and_batches_agree_with_onnxruntime(folder: Path) -> None:
    expected = accuracy(folder / "net.onnx")
    for batch in (None, 1, 8, 64):  # of 37 examples
        report = evaluate(folder / "net.onnx", folder / "d.npz", backend=["cpu", "onnxruntime"], batch=batch, threads=1)
        assert [run.metrics["top1"] for run in report.runs] == [pytest.approx(expected)] * 2
        assert (report.examples, report.task) == (37, "classification")
        assert list(report.runs[0].metrics) == ["top1", "top5", "loss"]
        assert report.data.endswith("d.npz, validation")


def test_a_model_of_a_fixed_batch_is_filled_up(folder: Path) -> None:
    report = evaluate(folder / "four.onnx", folder / "d.npz", threads=1)
    assert report.batch == 4
    assert report.runs[0].metrics["top1"] == pytest.approx(accuracy(folder / "net.onnx"))
    with pytest.raises(UsageError, match="the model fixes a batch of 4; drop `batch=8`"):
        evaluate(folder / "four.onnx", folder / "d.npz", batch=8)


def test_batches_of_loaders_of_any_size(folder: Path) -> None:
    batches = [(X[:9], TARGET[:9]), (X[9:30], TARGET[9:30]), (X[30:], TARGET[30:])]
    expected = accuracy(folder / "net.onnx")
    for given in (batches, {"train": [], "validation": batches}, lambda: iter(batches)):
        report = evaluate(sift_onnx.load(folder / "net.onnx"), given, metric="top1", threads=1)
        assert report.runs[0].metrics == {"top1": pytest.approx(expected)}
    assert evaluate(folder / "net.onnx", batches, samples=12, threads=1).examples == 12


def test_a_baseline_is_compared_on_each_back_end(folder: Path) -> None:
    report = evaluate(folder / "worse.onnx", folder / "d.npz", baseline=folder / "net.onnx", metric=["top1"], threads=1)
    (difference,) = report.differences
    assert difference.difference == pytest.approx(accuracy(folder / "worse.onnx") - accuracy(folder / "net.onnx"))


def test_what_cannot_be_evaluated_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no examples"):
        evaluate(folder / "net.onnx", [])
    with pytest.raises(UsageError, match="the model wants x, and then the target"):
        evaluate(folder / "net.onnx", [(X, X, TARGET)])
    broken = linear(tmp_path / "nan.onnx", np.full((6, 8), np.nan))
    with pytest.raises(CheckError, match="output 'y' has NaN"):
        evaluate(broken, folder / "d.npz", backend="onnxruntime")
    with pytest.raises(UsageError, match="`normalize` is for folders of images"):
        evaluate(folder / "net.onnx", folder / "d.npz", normalize="imagenet")
