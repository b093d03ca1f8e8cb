"""Images, and which networks are for them.

`digits`: scikit-learn's digits and the network of `../training/digits_data.py`. `fashion-mnist`: that, or another
folder of IDX files of 28x28, shrunk to 14x14 by means of 2x2 pixels, and networks of few blocks.
`fashion-mnist-full`: the same in full size, and ResNet-18. `own`: images of your own in one `.npz` (``input``,
``target``, and the same with ``val_`` and ``test_``), 64x64, and networks of the usual depth.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import click
import numpy as np
import torch
from networks import write_network
from torch import nn

from sift_onnx.datasets.folder import read_image_folder
from sift_onnx.errors import UsageError

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from digits_data import Examples, split, test_set
from digits_data import network as digits_network

__all__ = ["FASHION_MNIST", "IMAGES", "check_images", "dense_network", "splits"]

# Where all settings but the small one find their images; run.py sets it from --data.
IMAGES = "SIFT_REPRODUCE_IMAGES"
# Where Debian's package of this name puts them.
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
CLASSES = 10
# Pixels along each axis whose mean is a pixel of the images that are trained on.
_SHRUNK = {"fashion-mnist": 2, "fashion-mnist-full": 1}
_VALIDATION = 10_000


def splits(images: str, seed: int) -> tuple[Examples, Examples, Examples]:
    """To train on, for validation, to test on; but of one's own, the first two are drawn by seed."""
    if images == "digits":
        return *split(seed), test_set()
    if images in _SHRUNK:
        (pixels, labels), test = _fashion_mnist(os.environ.get(IMAGES, str(FASHION_MNIST)), _SHRUNK[images])
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
    if images in _SHRUNK:
        try:
            splits(images, 0)
        except UsageError as error:
            raise click.ClickException(
                f"{error}. This setting needs Fashion-MNIST: `apt-get install dataset-fashion-mnist`, or, "
                "without installing, `apt-get download dataset-fashion-mnist && dpkg -x dataset-fashion-mnist_*.deb "
                "DIR` and --data DIR/usr/share/datasets/fashion-mnist (make reproduce DATA=...); any other folder of "
                "IDX files of 28x28 will do"
            ) from error


@functools.cache
def _fashion_mnist(folder: str, shrunk: int) -> tuple[Examples, Examples]:
    """Images ``[N, 1, 28 / shrunk, 28 / shrunk]`` of mean 0 and spread 1, to train and to test on."""
    found = read_image_folder(Path(folder))
    if found.held_out is None:
        raise UsageError(f"{folder} has no images to test on")
    parts = []
    for part in (found.train, found.held_out):
        pixels = part.pixels(np.arange(len(part.labels)), (1, 28, 28))
        images = torch.from_numpy(np.array(pixels)).float() / 255
        parts.append((nn.functional.avg_pool2d(images, shrunk), torch.from_numpy(part.labels)))
    mean, spread = parts[0][0].mean(), parts[0][0].std()
    train, test = (((images - mean) / spread, labels) for images, labels in parts)
    return train, test


def dense_network(images: str, path: Path, width: float, seed: int, network: str = "") -> None:
    """Write a dense network for images, freshly initialized.

    Args:
        images: their name.
        path: of the file.
        width: channels of the first stage; for images of one's own, a factor on the published ones.
        seed: of the weights.
        network: a key of ``NETWORKS``; empty for ResNet-10 where images are shrunk, else ResNet-18. There is one
            network for digits.
    """
    if images == "digits":
        digits_network(path, round(width), seed)
    elif images in _SHRUNK:
        size = 28 // _SHRUNK[images]
        chosen = network or ("resnet10" if size < 28 else "resnet18")
        write_network(chosen, path, round(width), seed, (1, size, size), CLASSES)
    else:
        pixels, labels = splits(images, 0)[0]
        shape = (pixels.shape[1], pixels.shape[2], pixels.shape[3])
        write_network(network or "resnet18", path, width, seed, shape, int(labels.max()) + 1, deep=True)
