"""What happens before a forward pass: weights that changed since they were pruned are pruned again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from sift_onnx.training.sparse.errors import refuse_pickling

if TYPE_CHECKING:
    from sift_onnx.training.sparse.algorithms.algorithm import SparsityAlgorithm

__all__ = ["PruneBeforeForward", "keep_from_ddp"]


class PruneBeforeForward:
    """The forward pre-hook. A deep copy of the model shares it, and has no parameters that it knows."""

    def __init__(self, algorithm: SparsityAlgorithm) -> None:
        self._algorithm = algorithm

    def __call__(self, module: torch.nn.Module, args: Any) -> None:
        for sparse in self._algorithm.get_sparse_params(module):
            sparse.mark_used()
            sparse.prune_if_changed()

    def __deepcopy__(self, memo: Any) -> PruneBeforeForward:
        return self

    def __reduce__(self) -> NoReturn:
        refuse_pickling("a model to which a sparsity algorithm is applied")


def keep_from_ddp(module: torch.nn.Module, buffers: Iterable[str]) -> None:
    """Take buffers out of what DistributedDataParallel sends from rank 0 in every forward pass.

    Masks are equal on all ranks without it. To be called before ``module`` is wrapped.

    Args:
        module: the model.
        buffers: full names.
    """
    ignored = {*getattr(module, "_ddp_params_and_buffers_to_ignore", ()), *buffers}
    # The attribute that DDP reads; its own setter is private, and forgets what was ignored before.
    module._ddp_params_and_buffers_to_ignore = sorted(ignored)  # type: ignore[assignment]
