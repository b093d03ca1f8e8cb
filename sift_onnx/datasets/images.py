"""Labelled images: pixels as bytes, in memory or in files that are decoded when they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from sift_onnx.errors import UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Images", "ImagesInFiles", "ImagesInMemory", "LabelledImages", "resized_pixels"]

# A model for 224 pixels is evaluated on the middle of images whose short side has 256, as torchvision does.
_MARGIN = 256 / 224


class Images(Protocol):
    """Images and the class of each."""

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """``[images]``, from 0."""

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """Channels, height and width; None if images may differ and are resized."""

    def pixels(self, rows: npt.NDArray[np.int64], shape: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
        """Images ``rows`` as ``[rows, *shape]``.

        Args:
            rows: which images.
            shape: channels, height and width that a model takes.

        Raises:
            UsageError: images cannot be brought to this shape, or a file cannot be read.
        """


@dataclass(frozen=True)
class LabelledImages:
    """A data set.

    Attributes:
        train: images to train on.
        held_out: images that are not trained on; None if the folder has no such part.
    """

    train: Images
    held_out: Images | None


class ImagesInMemory:
    """Images of one size.

    Args:
        pixels: ``[images, channels, height, width]``.
        labels: ``[images]``.
        where: what error messages call them.
    """

    def __init__(self, pixels: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], where: str) -> None:
        if len(pixels) != len(labels):
            raise UsageError(f"{where}: {len(pixels)} images have {len(labels)} labels; take both of one data set")
        self._pixels, self._labels, self._where = pixels, labels, where

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """``[images]``, from 0."""
        return self._labels

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        channels, height, width = self._pixels.shape[1:]
        return channels, height, width

    def pixels(self, rows: npt.NDArray[np.int64], shape: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
        """See :class:`Images`; images are not resized, and gray ones are repeated for models of three channels."""
        if self.shape != shape and self.shape != (1, *shape[1:]):
            raise UsageError(
                f"{self._where}: images are {list(self.shape)}, channels, height and width, and the model "
                f"takes {list(shape)}; export the model for this size, or write FILE.py:FUNCTION that resizes"
            )
        return np.broadcast_to(self._pixels[rows], (len(rows), *shape))


class ImagesInFiles:
    """Files of any size, decoded by Pillow.

    Args:
        files: one for each image.
        labels: ``[images]``.
    """

    def __init__(self, files: list[Path], labels: npt.NDArray[np.int64]) -> None:
        self._files, self._labels = files, labels

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """``[images]``, from 0."""
        return self._labels

    @property
    def shape(self) -> None:
        """None: images may differ, and are resized."""

    def pixels(self, rows: npt.NDArray[np.int64], shape: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
        """See :class:`Images`: the short side is resized, and the middle cut out."""
        _check_channels(shape[0])
        found = np.empty((len(rows), *shape), np.uint8)
        for image, row in zip(found, rows, strict=True):
            image[:] = self._decoded(self._files[row], shape)
        return found

    def _decoded(self, file: Path, shape: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
        try:
            from PIL import Image
        except ImportError as error:
            raise UsageError("folders of image files need Pillow: pip install pillow") from error
        channels = shape[0]
        try:
            with Image.open(file) as opened:
                image = opened.convert("L" if channels == 1 else "RGB")
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise UsageError(f"{file}: {error}; take the file out of the data set") from error
        return resized_pixels(image, shape)


def resized_pixels(image: Image, shape: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
    """Pixels of an image as ``shape``, channels, height and width: the short side is resized, the middle cut out."""
    from PIL import Image

    channels, height, width = shape
    _check_channels(channels)
    image = image.convert("L" if channels == 1 else "RGB")
    scale = _MARGIN * max(height / image.height, width / image.width)
    if image.size != (width, height):
        size = [max(side, round(old * scale)) for side, old in ((width, image.width), (height, image.height))]
        image = image.resize((size[0], size[1]), Image.Resampling.BILINEAR)
        left, top = (size[0] - width) // 2, (size[1] - height) // 2
        image = image.crop((left, top, left + width, top + height))
    array = np.asarray(image, np.uint8).reshape(height, width, channels)
    return array.transpose(2, 0, 1)


def _check_channels(channels: int) -> None:
    if channels not in (1, 3):
        raise UsageError(f"image files have 1 or 3 channels, the model takes {channels}; write FILE.py:FUNCTION")
