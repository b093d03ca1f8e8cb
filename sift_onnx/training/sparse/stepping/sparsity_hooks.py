"""Functions of the user's that are told sparsities."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch.utils.hooks import RemovableHandle

from sift_onnx.training.sparse.schedules.share import Share

if TYPE_CHECKING:
    from sift_onnx.training.sparse.algorithms.algorithm import SparsityAlgorithm

__all__ = ["SparsityHook", "SparsityHooks"]

SparsityHook = Callable[["SparsityAlgorithm", str, Share], None]


class SparsityHooks:
    """Functions ``(algorithm, name or glob, sparsity)``, in the order in which they came."""

    def __init__(self) -> None:
        self._hooks: OrderedDict[int, SparsityHook] = OrderedDict()

    def register(self, hook: SparsityHook) -> RemovableHandle:
        """Add a function; the handle's ``remove()`` takes it out."""
        handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = hook
        return handle

    def __len__(self) -> int:
        return len(self._hooks)

    def __call__(self, algorithm: SparsityAlgorithm, name: str, sparsity: Share) -> None:
        for hook in list(self._hooks.values()):
            hook(algorithm, name, sparsity)
