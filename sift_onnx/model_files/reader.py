"""A model file without the data of its large tensors, which stays in the file until it is asked for."""

from __future__ import annotations

from pathlib import Path

from sift_onnx.files.file_bytes import FileBytes, FileSlice
from sift_onnx.files.wire import Place, cut_out_data

__all__ = ["read_content"]

# A smaller file is read whole, and not kept open.
_KEPT_OPEN_FROM = 1 << 20


def read_content(path: Path, at_least: int) -> tuple[bytes, dict[Place, memoryview | FileSlice]]:
    """The serialized model that ``path`` holds, without the data of its large initializers.

    Args:
        path: a file, or a pipe.
        at_least: size in bytes from which data is left out.

    Returns:
        The serialized model, and what was left out, see :func:`~sift_onnx.files.wire.cut_out_data`. A file that is
        damaged or unusual is read whole.

    Raises:
        OSError: it cannot be read.
    """
    if path.is_file() and path.stat().st_size >= _KEPT_OPEN_FROM:
        file = FileBytes(path)
        content, cut = cut_out_data(file.map(), at_least)
        failure = f"cannot read the data of its initializers from {path}"
        return content, {place: FileSlice(file, r.start, len(r), failure) for place, r in cut.items()}
    data = path.read_bytes()
    content, cut = cut_out_data(data, at_least)
    return content, {place: memoryview(data)[r.start : r.stop] for place, r in cut.items()}
