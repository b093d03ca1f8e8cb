"""SPDF: sparse pre-training, dense fine-tuning (Thangarasa et al. 2023, arXiv:2303.10464), as one staged recipe."""

from __future__ import annotations

from typing import Any

from sift_onnx.errors import UsageError
from sift_onnx.training.sparse.algorithms.group import Group
from sift_onnx.training.sparse.configure import configure

__all__ = ["spdf"]


def spdf(sparsity: Any, pretraining_steps: int, algorithm: str = "static", **settings: Any) -> Group:
    """Train sparse for so many steps, then dense.

    After the optimizer's step number ``pretraining_steps`` all masks become ones. The weights that were pruned start
    fine-tuning as zeros, their optimizer states, too. Data and learning rate of the second phase are the loop's own;
    ``group[0].is_dense`` tells the phase. cstorch needs a second run, with a configuration without sparsity.

    Args:
        sparsity: of the first phase; 0.75 in the paper's largest model.
        pretraining_steps: length of the first phase.
        algorithm: of the first phase, by name.
        settings: of the algorithm, and ``param_filter``; see :func:`configure`.

    Raises:
        UsageError: the first phase has no step, or a setting is out of its range.
    """
    if pretraining_steps < 1:
        raise UsageError(f"sparse pre-training of {pretraining_steps} steps; use 1 or more")
    group = configure({"algorithm": algorithm, "sparsity": sparsity, "densify_at": pretraining_steps, **settings})
    if group is None:
        raise UsageError("sparse pre-training needs a sparsity")
    return group
