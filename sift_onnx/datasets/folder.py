"""Which data set a folder holds."""

from __future__ import annotations

from pathlib import Path

from sift_onnx.datasets.cifar import find_cifar
from sift_onnx.datasets.class_folders import find_class_folders
from sift_onnx.datasets.idx import find_idx
from sift_onnx.datasets.images import LabelledImages
from sift_onnx.errors import UsageError

__all__ = ["read_image_folder"]


def read_image_folder(folder: Path) -> LabelledImages:
    """Images of a folder with IDX files, with CIFAR's binary files, or with a folder for each class.

    Raises:
        UsageError: there is no such folder, or it holds none of these, or a file is damaged.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}")
    try:
        for find in (find_idx, find_cifar, find_class_folders):
            if (found := find(folder)) is not None:
                return found
    except OSError as error:
        raise UsageError(f"cannot read {folder}: {error.strerror or error}") from error
    raise UsageError(
        f"{folder} has no images: IDX files ('train-images-idx3-ubyte', also with .gz), CIFAR's binary files "
        "('data_batch_1.bin', 'train.bin'), or a folder of image files for each class, also in 'train' and 'val'"
    )
