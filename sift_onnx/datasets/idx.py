"""IDX files, in which MNIST, Fashion-MNIST, EMNIST and KMNIST are published; the format: yann.lecun.com/exdb/mnist."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sift_onnx.datasets.images import ImagesInMemory, LabelledImages
from sift_onnx.errors import UsageError

__all__ = ["find_idx", "read_idx"]

_UNSIGNED_BYTES = 8


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """The array of a file, which may be compressed by gzip.

    Raises:
        UsageError: the file cannot be read, is not an IDX file of unsigned bytes, or is cut off.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(4)
            if len(head) < 4 or head[:2] != b"\0\0" or head[2] != _UNSIGNED_BYTES or not head[3]:
                raise UsageError(f"{path} is not an IDX file of unsigned bytes")
            sizes = file.read(4 * head[3])
            shape = struct.unpack(f">{len(sizes) // 4}I", sizes[: len(sizes) // 4 * 4])
            # Not more than the file has is read: sizes of a damaged file may be anything.
            data = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    if len(shape) != head[3] or len(data) != math.prod(shape):
        raise UsageError(f"{path} is cut off or damaged: {len(data)} bytes for an array of {list(shape)}")
    return np.frombuffer(data, np.uint8).reshape(shape)


def find_idx(folder: Path) -> LabelledImages | None:
    """The images of a folder's IDX files; None if it has none.

    Files are told by ``images``, ``labels``, ``train``, ``t10k`` and ``test`` in their names, as published.

    Raises:
        UsageError: it has several for one part, or labels are missing.
    """
    files = sorted(path for path in folder.iterdir() if "images" in path.name and "idx3-ubyte" in path.name)
    if not files:
        return None
    train = _part(folder, [path for path in files if "train" in path.name], "train")
    if train is None:
        raise UsageError(f"{folder} has no IDX file with 'train' and 'images' in its name; it has {files[0].name}")
    return LabelledImages(train, _part(folder, [p for p in files if "t10k" in p.name or "test" in p.name], "test"))


def _part(folder: Path, files: list[Path], part: str) -> ImagesInMemory | None:
    if len(files) > 1:
        names = " and ".join(path.name for path in files[:2])
        raise UsageError(f"{folder}: {names} are both images of the {part} part; keep one data set in a folder")
    if not files:
        return None
    (path,) = files
    beside = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
    if not beside.exists():
        raise UsageError(f"{beside} is missing, with the labels of {path.name}")
    pixels, labels = read_idx(path), read_idx(beside)
    if pixels.ndim != 3 or labels.ndim != 1:
        raise UsageError(
            f"{path} and {beside.name} are arrays of {pixels.ndim} and {labels.ndim} axes; images have 3, labels 1"
        )
    return ImagesInMemory(pixels[:, None], labels.astype(np.int64), str(path))
