"""Augmentation of images to train on, by a stand-in for torchvision."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training.trainer.test_image_folders import digits, ranks, spec

from sift_onnx.errors import MissingExtraError
from sift_onnx.training.trainer import TrainingSettings
from sift_onnx.training.trainer.augmentation import make_augment
from sift_onnx.training.trainer.data import load_data


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    v2 = types.ModuleType("torchvision.transforms.v2")

    class Moves:
        def __init__(self, *args: Any, **settings: Any) -> None:
            made.append((args, settings))

        def __call__(self, image: torch.Tensor) -> torch.Tensor:
            return image.roll(int(torch.randint(0, 3, ())), -1)

    class Compose:
        def __init__(self, steps: list[Any]) -> None:
            self._steps = steps

        def __call__(self, image: torch.Tensor) -> torch.Tensor:
            for step in self._steps:
                image = step(image)
            return image

    v2.RandomCrop = v2.RandomResizedCrop = v2.RandomHorizontalFlip = Moves  # type: ignore[attr-defined]
    v2.Compose = Compose  # type: ignore[attr-defined]
    transforms = types.ModuleType("torchvision.transforms")
    transforms.v2 = v2  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.transforms", transforms)
    return made


def test_images_to_train_on_change_and_others_do_not(tmp_path: Path, torchvision: list[Any]) -> None:
    settings = {"epochs": 2, "batch_size": 8}
    plain, changed, again = (
        load_data(
            str(digits(tmp_path / name)), [spec("n", 1, 6, 6)], TrainingSettings.of_recipe(settings | own), ranks()
        )
        for name, own in (("a", {}), ("b", {"augment": "crop-flip"}), ("c", {"augment": "crop-flip"}))
    )
    assert torch.equal(next(plain.validation()).inputs[0], next(changed.validation()).inputs[0])
    batches = [list(source.epoch(1)) for source in (plain, changed)]
    assert not torch.equal(batches[0][2][0].inputs[0], batches[1][2][0].inputs[0])
    # A run that is resumed at step 2 sees the same.
    (resumed, *_) = again.epoch(1, 2)
    assert torch.equal(resumed[0].inputs[0], batches[1][2][0].inputs[0])
    assert torchvision[0] == (((6, 6),), {"padding": [1, 1]})


def test_each_image_is_changed_by_itself(torchvision: list[Any]) -> None:
    augment = make_augment("resized-crop-flip")
    assert augment is not None
    torch.manual_seed(0)
    pixels = np.tile(np.arange(6, dtype=np.uint8), (16, 3, 6, 1))
    changed = augment(pixels)
    assert changed.dtype == np.uint8
    assert len({image.tobytes() for image in changed}) > 1


def test_the_package_is_named_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(MissingExtraError, match="`augment='crop'` needs torchvision: pip install torchvision"):
        make_augment("crop")
    assert make_augment("none") is None
