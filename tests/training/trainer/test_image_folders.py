"""Training on a folder of images."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from training.trainer.cases import classifier

from sift_onnx.errors import UsageError
from sift_onnx.shapes.tensor_specs import TensorSpec
from sift_onnx.training.trainer import TrainingSettings, train_file
from sift_onnx.training.trainer.data import load_data
from sift_onnx.training.trainer.process_group import Ranks

SETTINGS = TrainingSettings.of_recipe({"epochs": 2, "batch_size": 8})


def digits(folder: Path, size: int = 6) -> Path:
    """Images whose class is how many columns are bright."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    for part, count in (("train", 32), ("t10k", 8)):
        labels = draw.integers(0, 4, count).astype(np.uint8)
        pixels = draw.integers(0, 100, (count, size, size)).astype(np.uint8)
        for image, label in zip(pixels, labels, strict=True):
            image[:, :label] += 150
        for kind, array in (("images-idx3", pixels), ("labels-idx1", labels)):
            data = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(data))
    return folder


def spec(*shape: int | str | None, dtype: str = "float32") -> TensorSpec:
    return TensorSpec("x", np.dtype(dtype), shape)


def ranks() -> Ranks:
    import torch

    return Ranks(0, 1, torch.device("cpu"))


def test_a_folder_of_idx_files_trains_and_validates(tmp_path: Path) -> None:
    model = classifier(tmp_path / "net.onnx")
    settings = TrainingSettings.of_recipe({"epochs": 20, "batch_size": 8, "optimizer": {"type": "sgd", "lr": 0.05}})
    document = train_file(model, tmp_path / "out.onnx", digits(tmp_path / "d"), settings, device="cpu")
    assert document is not None
    assert document["validation"]["accuracy"] > 0.8


def test_pixels_are_from_0_to_1_or_bytes(tmp_path: Path) -> None:
    folder = str(digits(tmp_path / "d"))
    for dtype, most in (("float32", 1.0), ("float16", 1.0), ("uint8", 255)):
        source = load_data(folder, [spec("n", 1, "h", None, dtype=dtype)], SETTINGS, ranks())
        (batch,) = next(source.epoch(0))
        (images,) = batch.inputs
        assert str(images.dtype) == f"torch.{dtype}"
        assert images.shape == (8, 1, 6, 6)
        assert 0.8 * most < images.max().item() <= most
        assert source.steps_per_epoch == 4
        assert [part.size for part in source.validation()] == [8]


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([spec("n", 3, 8, 6)], r"images are \[1, 6, 6\], .*, and the model takes \[3, 8, 6\]"),
        ([spec("n", "c", 8, 8)], r"images are \[1, 6, 6\], .*, and the model takes \[1, 8, 8\]"),
        ([spec("n", 36)], r"one input \[N, channels, height, width\]; this one takes x n,36"),
        ([spec("n", 1, 6, 6), spec("n", 1)], "for a model with one input"),
        ([spec("n", 1, 6, 6, dtype="int64")], "input 'x' is int64"),
    ],
)
def test_models_that_take_other_inputs_are_refused(tmp_path: Path, specs: list[TensorSpec], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        next(load_data(str(digits(tmp_path / "d")), specs, SETTINGS, ranks()).epoch(0))


def test_image_files_take_a_size_from_the_model(tmp_path: Path) -> None:
    from PIL import Image

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for index in range(5):
            Image.new("RGB", (9, 8), (index, 0, 255)).save(tmp_path / name / f"{index}.png")
    source = load_data(str(tmp_path), [spec("n", 3, 4, 4)], SETTINGS, ranks())
    (batch,) = next(source.epoch(0))
    assert batch.inputs[0].shape == (8, 3, 4, 4)
    with pytest.raises(UsageError, match=r"input 'x' n,3,h,w leaves open; export the model for one size"):
        load_data(str(tmp_path), [spec("n", 3, "h", "w")], SETTINGS, ranks())
