"""Before a forward pass, weights that changed since they were pruned are pruned again."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, NoReturn

import torch

from sift_onnx.training.compilation import never_compiled
from sift_onnx.training.sparse.attachment.protocol import HookedAlgorithm
from sift_onnx.training.sparse.errors import refuse_pickling

__all__ = ["is_inner_call_of_apply", "prune_before_forward"]


def prune_before_forward(algorithm: HookedAlgorithm, module: torch.nn.Module, masks: Iterable[str]) -> None:
    """Keep a module within its masks, from its next forward pass on.

    Args:
        algorithm: that knows the masks.
        module: the model, before it is wrapped in DistributedDataParallel.
        masks: names of the buffers that are masks.
    """
    # Masks are equal on all ranks without DDP, which would send them from rank 0 in every forward pass. This is the
    # attribute that it reads; its own setter is private, and forgets what was ignored before.
    ignored = {*getattr(module, "_ddp_params_and_buffers_to_ignore", ()), *masks}
    module._ddp_params_and_buffers_to_ignore = sorted(ignored)  # type: ignore[assignment]
    module.register_forward_pre_hook(_PruneBeforeForward(algorithm))


class _PruneBeforeForward:
    """The forward pre-hook. A deep copy of the model shares it, and has no parameters that it knows."""

    def __init__(self, algorithm: HookedAlgorithm) -> None:
        self._algorithm = algorithm

    @never_compiled
    def __call__(self, module: torch.nn.Module, args: Any) -> None:
        self._algorithm.before_forward()
        for sparse in self._algorithm.get_sparse_params(module):
            sparse.mark_used()
            sparse.prune_if_changed()

    def __deepcopy__(self, memo: Any) -> _PruneBeforeForward:
        return self

    def __reduce__(self) -> NoReturn:
        refuse_pickling("a model to which a sparsity algorithm is applied")


def is_inner_call_of_apply(function: Any) -> bool:
    """Whether ``function`` was called for a child by a ``Module.apply`` that will call it for the parent, too.

    ``model.apply(sparsity)`` calls ``sparsity`` with every submodule, children first and the model last, and the
    arguments do not differ. A parameter's full name is only known from the model, so the calls on the
    stack are counted. cstorch replaces ``torch.nn.Module.apply`` for all modules instead.
    """
    applications = 0
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is torch.nn.Module.apply.__code__ and frame.f_locals.get("fn") is function:
            applications += 1
        frame = frame.f_back  # type: ignore[assignment]
    return applications > 1
