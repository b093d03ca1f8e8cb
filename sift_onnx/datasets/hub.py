"""Image data sets of Hugging Face's ``datasets``, where that is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sift_onnx.datasets.images import LabelledImages, resized_pixels
from sift_onnx.errors import MissingExtraError, UsageError
from sift_onnx.plugins import first_line

__all__ = ["read_hub_images"]

_HELD_OUT = ("validation", "valid", "val", "test")


def read_hub_images(spec: str) -> LabelledImages:
    """The images and labels of ``hf:NAME`` or ``hf:NAME:SPLIT``.

    Without a split, ``train`` is trained on and the first of ``validation`` and ``test`` is held out. A split is both
    what is trained on and all there is.

    Raises:
        MissingExtraError: ``datasets`` is not installed.
        UsageError: it has no such data set, or one without images and labels.
    """
    try:
        from datasets import Dataset, load_dataset
    except ImportError as error:
        raise MissingExtraError(
            f"`data` {spec!r} needs Hugging Face's datasets: pip install 'sift-onnx[images]' datasets"
        ) from error
    name, _, split = spec.removeprefix("hf:").partition(":")
    try:
        loaded = load_dataset(name, split=split or None)
    except Exception as error:  # of the network, the file system or the hub
        raise UsageError(f"`data` {spec!r}: datasets cannot load it: {first_line(error)}") from error
    if isinstance(loaded, Dataset):
        return LabelledImages(_HubImages(loaded, spec), None)
    train = "train" if "train" in loaded else next(iter(loaded))
    held_out = next((part for part in _HELD_OUT if part in loaded and part != train), None)
    return LabelledImages(
        _HubImages(loaded[train], spec), None if held_out is None else _HubImages(loaded[held_out], spec)
    )


class _HubImages:
    """A split; images are decoded when they are asked for."""

    def __init__(self, split: Any, spec: str) -> None:
        kinds = {name: type(feature).__name__ for name, feature in split.features.items()}
        image = next((name for name, kind in kinds.items() if kind == "Image"), None)
        label = next((name for name, kind in kinds.items() if kind == "ClassLabel"), None)
        if label is None and "label" in kinds:
            label = "label"
        if image is None or label is None:
            raise UsageError(
                f"`data` {spec!r} has {', '.join(f'{name} ({kind})' for name, kind in kinds.items())}, and an image "
                "with a label is needed; write FILE.py:FUNCTION"
            )
        self._split, self._image = split, image
        self._labels = np.asarray(split[label], np.int64)

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """``[images]``, from 0."""
        return self._labels

    @property
    def shape(self) -> None:
        """None: images may differ, and are resized."""

    def pixels(self, rows: npt.NDArray[np.int64], shape: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
        """See :class:`~sift_onnx.datasets.images.Images`."""
        return np.stack([resized_pixels(self._split[int(row)][self._image], shape) for row in rows])
