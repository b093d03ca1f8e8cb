"""Random changes of images to train on, by torchvision."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sift_onnx.datasets.examples import Augment
from sift_onnx.errors import MissingExtraError
from sift_onnx.plugins import first_line
from sift_onnx.training.trainer.settings import Augmentation

__all__ = ["make_augment"]

# Of a side, on each of its ends: 4 pixels of 32, as is usual for CIFAR.
_SHIFT = 1 / 8


def make_augment(name: Augmentation) -> Augment | None:
    """A function that augments pixels ``[images, channels, height, width]``; None for ``none``.

    It draws from torch's generator, for each image anew.

    Raises:
        MissingExtraError: torchvision is not installed.
    """
    if name == "none":
        return None
    try:
        from torchvision.transforms import v2
    except ImportError as error:
        raise MissingExtraError(
            f"`augment={name!r}` needs torchvision: pip install torchvision, or drop the setting"
        ) from error
    except RuntimeError as error:  # of its operators
        raise MissingExtraError(
            f"`augment={name!r}`: the installed torchvision is not of this torch ({first_line(error)}); "
            f"install the one that belongs to torch {torch.__version__}"
        ) from error

    def augment(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        height, width = pixels.shape[2:]
        steps: list[Any] = (
            [v2.RandomResizedCrop((height, width), antialias=True)]
            if name == "resized-crop-flip"
            else [v2.RandomCrop((height, width), padding=[round(width * _SHIFT), round(height * _SHIFT)])]
        )
        steps += [v2.RandomHorizontalFlip()] if name.endswith("flip") else []
        change = v2.Compose(steps)
        # One by one: a transform of a batch draws once for all of it.
        changed = torch.stack([change(image) for image in torch.from_numpy(np.array(pixels))])
        return np.asarray(changed.numpy(), np.uint8)

    return augment
