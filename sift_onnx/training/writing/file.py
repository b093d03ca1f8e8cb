"""Write-back from a file to a file, with the bytes of the original wherever nothing changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
import torch
from google.protobuf.message import DecodeError
from torch import nn

from sift_onnx.files.atomic import atomic_file
from sift_onnx.files.external_data import external_tensors
from sift_onnx.model_files.paths import check_output
from sift_onnx.model_files.writer import PROTOBUF_LIMIT
from sift_onnx.passes.prepare.inference_mode import InferenceMode
from sift_onnx.training.writing.model import write_back

__all__ = ["write_back_file"]


def write_back_file(
    source: str | Path, module: nn.Module | Mapping[str, torch.Tensor], target: str | Path, *, force: bool = False
) -> None:
    """Write the model in ``source``, with the module's tensors in it, to ``target``.

    The order of a file's fields is that of its writer, an exporter or :meth:`Model.save`; it is kept, and with it
    sparse storage. An untrained module gives a copy of ``source``, byte for byte. External data of ``source``, and
    a model that was in training mode, go where :meth:`Model.save` puts them.

    Args:
        source: the file that the module was made from.
        module: see :func:`~sift_onnx.training.writing.model`.
        target: replaced only once the new file is complete.
        force: replace an existing file.

    Raises:
        OutputError: the file exists and ``force`` is off, or it cannot be written.
        SiftError: see :func:`~sift_onnx.training.writing.model`.
    """
    source, target = Path(source), Path(target)
    check_output(target, force)
    proto = _parsed(source)
    if proto is None or not _is_order_of_protobuf(proto, source) or InferenceMode()(proto).changed:
        sparse = proto is not None and bool(proto.graph.sparse_initializer)
        write_back(source, module).save(target, storage="sparse" if sparse else "dense", force=force)
        return
    patched = write_back(proto, module).SerializeToString()
    with atomic_file(target) as file:
        file.write(patched)


def _parsed(path: Path) -> onnx.ModelProto | None:
    """The model as one message; None if it is not one, or is too large: Model.load has a say in that."""
    try:
        if not path.is_file() or path.stat().st_size >= PROTOBUF_LIMIT:
            return None
        return onnx.ModelProto.FromString(path.read_bytes())
    except (DecodeError, OSError):
        return None


def _is_order_of_protobuf(proto: onnx.ModelProto, path: Path) -> bool:
    outside = any(True for _ in external_tensors(proto))
    return not outside and proto.SerializeToString() == path.read_bytes()
