"""A small network for scikit-learn's digits, as people export it: it trains, or the tool says how it would."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from torch.onnx import TrainingMode

from sift_onnx.cli import main
from sift_onnx.passes import InsertBatchNorm, UnshareInitializers

TRAINED = 1200
RECIPE = """\
version: 1
training:
  epochs: 8
  batch_size: 60
  optimizer: {type: sgd, lr: 0.2, momentum: 0.9, weight_decay: 5e-4}
"""


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Any) -> Any:
        y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(self.short(x) + y)


def network() -> nn.Module:
    torch.manual_seed(0)
    stem = (nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    blocks = (Block(8, 16, 2), Block(16, 16, 1))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)).eval()


def load_digits() -> Any:
    """Scikit-learn's, which takes a second to import: not while tests are collected."""
    from sklearn.datasets import load_digits

    return load_digits()


@contextmanager
def silence() -> Iterator[None]:
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


@cache
def exported(*, dynamo: bool, **options: Any) -> bytes:
    """What torch writes of the network, with any batch."""
    file = io.BytesIO()
    axes = {"dynamic_shapes": ({0: torch.export.Dim("n")},)} if dynamo else {"dynamic_axes": {"x": {0: "n"}}}
    with silence():
        program = torch.onnx.export(
            network(),
            (torch.zeros(2, 1, 8, 8),),
            None if dynamo else file,
            dynamo=dynamo,
            verbose=False,
            input_names=["x"],
            **axes,
            **options,
        )
    return file.getvalue() if program is None else program.model_proto.SerializeToString()


def torchscript(path: Path) -> None:
    path.write_bytes(exported(dynamo=False))


def dynamo(path: Path) -> None:
    path.write_bytes(exported(dynamo=True))


def preserved(path: Path) -> None:
    path.write_bytes(exported(dynamo=False, training=TrainingMode.PRESERVE, do_constant_folding=False))


def not_optimized(path: Path) -> None:
    path.write_bytes(exported(dynamo=True, optimize=False))


def put_back(path: Path) -> None:
    dynamo(path)
    images = load_digits().images[:TRAINED, None].astype(np.float32) / 16
    InsertBatchNorm([{"x": batch} for batch in np.split(images, 10)])(path).model.save(path, force=True)


def in_training_mode(path: Path) -> None:
    path.write_bytes(exported(dynamo=False, training=TrainingMode.TRAINING, do_constant_folding=False))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data and recipe."""
    folder = tmp_path_factory.mktemp("digits")
    data = load_digits()
    images = data.images[:, None].astype(np.float32) / 16
    np.savez(folder / "digits.npz", x=images[:TRAINED], target=data.target[:TRAINED])
    (folder / "train.yaml").write_text(RECIPE)
    return folder


def call(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main(args=[str(argument) for argument in arguments])
    return int(stop.value.code or 0)


def transform_and_train(folder: Path, name: str) -> int:
    """The exit code of the verb that failed, or 0; the file is ``<name>-trained.onnx``."""
    model, wide, trained = (folder / f"{name}{suffix}.onnx" for suffix in ("", "-wide", "-trained"))
    options = ("--recipe", folder / "train.yaml", "--data", folder / "digits.npz", "--device", "cpu")
    return call("transform", model, wide, "--wide", "0.75") or call("train", wide, trained, *options)


def accuracy(path: Path) -> float:
    """Share of the other digits that onnxruntime finds, each in a batch of its own."""
    data = load_digits()
    images = data.images[TRAINED:, None, None].astype(np.float32) / 16
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = [int(session.run(None, {"x": image})[0].argmax()) for image in images]
    return float(np.mean(found == data.target[TRAINED:]))


@pytest.fixture(scope="module")
def reference(folder: Path) -> float:
    """Accuracy of the network that kept its normalizations."""
    preserved(folder / "reference.onnx")
    assert transform_and_train(folder, "reference") == 0
    return accuracy(folder / "reference-trained.onnx")


@pytest.mark.slow
def test_with_its_normalizations_the_network_trains(reference: float) -> None:
    assert reference > 0.9


@pytest.mark.parametrize("export", [preserved, not_optimized])
def test_an_export_that_is_advised_has_parameters_of_its_own_for_each_norm_in_inference_mode(
    export: Callable[[Path], None], tmp_path: Path
) -> None:
    export(tmp_path / "m.onnx")
    graph = UnshareInitializers()(tmp_path / "m.onnx").model.graph
    norms = [node for node in graph.nodes if node.op == "BatchNormalization"]
    assert len(norms) == 7
    assert len({id(tensor) for node in norms for tensor in node.inputs[1:]}) == 28
    assert not any(node.attrs.get("training_mode", 0) for node in norms)


@pytest.mark.slow
@pytest.mark.parametrize("export", [not_optimized, put_back])
def test_each_way_out_trains_as_well(export: Callable[[Path], None], folder: Path, reference: float) -> None:
    export(folder / f"{export.__name__}.onnx")
    assert transform_and_train(folder, export.__name__) == 0
    assert accuracy(folder / f"{export.__name__}-trained.onnx") > reference - 0.01


@pytest.mark.slow
@pytest.mark.parametrize("export", [torchscript, dynamo, in_training_mode])
def test_every_export_trains_as_well_or_leads_to_one_that_does(
    export: Callable[[Path], None], folder: Path, reference: float, capfd: pytest.CaptureFixture[str]
) -> None:
    export(folder / f"{export.__name__}.onnx")
    code = transform_and_train(folder, export.__name__)
    error = capfd.readouterr().err
    if code:
        # Both verbs say it: transform where another export is still at hand, train where it matters.
        assert error.count("training=TrainingMode.PRESERVE, do_constant_folding=False") == 2
        assert "folded_batch_norm: allow" in error
        assert "Traceback" not in error
    else:
        assert accuracy(folder / f"{export.__name__}-trained.onnx") > reference - 0.01


@pytest.mark.slow
def test_what_is_refused_does_not_train(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(f"{RECIPE}  folded_batch_norm: allow\n")
    (tmp_path / "digits.npz").symlink_to(folder / "digits.npz")
    dynamo(tmp_path / "anyway.onnx")
    assert transform_and_train(tmp_path, "anyway") == 0
    assert accuracy(tmp_path / "anyway-trained.onnx") < 0.5
