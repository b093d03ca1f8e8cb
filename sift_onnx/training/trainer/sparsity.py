"""The sparsity section of a training, applied to an imported model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from sift_onnx.records.train import Algorithm, Masks
from sift_onnx.training import sparse
from sift_onnx.training.module import ImportedModule

__all__ = ["active_counts", "attach_sparsity", "check_globs", "sparsity_figures", "sparsity_report"]


def attach_sparsity(
    config: Any, module: ImportedModule, optimizer: torch.optim.Optimizer, seed: int
) -> sparse.SparsityAlgorithm | None:
    """Make a training sparse.

    Args:
        config: what :func:`~sift_onnx.training.sparse.configure` takes; None for the model's masks as they are.
        module: the model. Masks that no algorithm of ``config`` takes over stay as they are.
        optimizer: over its parameters.
        seed: of algorithms whose own is not given.

    Returns:
        The algorithm; None if nothing is sparse.

    Raises:
        UsageError: see :func:`~sift_onnx.training.sparse.configure`, and a glob matches nothing, a layer is left empty.
    """
    group = None if config is None else sparse.configure(config)
    if group is None:
        group = sparse.Group()
    if not _names_seed(config):
        for member in group.members:
            member.seed = seed
    masked = {module.parameter_paths[name] for name in module.masks}
    params = dict(module.named_parameters())
    left = {path for path in masked if group.algorithm_of(path, params[path]) is None}
    if left:
        # Write-back would refuse what was trained outside of its mask.
        group.add(lambda name, _: name in left, sparse.Static())
    return group.attach(module, optimizer) if len(group) else None


def check_globs(config: Any, module: ImportedModule) -> None:
    """Hold the globs of a sparsity section against the parameters of a model.

    Raises:
        UsageError: one matches nothing.
    """
    group = None if config is None else sparse.configure(config)
    if group is not None:
        group.check_globs([name for name, _ in module.named_parameters()])


def active_counts(algorithm: sparse.SparsityAlgorithm | None) -> list[int]:
    """The number of active weights of each masked weight."""
    members = () if algorithm is None else algorithm.members
    return [param.nnz for member in members for param in member.sparse_params.values()]


def sparsity_report(algorithm: sparse.SparsityAlgorithm | None) -> Masks:
    """Non-zeros of all masked weights, and what the algorithms measured."""
    masks = {} if algorithm is None else algorithm.masks()
    return Masks(
        layers=len(masks),
        nnz=sum(int(mask.sum()) for mask in masks.values()),
        numel=sum(mask.numel() for mask in masks.values()),
        algorithms=tuple(
            Algorithm(algorithm=type(member).__name__.lower(), layers=len(member.sparse_params), **_moves(member))
            for member in (() if algorithm is None else algorithm.members)
        ),
    )


def sparsity_figures(algorithm: sparse.SparsityAlgorithm | None) -> dict[str, Any]:
    """Of a log line: the non-zeros of all masked weights, and their :class:`MaskMetrics` where they are followed."""
    if algorithm is None:
        return {}
    figures: dict[str, Any] = {"nnz": sum(active_counts(algorithm))}
    followed = [moves for member in algorithm.members if (moves := _moves(member))]
    return figures | followed[0] if len(followed) == 1 else figures


def _moves(algorithm: sparse.SparsityAlgorithm) -> dict[str, float]:
    """How the masks of an algorithm moved; empty where they are not followed."""
    if algorithm.history is None:
        return {}
    total = algorithm.history.total()
    return {"itop": total.itop, "doc": total.doc, "churn": total.churn}


def _names_seed(config: Any) -> bool:
    if isinstance(config, Mapping):
        return "seed" in config or any(_names_seed(value) for value in config.values())
    return isinstance(config, Sequence) and not isinstance(config, str) and any(_names_seed(value) for value in config)
