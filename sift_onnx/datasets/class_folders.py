"""A folder of image files for each class, as ImageNet is unpacked."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sift_onnx.datasets.images import ImagesInFiles, LabelledImages
from sift_onnx.errors import UsageError

__all__ = ["find_class_folders"]

_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
_HELD_OUT = ("val", "validation", "valid", "test")


def find_class_folders(folder: Path) -> LabelledImages | None:
    """The images of a folder whose folders are classes, or of its ``train`` and ``val``; None if it has none.

    Classes are numbered in the alphabetical order of their folders' names.

    Raises:
        UsageError: the held-out part has a class that the training part does not have.
    """
    train = folder / "train" if (folder / "train").is_dir() else folder
    held_out = next((folder / name for name in _HELD_OUT if train != folder and (folder / name).is_dir()), None)
    classes = {path.name: number for number, path in enumerate(p for p in _folders(train) if any(_files(p)))}
    if not classes:
        return None
    return LabelledImages(_read(train, classes), None if held_out is None else _read(held_out, classes))


def _read(folder: Path, classes: dict[str, int]) -> ImagesInFiles:
    files: list[Path] = []
    labels: list[int] = []
    for path in _folders(folder):
        found = _files(path)
        if found and path.name not in classes:
            raise UsageError(f"{path}: no image to train on is of class {path.name!r}")
        files += found
        labels += [classes.get(path.name, 0)] * len(found)
    if not files:
        raise UsageError(f"{folder} has no folder with image files")
    return ImagesInFiles(files, np.array(labels, np.int64))


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file())
