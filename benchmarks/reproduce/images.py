"""Images to tell apart, and the networks for them: of a few thousand weights, or ResNet-18.

Small: data and network of `../training/digits_data.py`, at width 3. Large: images of your own in one `.npz` (``input``,
``target``, and the same with ``val_`` and ``test_``), 64x64, and ResNet-18 with the stem for small images.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import torch

import sift_onnx
from sift_onnx.models.export import export
from sift_onnx.training.trainer import TrainingSettings, train_file

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from digits_data import BATCH, Examples, Shifted, accuracy, network, split, test_set

__all__ = ["LARGE_IMAGES", "SETTINGS", "ImageSetting", "shares_of_macs", "train_images"]

# Where the large setting finds its images.
LARGE_IMAGES = "SIFT_REPRODUCE_IMAGES"


@dataclass(frozen=True)
class ImageSetting:
    """How much is trained.

    Attributes:
        data: what the images are, and the network.
        width: of the network; channels, or a factor.
        batch: images per step.
        epochs: of each run.
        rates: learning rates to choose from.
        tuning_seeds: runs of the dense network by which each is judged.
        seeds: runs that are reported.
        update: steps between updates of masks.
    """

    data: str
    width: float
    batch: int
    epochs: int
    rates: tuple[float, ...]
    tuning_seeds: int
    seeds: int
    update: int


SETTINGS = {
    "small": ImageSetting(
        "scikit-learn's digits: 600 images of 8x8 to train on, shifted by up to a pixel, 300 to choose the "
        "learning rate by, 897 to test on; four convolutions of 3, 6, 6 and 6 channels with BatchNormalization, "
        "and a classifier",
        3, BATCH, 80, (0.2, 0.4, 0.8, 1.6), 8, 8, 20,
    ),
    "large": ImageSetting(
        "images of 64x64 as given; ResNet-18 with the stem for small images",
        1.0, 128, 100, (0.05, 0.1, 0.2), 1, 3, 100,
    ),
}  # fmt: skip


def _splits(setting: str, seed: int) -> tuple[Examples, Examples, Examples]:
    """To train on, for validation, to test on; of the small setting, the first two are drawn by seed."""
    if setting == "small":
        return *split(seed), test_set()
    path = os.environ.get(LARGE_IMAGES)
    if path is None:
        raise click.ClickException(f"the large setting needs images: set {LARGE_IMAGES} to an .npz file")
    with np.load(path) as file:
        found = [
            (torch.from_numpy(file[f"{part}input"]).float(), torch.from_numpy(file[f"{part}target"]).long())
            for part in ("", "val_", "test_")
        ]
    return found[0], found[1], found[2]


def _dense(setting: str, path: Path, seed: int, examples: Examples) -> None:
    chosen = SETTINGS[setting]
    if setting == "small":
        network(path, int(chosen.width), seed)
        return
    images, labels = examples
    classes = int(labels.max()) + 1
    export(
        "resnet18-cifar",
        path,
        width=chosen.width,
        num_classes=classes,
        batch="dynamic",
        keep_batch_norm=True,
        seed=seed,
    )
    model = onnx.load(path)
    for axis, size in zip(model.graph.input[0].type.tensor_type.shape.dim[2:], images.shape[2:], strict=True):
        axis.dim_value = size
    del model.graph.value_info[:]
    onnx.save(model, path)


def train_images(
    setting: str,
    transform: dict[str, Any],
    algorithm: str,
    rate: float,
    seed: int,
    part: str,
    device: str,
) -> float:
    """Accuracy in percent of a network that is made, transformed, trained and run by onnxruntime, all with one seed.

    Args:
        setting: a key of ``SETTINGS``.
        transform: arguments of :func:`sift_onnx.transform`; empty for the dense network.
        algorithm: ``static``, ``set`` or ``rigl``.
        rate: learning rate.
        seed: of weights, masks, order of the images, and which of them are trained on.
        part: ``validation`` or ``test``.
        device: of the training.
    """
    chosen = SETTINGS[setting]
    train, validation, test = _splits(setting, seed)
    data = Shifted(train, chosen.batch)
    steps = chosen.epochs * len(data)
    settings = TrainingSettings.of_recipe(
        {
            "epochs": chosen.epochs,
            "optimizer": {"type": "sgd", "lr": rate, "momentum": 0.9, "nesterov": True, "weight_decay": 0.0005},
            "schedule": {"type": "cosine"},
            "sparsity": _recipe(algorithm, transform.get("pattern"), steps, chosen.update) if transform else None,
            "seed": seed,
            "log_every": 10_000,
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        model, out = Path(folder) / "model.onnx", Path(folder) / "trained.onnx"
        _dense(setting, model, seed, train)
        if transform:
            sift_onnx.transform(str(model), **transform, seed=seed).save(model, force=True)
        train_file(model, out, {"train": data}, settings, device=device)
        return accuracy(out, test if part == "test" else validation)


def _recipe(algorithm: str, pattern: str | None, steps: int, update: int) -> dict[str, Any]:
    """The masks of the transformed model, evolving until three quarters of the training."""
    if algorithm == "static":
        return {"algorithm": "static", "sparsity": "masks", "param_filter": "*"}
    stop = steps * 3 // 4
    within = {"pattern": pattern} if pattern else {}
    return {
        "algorithm": algorithm,
        "sparsity": "masks",
        "update": {"freq": update, "stop": stop},
        "drop_fraction": {"type": "cosine", "init": 0.3, "half_period": stop},
        "param_filter": "*",
        **within,
    }


def shares_of_macs(setting: str, transform: dict[str, Any]) -> tuple[int, float]:
    """Multiply-accumulates of a network, and the share of those layers that stay dense.

    Raises:
        UnsupportedError: the transform does not apply to the network.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        _dense(setting, path, 0, _splits(setting, 0)[0])
        model: Any = sift_onnx.transform(str(path), **transform) if transform else str(path)
        layers = sift_onnx.inspect(model).to_dict()["layers"]
    macs = sum(layer["effective_macs"] for layer in layers)
    dense = sum(layer["effective_macs"] for layer in layers if layer["sparsity"] == 0)
    return macs, dense / macs
