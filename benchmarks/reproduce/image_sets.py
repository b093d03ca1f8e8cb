"""Images, and the dense networks for them.

`digits`: scikit-learn's digits and the network of `../training/digits_data.py`. `fashion-mnist`: that, or another
folder of IDX files of 28x28, shrunk to 14x14 by means of 2x2 pixels, and a residual network of one block in each stage
(ResNet-10). `own`: images of your own in one `.npz` (``input``, ``target``, and the same with ``val_`` and ``test_``),
64x64, and ResNet-18 with the stem for small images.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import torch
from torch import nn

from sift_onnx.datasets.folder import read_image_folder
from sift_onnx.errors import UsageError
from sift_onnx.models.export import export
from sift_onnx.models.registry import Architecture
from sift_onnx.models.resnet import BasicBlock, ResNet, initialize_residual
from sift_onnx.models.trace import to_onnx

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from digits_data import Examples, network, split, test_set

__all__ = ["FASHION_MNIST", "IMAGES", "check_images", "dense_network", "splits"]

# Where the standard and the large setting find their images; run.py sets it from --data.
IMAGES = "SIFT_REPRODUCE_IMAGES"
# Where Debian's package of this name puts them.
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
CLASSES = 10
_VALIDATION = 10_000


def splits(images: str, seed: int) -> tuple[Examples, Examples, Examples]:
    """To train on, for validation, to test on; but of one's own, the first two are drawn by seed."""
    if images == "digits":
        return *split(seed), test_set()
    if images == "fashion-mnist":
        (pixels, labels), test = _shrunk(os.environ.get(IMAGES, str(FASHION_MNIST)))
        order = torch.from_numpy(np.random.default_rng((seed, 1)).permutation(len(labels)))
        train, validation = order[_VALIDATION:], order[:_VALIDATION]
        return (pixels[train], labels[train]), (pixels[validation], labels[validation]), test
    with np.load(os.environ[IMAGES]) as file:
        found = [
            (torch.from_numpy(file[f"{part}input"]).float(), torch.from_numpy(file[f"{part}target"]).long())
            for part in ("", "val_", "test_")
        ]
    return found[0], found[1], found[2]


def check_images(images: str) -> None:
    """Stop where images are not there, and say how to get them."""
    if images == "own" and IMAGES not in os.environ:
        raise click.ClickException("the large setting needs images: --data FILE.npz")
    if images == "fashion-mnist":
        try:
            splits(images, 0)
        except UsageError as error:
            raise click.ClickException(
                f"{error}. The standard setting needs Fashion-MNIST: `apt-get install dataset-fashion-mnist`, or, "
                "without installing, `apt-get download dataset-fashion-mnist && dpkg -x dataset-fashion-mnist_*.deb "
                "DIR` and --data DIR/usr/share/datasets/fashion-mnist (make reproduce DATA=...); any other folder of "
                "IDX files of 28x28 will do"
            ) from error


@functools.cache
def _shrunk(folder: str) -> tuple[Examples, Examples]:
    """Images ``[N, 1, 14, 14]`` of mean 0 and spread 1, to train and to test on."""
    found = read_image_folder(Path(folder))
    if found.held_out is None:
        raise UsageError(f"{folder} has no images to test on")
    parts = []
    for part in (found.train, found.held_out):
        pixels = part.pixels(np.arange(len(part.labels)), (1, 28, 28))
        images = torch.from_numpy(np.array(pixels)).float() / 255
        parts.append((nn.functional.avg_pool2d(images, 2), torch.from_numpy(part.labels)))
    mean, spread = parts[0][0].mean(), parts[0][0].std()
    train, test = (((images - mean) / spread, labels) for images, labels in parts)
    return train, test


def dense_network(images: str, path: Path, width: float, seed: int) -> None:
    """Write the dense network for images, freshly initialized.

    Args:
        images: their name.
        path: of the file.
        width: channels; for images of one's own, a factor on them.
        seed: of the weights.
    """
    if images == "digits":
        network(path, round(width), seed)
    elif images == "fashion-mnist":
        _resnet10(path, round(width), seed)
    else:
        _resnet18(path, width, seed, splits(images, 0)[0])


def _resnet10(path: Path, width: int, seed: int) -> None:
    """Stages of one block each, of ``width`` to ``8 * width`` channels, on gray images of 14x14."""
    architecture = Architecture(
        "resnet10", "ResNet-10, stem 3x3 for gray images", "-", (1, 14, 14), CLASSES, "benchmarks.reproduce"
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = ResNet(BasicBlock, (1, 1, 1, 1), num_classes=CLASSES, base_width=width, stem="cifar")
        module.conv1 = nn.Conv2d(1, width, kernel_size=3, padding=1, bias=False)
        initialize_residual(module, zero_init_residual=True)
    to_onnx(module.eval(), architecture, "dynamic", "torchscript", 17).save(path, force=True)


def _resnet18(path: Path, width: float, seed: int, examples: Examples) -> None:
    images, labels = examples
    classes = int(labels.max()) + 1
    export("resnet18-cifar", path, width=width, num_classes=classes, batch="dynamic", seed=seed)
    model: Any = onnx.load(path)
    for axis, size in zip(model.graph.input[0].type.tensor_type.shape.dim[2:], images.shape[2:], strict=True):
        axis.dim_value = size
    del model.graph.value_info[:]
    onnx.save(model, path)
