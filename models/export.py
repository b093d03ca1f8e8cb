"""Export of an architecture to one ONNX file."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sift_onnx.errors import MissingExtraError, UnsupportedError, UsageError
from sift_onnx.models.registry import build, find, require_torch
from sift_onnx.storage import PROTOBUF_LIMIT, atomic_file, check_output

if TYPE_CHECKING:
    from torch import nn

__all__ = ["DEFAULT_OPSETS", "OPSETS", "Batch", "Export", "Exporter", "export"]

Batch = int | Literal["dynamic"]
Exporter = Literal["dynamo", "torchscript"]

# Opsets that each of torch's exporters writes without going through a version converter.
OPSETS = {"torchscript": range(13, 21), "dynamo": range(18, 24)}
DEFAULT_OPSETS = {"torchscript": 17, "dynamo": 20}


@dataclass(frozen=True)
class Export:
    """What was written.

    Attributes:
        model: the architecture's name.
        file: path of the ONNX file.
        bytes: its size.
        parameters: learned values in it: weights, biases, and scales and shifts of normalizations that were kept;
            running statistics are not counted.
        nodes: nodes of the graph.
        opset: version of the default operator set.
        batch: size of the batch axis, or "dynamic".
        exporter: which of torch's exporters traced the model.
    """

    model: str
    file: str
    bytes: int
    parameters: int
    nodes: int
    opset: int
    batch: Batch
    exporter: Exporter


def export(
    name: str,
    path: str | os.PathLike[str],
    *,
    width: float = 1.0,
    num_classes: int | None = None,
    batch: Batch = 1,
    keep_batch_norm: bool = False,
    zero_init_residual: bool | None = None,
    exporter: Exporter = "torchscript",
    opset: int | None = None,
    seed: int = 0,
    force: bool = False,
) -> Export:
    """Build a freshly initialized model and write it to one ONNX file.

    The TorchScript exporter is the default, deprecated as it is: for these models it writes the fewest nodes, of
    operators that every ONNX tool has known for years (GlobalAveragePool, Flatten, Gemm, where dynamo writes
    ReduceMean and Reshape), names nodes after modules, and takes a tenth of the time. With either, initializers are
    named by the module's ``state_dict`` keys, none is shared by value, and the file carries no trace of the machine:
    the same arguments give the same bytes with the same torch.

    Args:
        name: a key of ``ARCHITECTURES``.
        path: the file to write; it appears when complete, an older one stays whole until then.
        width: factor on every hidden size; 1.0 is the published model, 0.5 has half the channels in every layer.
        num_classes: size of the last axis of the output; the architecture's own by default.
        batch: size of the first axis of every input and output, or ``"dynamic"``.
        keep_batch_norm: keep BatchNormalization nodes (in inference mode) instead of folding them into the
            convolutions before them; for models that are going to be trained. A folded convolution ``c`` has its
            weight in ``c.weight`` and its bias in ``c.bias``.
        zero_init_residual: start residual branches at zero (App. B.2); only where the architecture has them. By
            default that follows ``keep_batch_norm``, since folding a scale of 0 would leave convolutions whose
            weights are all 0.
        exporter: ``"torchscript"`` or ``"dynamo"`` (which needs onnxscript).
        opset: version of the default operator set; 17 with TorchScript and 20 with dynamo by default.
        seed: seed of the initial weights.
        force: overwrite an existing file.

    Raises:
        UsageError: an unknown name, or an argument out of range.
        OutputError: the file exists and ``force`` is off, or it cannot be written; the former before any work is done.
        MissingExtraError: torch, or onnxscript for ``"dynamo"``, is not installed.
        UnsupportedError: the model does not fit in one file, that is in 2 GB.
    """
    architecture = find(name)
    version = _opset(exporter, opset)
    if batch != "dynamic" and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise UsageError(f"batch must be a positive number or 'dynamic', not {batch!r}")
    target = Path(path)
    check_output(target, force)
    require_torch()
    if exporter == "dynamo" and importlib.util.find_spec("onnxscript") is None:
        raise MissingExtraError(
            "onnxscript, which exporter='dynamo' needs, is not installed: pip install 'sift-onnx[train]'"
        )
    from sift_onnx.models import fold_batch_norm, trace

    if zero_init_residual is None and "zero_init_residual" in architecture.options:
        zero_init_residual = keep_batch_norm
    make = partial(build, name, width=width, num_classes=num_classes, seed=seed, zero_init_residual=zero_init_residual)
    # Before any memory is taken: a width of 30 is one keystroke away from one of 3.0, and takes 40 GB.
    _check_size(name, make(device="meta"))
    module = make()
    if not keep_batch_norm:
        fold_batch_norm.fold_batch_norm(module)
    proto = trace.to_onnx(module, architecture, batch, exporter, version)
    with atomic_file(target) as file:
        size = file.write(proto.SerializeToString(deterministic=True))
    return Export(
        model=name,
        file=os.fspath(path),
        bytes=size,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        nodes=len(proto.graph.node),
        opset=version,
        batch=batch,
        exporter=exporter,
    )


def _opset(exporter: str, opset: int | None) -> int:
    if exporter not in OPSETS:
        raise UsageError(f"exporter must be {' or '.join(OPSETS)}, not {exporter!r}")
    if opset is None:
        return DEFAULT_OPSETS[exporter]
    known = OPSETS[exporter]
    if opset not in known:
        raise UsageError(f"the {exporter} exporter writes opsets {known[0]} to {known[-1]}, not {opset}")
    return opset


def _check_size(name: str, module: nn.Module) -> None:
    size = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
    if size >= PROTOBUF_LIMIT:
        raise UnsupportedError(
            f"{name} at this width has {size / 2**30:.1f} GiB of weights; one ONNX file holds 2: choose a smaller width"
        )
