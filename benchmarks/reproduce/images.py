"""One training of a network that tells images apart: made, transformed, trained, and tested by onnxruntime."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from image_sets import dense_network, splits

import sift_onnx
from sift_onnx.training.trainer import TrainingSettings, train_file

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from digits_data import BATCH, Shifted, accuracy

__all__ = [
    "SETTINGS", "ImageSetting", "Sizes", "batches", "make_model", "mask_recipe", "sizes", "steps", "train_images",
]  # fmt: skip


@dataclass(frozen=True)
class ImageSetting:
    """How much is trained.

    Attributes:
        images: name of images and network in `image_sets.py`.
        data: what they are.
        width: of the network; channels, or a factor.
        trained: images to train on; None for all.
        batch: images per step.
        shift: pixels by which images are moved at random.
        epochs: of each run.
        rates: learning rates to choose from.
        tuning_seeds: runs of the dense network by which each is judged; of other networks than the setting's, one.
        seeds: runs that are reported.
        table_seeds: the same of Tables 3, 4 and 9.
        update: steps between updates of masks.
        widths: of the dense networks of Figure 1.
        wide: of these, what Figure 1 widens.
        first_seed: of those that are reported. Those from 0 on have been looked at when settings were chosen.
    """

    images: str
    data: str
    width: float
    trained: int | None
    batch: int
    shift: int
    epochs: float
    rates: tuple[float, ...]
    tuning_seeds: int
    seeds: int
    table_seeds: int
    update: int
    widths: tuple[float, ...] = ()
    wide: tuple[float, ...] = ()
    first_seed: int = 100


SETTINGS = {
    "small": ImageSetting(
        "digits",
        "scikit-learn's digits: 600 images of 8x8 to train on, shifted by up to a pixel, 300 to choose the "
        "learning rate by, 897 to test on; four convolutions of 3, 6, 6 and 6 channels with BatchNormalization, "
        "and a classifier",
        3, None, BATCH, 1, 80, (0.2, 0.4, 0.8, 1.6), 8, 8, 8, 20,
    ),
    "pilot": ImageSetting(
        "fashion-mnist",
        "Fashion-MNIST, shrunk to 14x14, and ResNet-10, trained so little that figures say nothing",
        4, 10_000, 128, 0, 1.25, (0.1, 0.2), 1, 2, 2, 20, (4, 6), (4,), 0,
    ),
    "standard": ImageSetting(
        "fashion-mnist",
        "Fashion-MNIST, shrunk to 14x14: 30,000 images to train on, 10,000 to choose the learning rate by, 10,000 to "
        "test on; ResNet-10",
        4, 30_000, 128, 0, 3, (0.05, 0.1, 0.2, 0.4), 2, 5, 3, 50, (3, 4, 6, 8), (4, 8),
    ),
    "medium": ImageSetting(
        "fashion-mnist-full",
        "Fashion-MNIST at 28x28: 50,000 images to train on, shifted by up to two pixels, 10,000 to choose the learning "
        "rate by, 10,000 to test on; ResNet-18 of 16 to 128 channels with the stem for small images",
        16, None, 256, 2, 6, (0.1, 0.2, 0.4), 1, 3, 3, 50,
    ),
    "large": ImageSetting(
        "own",
        "images of 64x64 as given; ResNet-18 with the stem for small images",
        1.0, None, 128, 1, 100, (0.05, 0.1, 0.2), 1, 3, 3, 100, (0.5, 0.7, 1.0, 1.4), (1.0,),
    ),
}  # fmt: skip


def batches(setting: str, seed: int) -> Shifted:
    """What is trained on."""
    chosen = SETTINGS[setting]
    images, labels = splits(chosen.images, seed)[0]
    return Shifted((images[: chosen.trained], labels[: chosen.trained]), chosen.batch, chosen.shift)


def steps(setting: str, data: Shifted, length: float) -> int:
    """Of a training that is ``length`` times as long as usual."""
    return round(SETTINGS[setting].epochs * len(data) * length)


def make_model(
    setting: str, transform: dict[str, Any], width: float, seed: int, folder: Path, network: str = ""
) -> Path:
    """The file of a network, dense or transformed, before its training."""
    path = folder / "model.onnx"
    dense_network(SETTINGS[setting].images, path, width, seed, network)
    if transform:
        sift_onnx.transform(str(path), **transform, seed=seed).save(path, force=True)
    return path


def train_images(
    setting: str,
    transform: dict[str, Any],
    algorithm: str,
    width: float,
    length: float,
    rate: float,
    seed: int,
    part: str,
    device: str,
    network: str = "",
) -> float:
    """Accuracy in percent of a network that is made, transformed, trained and run by onnxruntime, all with one seed.

    Args:
        setting: a key of ``SETTINGS``.
        transform: arguments of :func:`sift_onnx.transform`; empty for the dense network.
        algorithm: ``static``, ``set`` or ``rigl``.
        width: of the dense network.
        length: of the training, as a share of the usual one.
        rate: learning rate.
        seed: of weights, masks, order of the images, and which of them are trained on.
        part: ``validation`` or ``test``.
        device: of the training.
        network: as :func:`image_sets.dense_network` takes it.
    """
    _, validation, test = splits(SETTINGS[setting].images, seed)
    data = batches(setting, seed)
    total = steps(setting, data, length)
    settings = TrainingSettings.of_recipe(
        {
            "steps": total,
            "optimizer": {"type": "sgd", "lr": rate, "momentum": 0.9, "nesterov": True, "weight_decay": 0.0005},
            "schedule": {"type": "cosine"},
            "sparsity": mask_recipe(setting, algorithm, transform.get("pattern"), total) if transform else None,
            "seed": seed,
            "log_every": 10_000,
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "trained.onnx"
        model = make_model(setting, transform, width, seed, Path(folder), network)
        train_file(model, out, {"train": data}, settings, device=device)
        return accuracy(out, test if part == "test" else validation)


def mask_recipe(setting: str, algorithm: str, pattern: str | None, total: int) -> dict[str, Any]:
    """The masks of the transformed model, evolving until three quarters of the ``total`` steps."""
    if algorithm == "static":
        return {"algorithm": "static", "sparsity": "masks", "param_filter": "*"}
    stop = total * 3 // 4
    within = {"pattern": pattern} if pattern else {}
    return {
        "algorithm": algorithm,
        "sparsity": "masks",
        "update": {"freq": SETTINGS[setting].update, "stop": stop},
        "drop_fraction": {"type": "cosine", "init": 0.3, "half_period": stop},
        "param_filter": "*",
        **within,
    }


@dataclass(frozen=True)
class Sizes:
    """Of a network, for one image.

    Attributes:
        macs: multiply-accumulates with active weights.
        dense_macs: with all weights.
        dense: share of ``macs`` in layers that stay dense.
    """

    macs: int
    dense_macs: int
    dense: float


def sizes(setting: str, transform: dict[str, Any], width: float, network: str = "") -> Sizes:
    """What a network computes.

    Raises:
        UnsupportedError: the transform does not apply to the network.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = make_model(setting, transform, width, 0, Path(folder), network)
        layers = sift_onnx.inspect(str(path)).to_dict()["layers"]
    macs = sum(layer["effective_macs"] for layer in layers)
    dense = sum(layer["effective_macs"] for layer in layers if layer["sparsity"] == 0)
    return Sizes(macs, sum(layer["macs"] for layer in layers), dense / macs)
