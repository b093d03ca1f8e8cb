"""A small network for scikit-learn's digits, and the images: what `make demo` trains.

python docs/demo/digits.py SEED...      # exports SEED/dense.onnx for each seed
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

__all__ = ["digits", "held_out", "network"]

TRAINED, BATCH, WIDTH = 600, 60, 3

Batch = tuple[torch.Tensor, torch.Tensor]


def network() -> torch.nn.Module:
    """Four convolutions with normalization, a mean over pixels, and a classifier."""
    widths = [1, WIDTH, 2 * WIDTH, 2 * WIDTH, 2 * WIDTH]
    layers: list[torch.nn.Module] = []
    for i, stride in enumerate((1, 2, 1, 1)):
        convolution = torch.nn.Conv2d(widths[i], widths[i + 1], 3, stride, padding=1, bias=False)
        layers += [convolution, torch.nn.BatchNorm2d(widths[i + 1]), torch.nn.ReLU()]
    return torch.nn.Sequential(
        *layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(widths[-1], 10)
    )


def digits(seed: int) -> dict[str, object]:
    """600 images to train on, chosen by ``seed``; and those that no training sees, for validation."""
    images, labels = _images()
    chosen = np.random.default_rng((seed, 1)).permutation(len(labels) // 2)[:TRAINED]
    return {"train": Shifted(images[chosen], labels[chosen]), "validation": held_out()}


def held_out() -> list[Batch]:
    """The second half of the images, 899 of 1,797, as one batch."""
    images, labels = _images()
    half = len(labels) // 2
    return [(images[half:], labels[half:])]


class Shifted:
    """Batches in a new order in each epoch, every image shifted by up to one pixel."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Images ``[N, 1, 8, 8]`` and labels ``[N]``."""
        self._padded, self._labels = torch.nn.functional.pad(images, (1,) * 4), labels

    def __len__(self) -> int:
        return len(self._labels) // BATCH

    def __iter__(self) -> Iterator[Batch]:
        pixels = torch.arange(8)
        for chosen in torch.randperm(len(self._labels)).split(BATCH)[: len(self)]:
            down, right = torch.randint(0, 3, (2, len(chosen), 1))
            rows, columns = (pixels + down)[:, :, None], (pixels + right)[:, None, :]
            yield self._padded[chosen[:, None, None], 0, rows, columns][:, None], self._labels[chosen]


def _images() -> Batch:
    """1,797 images ``[N, 1, 8, 8]`` from 0 to 1 in an order of their own, and their labels."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = torch.from_numpy(data.images[order]).float()[:, None] / 16
    return images, torch.from_numpy(data.target[order]).long()


def main() -> None:
    """Export the network, with random weights, once for each seed."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    warnings.simplefilter("ignore", FutureWarning)  # of torch about itself
    for seed in sys.argv[1:]:
        torch.manual_seed(int(seed))
        path = Path(seed) / "dense.onnx"
        path.parent.mkdir(exist_ok=True)
        # Without optimization the exporter leaves normalizations where they are, so that the model can be trained.
        torch.onnx.export(
            network().eval(), (torch.zeros(1, 1, 8, 8),), str(path), input_names=["image"], output_names=["scores"],
            dynamic_shapes=({0: torch.export.Dim("n")},), dynamo=True, optimize=False, external_data=False,
            verbose=False,
        )  # fmt: skip
        print(path)


if __name__ == "__main__":
    main()
