"""Which kernels compute the masked layers of a training: sparse ones or torch's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sift_onnx.errors import UsageError, listing
from sift_onnx.records.train import KernelChange, Kernels, LayerKernels
from sift_onnx.settings.typed import typed
from sift_onnx.training.module import ImportedModule
from sift_onnx.training.sparse import SparsityAlgorithm
from sift_onnx.training.sparse.parameters.compact import compact_weights
from sift_onnx.training.sparse_layers.choices import LayerChoice
from sift_onnx.training.sparse_layers.sparsify import densify_layers, sparsify_layers
from sift_onnx.training.trainer.process_group import Ranks
from sift_onnx.training.trainer.settings import KernelSetting

__all__ = ["change_summary", "choose_kernels", "follow_masks", "kernels_summary", "obstacle_to_sparse_kernels"]


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


def change_summary(change: KernelChange) -> str:
    """How many layers have other kernels."""
    parts = [f"{_layers_run(len(change.sparse), ' more')} on sparse kernels"] if change.sparse else []
    parts += [f"{_layers_run(len(change.dense))} on dense kernels again"] if change.dense else []
    return f"step {change.step}: {', '.join(parts)}"


def _layers_run(count: int, more: str = "") -> str:
    return f"1{more} layer runs" if count == 1 else f"{count}{more} layers run"


def obstacle_to_sparse_kernels(ranks: Ranks, is_sharded: bool) -> str | None:
    """Why no layer can run on sparse kernels; None if layers can.

    Args:
        ranks: that train together.
        is_sharded: whether they share out the parameters.
    """
    if ranks.device.type != "cpu":
        return f"sparse kernels run on the CPU, and the training is on {ranks.device}"
    return "sparse kernels do not go with parallelism fsdp2" if is_sharded else None


def choose_kernels(
    module: ImportedModule,
    optimizer: torch.optim.Optimizer,
    algorithm: SparsityAlgorithm | None,
    setting: KernelSetting,
    ranks: Ranks,
    *,
    batch_size: int,
    rows: Mapping[str, int],
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
        rows: of the same, by the name of the weight.
        is_sharded: whether they share out the parameters.
        saved: the kernels of the run that is resumed, as its checkpoint has them. Layers get the same kernels if the
            setting is the same, since the other kernels round otherwise.

    Raises:
        UsageError: sparse kernels are asked for where there are none.
    """
    masked = [] if algorithm is None else list(algorithm.masks())
    obstacle = obstacle_to_sparse_kernels(ranks, is_sharded)
    if setting == "sparse" and obstacle is not None:
        raise UsageError(f"kernels sparse: {obstacle}; choose kernels auto or dense")
    if not masked or setting == "dense" or obstacle is not None:
        reason = obstacle if setting != "dense" and obstacle is not None else "kernels dense"
        layers = [LayerKernels(name=name, kernels="dense", reason=reason) for name in masked]
        return Kernels(setting=setting, layers=tuple(layers))
    if saved is not None and saved["setting"] == setting:
        kept = typed(saved, Kernels)
        _replace(module, optimizer, {layer.name: layer.kernels for layer in kept.layers}, batch_size, rows)
        return kept
    layers = ranks.of_leader(_replace(module, optimizer, setting, batch_size, rows) if ranks.leads else None)
    if not ranks.leads:
        _replace(module, optimizer, {layer.name: layer.kernels for layer in layers}, batch_size, rows)
    return Kernels(setting=setting, layers=tuple(layers))


def follow_masks(
    module: ImportedModule,
    optimizer: torch.optim.Optimizer,
    kernels: Kernels,
    *,
    step: int,
    batch_size: int,
    rows: Mapping[str, int],
) -> Kernels:
    """Give layers other kernels, as ``auto`` does where masks have another number of active weights.

    A layer gets sparse kernels once its mask is sparse enough for them, by the rule that holds at the start too. It
    gets dense ones back once all of its weights are active, and not before, so that no layer changes to and fro. The
    masks decide alone: all ranks do the same at the same step.

    Args:
        module: the model; its layers are replaced.
        optimizer: over its parameters.
        kernels: that the layers have.
        step: that was made last.
        batch_size: of one rank's step.
        rows: of the same, by the name of the weight.

    Returns:
        The kernels that they have now, with a change for ``step`` if they are others.
    """
    full = {name for name, weight in compact_weights(module).items() if weight.nnz == weight.numel}
    if full:
        densify_layers(module, optimizer, full)
    found = {layer.name: layer for layer in _replace(module, optimizer, "auto", batch_size, rows)}
    layers = tuple(found.get(layer.name, layer) for layer in kernels.layers)
    changed = [new for old, new in zip(kernels.layers, layers, strict=True) if old.kernels != new.kernels]
    sparse, dense = (tuple(new.name for new in changed if new.kernels == kind) for kind in ("sparse", "dense"))
    changes = kernels.changes
    if changed:
        changes = (*(changes or ()), KernelChange(step=step, sparse=sparse, dense=dense))
    return Kernels(setting=kernels.setting, layers=layers, changes=changes)


def _replace(
    module: ImportedModule,
    optimizer: torch.optim.Optimizer,
    kernels: KernelSetting | Mapping[str, str],
    batch_size: int,
    rows: Mapping[str, int],
) -> list[LayerKernels]:
    found: list[LayerChoice] = []
    sparsify_layers(module, optimizer, kernels=kernels, report=found.append, batch_size=batch_size, rows=rows)
    return [LayerKernels(name=layer.name, kernels=layer.kernels, reason=layer.reason) for layer in found]
