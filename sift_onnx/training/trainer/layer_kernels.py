"""Which kernels compute the masked layers of a training: sparse ones or torch's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sift_onnx.errors import UsageError, listing
from sift_onnx.records.train import Kernels, LayerKernels
from sift_onnx.training.module import ImportedModule
from sift_onnx.training.sparse import SparsityAlgorithm
from sift_onnx.training.sparse_layers.choices import LayerChoice
from sift_onnx.training.sparse_layers.sparsify import sparsify_layers
from sift_onnx.training.trainer.process_group import Ranks
from sift_onnx.training.trainer.settings import KernelSetting
from sift_onnx.training.trainer.sparsity import changes_counts

__all__ = ["choose_kernels", "kernels_summary"]


def kernels_summary(kernels: Kernels) -> str:
    """How many layers run on sparse kernels, and why others do not."""
    dense = [layer for layer in kernels.layers if layer.kernels == "dense"]
    total = len(kernels.layers)
    if not dense:
        return f"{'the masked layer runs' if total == 1 else f'all {total} masked layers run'} on sparse kernels"
    if len(dense) == total and len({layer.reason for layer in dense}) == 1:
        return f"no masked layer runs on sparse kernels: {dense[0].reason}"
    named = listing([f"{layer.name} ({layer.reason})" for layer in dense])
    return f"{total - len(dense)} of {total} masked layers run on sparse kernels; dense: {named}"


def choose_kernels(
    module: ImportedModule,
    optimizer: torch.optim.Optimizer,
    algorithm: SparsityAlgorithm | None,
    setting: KernelSetting,
    ranks: Ranks,
    *,
    batch_size: int,
    is_sharded: bool,
    saved: Mapping[str, Any] | None,
) -> Kernels:
    """Give the masked layers of a model their kernels.

    Args:
        module: the model; its layers are replaced.
        optimizer: over its parameters.
        algorithm: attached to both; None if nothing is masked.
        setting: of the training.
        ranks: that train together; all of them get what the first one chooses.
        batch_size: of one rank's step.
        is_sharded: whether they share out the parameters.
        saved: the kernels of the run that is resumed, as its checkpoint has them. Layers get the same kernels if the
            setting is the same, since the other kernels round otherwise.

    Raises:
        UsageError: sparse kernels are asked for where there are none.
    """
    masked = [] if algorithm is None else list(algorithm.masks())
    obstacle = None
    if ranks.device.type != "cpu":
        obstacle = f"sparse kernels run on the CPU, and the training is on {ranks.device}"
    elif is_sharded:
        obstacle = "sparse kernels do not go with parallelism fsdp2"
    elif ranks.size > 1 and algorithm is not None and changes_counts(algorithm):
        obstacle = "the number of active weights changes, which DistributedDataParallel cannot follow"
    if setting == "sparse" and obstacle is not None:
        raise UsageError(f"kernels sparse: {obstacle}; choose kernels auto or dense")
    if not masked or setting == "dense" or obstacle is not None:
        reason = obstacle if setting != "dense" and obstacle is not None else "kernels dense"
        layers = [LayerKernels(name=name, kernels="dense", reason=reason) for name in masked]
        return Kernels(setting=setting, layers=tuple(layers))
    if saved is not None and saved["setting"] == setting:
        layers = [LayerKernels(**layer) for layer in saved["layers"]]
        _replace(module, optimizer, {layer.name: layer.kernels for layer in layers}, batch_size)
    else:
        layers = ranks.of_leader(_replace(module, optimizer, setting, batch_size) if ranks.leads else None)
        if not ranks.leads:
            _replace(module, optimizer, {layer.name: layer.kernels for layer in layers}, batch_size)
    return Kernels(setting=setting, layers=tuple(layers))


def _replace(
    module: ImportedModule,
    optimizer: torch.optim.Optimizer,
    kernels: KernelSetting | Mapping[str, str],
    batch_size: int,
) -> list[LayerKernels]:
    found: list[LayerChoice] = []
    sparsify_layers(module, optimizer, kernels=kernels, report=found.append, batch_size=batch_size)
    return [LayerKernels(name=layer.name, kernels=layer.kernels, reason=layer.reason) for layer in found]
