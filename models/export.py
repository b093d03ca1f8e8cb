"""Export of an architecture to an ONNX file."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from sift_onnx.errors import MissingExtraError, UnsupportedError, UsageError
from sift_onnx.model_files.paths import check_output
from sift_onnx.models.exporters import Batch, Exporter, check_axis, choose_opset
from sift_onnx.models.registry import build, find, require_torch

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Export", "export"]


@dataclass(frozen=True)
class Export:
    """What was written.

    Attributes:
        model: the architecture's name.
        file: path of the ONNX file.
        data: path of its external data file, where the model exceeds what one file can hold, or None.
        bytes: size of the file, or of both.
        parameters: learned values in it: weights, biases, and scales and shifts of normalizations that were kept;
            running statistics are not counted.
        nodes: nodes of the graph.
        opset: version of the default operator set.
        batch: size of the batch axis, or "dynamic".
        sequence: size of the sequence axis, or "dynamic"; None for a model that has none.
        exporter: which of torch's exporters traced the model.
    """

    model: str
    file: str
    data: str | None
    bytes: int
    parameters: int
    nodes: int
    opset: int
    batch: Batch
    sequence: Batch | None
    exporter: Exporter


def export(
    name: str,
    path: str | os.PathLike[str],
    *,
    width: float = 1.0,
    num_classes: int | None = None,
    batch: Batch = 1,
    sequence: Batch | None = None,
    layers: int | None = None,
    keep_batch_norm: bool = True,
    zero_init_residual: bool | None = None,
    exporter: Exporter = "torchscript",
    opset: int | None = None,
    seed: int = 0,
    force: bool = False,
) -> Export:
    """Build a freshly initialized model and write it to an ONNX file.

    The TorchScript exporter is the default, deprecated as it is: for these models it writes the fewest nodes, of
    operators that every ONNX tool has known for years (GlobalAveragePool, Flatten, Gemm, where dynamo writes
    ReduceMean and Reshape), names nodes after modules, and takes a tenth of the time. With either, initializers are
    named by the module's ``state_dict`` keys, none is shared by value, and the file carries no trace of the machine:
    the same arguments give the same bytes with the same torch. Where the model exceeds the 2 GB that one file can hold,
    weights go to ``<path>.data``.

    Args:
        name: a key of ``ARCHITECTURES``.
        path: the file to write; it appears when complete, an older one stays whole until then.
        width: factor on every hidden size; 1.0 is the published model, 0.5 has half the channels in every layer.
        num_classes: classes that the model tells apart, of a language model its vocabulary; the architecture's own by
            default.
        batch: size of the first axis of every input and output, or ``"dynamic"``.
        sequence: of language models, the number of tokens per item, or ``"dynamic"``. The default, and the most that a
            dynamic one takes, is that of the published model; more tokens make its table of positions longer.
        layers: of language models, how many there are; the architecture's own by default.
        keep_batch_norm: keep BatchNormalization nodes, in inference mode. Otherwise they are folded into the
            convolutions before them, which the model notes: from random weights it hardly trains without. A folded
            convolution ``c`` has its weight in ``c.weight`` and its bias in ``c.bias``.
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
        UnsupportedError: the weights do not fit into the memory of the machine.
    """
    architecture = find(name)
    version = choose_opset(exporter, opset)
    check_axis("batch", batch)
    if sequence is not None:
        check_axis("sequence", sequence)
        if "sequence" not in architecture.options:
            raise UsageError(f"{name} has no sequence axis")
    target = Path(path)
    check_output(target, force)
    require_torch()
    if exporter == "dynamo" and importlib.util.find_spec("onnxscript") is None:
        raise MissingExtraError(
            "onnxscript, which exporter='dynamo' needs, is not installed: pip install 'sift-onnx[train]'"
        )
    from sift_onnx.models.fold_batch_norm import fold_into_weights
    from sift_onnx.models.trace import to_onnx
    from sift_onnx.passes.base import record
    from sift_onnx.passes.batch_norm.fold_batch_norm import FoldBatchNorm

    if zero_init_residual is None and "zero_init_residual" in architecture.options:
        zero_init_residual = keep_batch_norm
    make = partial(
        build,
        name,
        width=width,
        num_classes=num_classes,
        seed=seed,
        layers=layers,
        sequence=None if sequence == "dynamic" else sequence,
        zero_init_residual=zero_init_residual,
    )
    # Before any memory is taken: a width of 30 is one keystroke away from one of 3.0, and takes 40 GB.
    _check_memory(name, make(device="meta"))
    module = make()
    folded = [] if keep_batch_norm else fold_into_weights(module)
    model = to_onnx(module, architecture, batch, exporter, version, sequence)
    if folded:
        record(model, FoldBatchNorm().identity(), folded=folded)
    model.save(target, force=force)
    data = _data_file(target, module)
    if "sequence" in architecture.options and sequence is None:
        sequence = architecture.input_shape[0]
    return Export(
        model=name,
        file=os.fspath(path),
        data=None if data is None else os.fspath(data),
        bytes=sum(file.stat().st_size for file in (target, data) if file is not None),
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        nodes=len(model.graph.nodes),
        opset=version,
        batch=batch,
        sequence=sequence,
        exporter=exporter,
    )


def _check_memory(name: str, module: nn.Module) -> None:
    if not hasattr(os, "sysconf"):
        return
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if _weight_bytes(module) >= memory:
        raise UnsupportedError(
            f"{name} at this width has {_weight_bytes(module) / 2**30:.1f} GiB of weights, and this machine "
            f"{memory / 2**30:.1f} GiB of memory: choose a smaller width"
        )


def _weight_bytes(module: nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def _data_file(path: Path, module: nn.Module) -> Path | None:
    """The external data file of a model, if it has one."""
    if path.stat().st_size >= _weight_bytes(module):
        return None
    graph = onnx.load(path, load_external_data=False).graph
    entries = (entry for tensor in graph.initializer for entry in tensor.external_data)
    return next(path.parent / entry.value for entry in entries if entry.key == "location")
