"""CIFAR-10 and CIFAR-100 in the binary version; the format: cs.toronto.edu/~kriz/cifar.html."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sift_onnx.datasets.images import ImagesInMemory, LabelledImages
from sift_onnx.errors import UsageError

__all__ = ["find_cifar"]

_SHAPE = (3, 32, 32)


def find_cifar(folder: Path) -> LabelledImages | None:
    """The images of a folder with CIFAR's files; None if it has none.

    CIFAR-100 has its 100 fine labels.

    Raises:
        UsageError: it has the pickled version, or a file cannot be read.
    """
    ten = sorted(folder.glob("data_batch_*.bin"))
    if ten:
        return LabelledImages(_read(ten, 1), _held_out(folder / "test_batch.bin", 1))
    if (folder / "train.bin").exists():
        return LabelledImages(_read([folder / "train.bin"], 2), _held_out(folder / "test.bin", 2))
    if (folder / "data_batch_1").exists() or ((folder / "train").is_file() and (folder / "meta").exists()):
        raise UsageError(f"{folder} has pickled files, which are not loaded; take CIFAR's binary version")
    return None


def _held_out(path: Path, labels: int) -> ImagesInMemory | None:
    return _read([path], labels) if path.exists() else None


def _read(files: list[Path], labels: int) -> ImagesInMemory:
    record = labels + int(np.prod(_SHAPE))
    parts = []
    for path in files:
        try:
            data = np.frombuffer(path.read_bytes(), np.uint8)
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
        if not data.size or data.size % record:
            raise UsageError(f"{path} is cut off or damaged: {data.size} bytes are not a multiple of {record}")
        parts.append(data.reshape(-1, record))
    records = np.concatenate(parts)
    # Of two labels, the second is the fine one.
    pixels = np.ascontiguousarray(records[:, labels:]).reshape(-1, *_SHAPE)
    return ImagesInMemory(pixels, records[:, labels - 1].astype(np.int64), str(files[0].parent))
