"""Files that are taken for ONNX models, recognised by their first bytes."""

from __future__ import annotations

__all__ = ["other_format"]

# Where the bytes are, the bytes, what such a file is, and what to do.
_FORMATS = (
    (0, b"version https://git-lfs", "a pointer of Git LFS in place of the file; fetch it with git lfs pull"),
    (0, b"\x1f\x8b", "compressed with gzip; unpack it"),
    (0, b"PK\x03\x04", "a zip archive, as torch.save writes; export the model to ONNX, or unpack an archive"),
    (0, b"\x80", "a pickle, as older versions of torch.save write; export the model to ONNX"),
    (0, b"\x89HDF\r\n", "an HDF5 file, as Keras writes; convert the model to ONNX"),
    (4, b"TFL3", "a model of TensorFlow Lite; convert it to ONNX"),
    (4, b"ORTM", "in onnxruntime's ORT format; use the ONNX file that it was made of"),
    (8, b'{"', "weights without a graph (safetensors); export the model to ONNX"),
)
_PAGE = (b"<!doctype html", b"<html")


def other_format(content: bytes) -> str | None:
    """What a file that is not an ONNX model is, and what to do; None if it is nothing that is known.

    Args:
        content: of the file, at least its first bytes.
    """
    if content[:100].lstrip().lower().startswith(_PAGE):
        return "a web page; download the file itself"
    return next((text for at, start, text in _FORMATS if content[at : at + len(start)] == start), None)
