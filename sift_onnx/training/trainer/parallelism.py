"""How ranks share a training: the model replicated (DDP) or sharded (FSDP2)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sift_onnx.errors import UsageError
from sift_onnx.training.sparse.parameters.compact import compact_weights
from sift_onnx.training.trainer.process_group import Ranks

__all__ = ["SharedModel"]


class SharedModel:
    """A model that the ranks of a training share.

    With FSDP2 a rank keeps its shard of every parameter, gradient and optimizer state. An imported model has one graph,
    so its parameters are gathered together, for one forward and backward pass; between steps, and in the
    optimizer, there are shards only.

    Attributes:
        module: the model itself; with FSDP2, its parameters are DTensors outside of forward and backward passes.
        is_sharded: whether they are.
    """

    def __init__(self, module: nn.Module, ranks: Ranks, parallelism: str) -> None:
        """Share a model; a rank that is alone keeps it as it is.

        Args:
            module: the model, the same on all ranks. To be sharded, it must not have an optimizer yet.
            ranks: that share it.
            parallelism: ``ddp`` or ``fsdp2``.

        Raises:
            UsageError: FSDP2 cannot share the model.
        """
        self.module, self._ranks = module, ranks
        self.is_sharded = ranks.size > 1 and parallelism == "fsdp2"
        if self.is_sharded:
            _shard(module, ranks)
        self._called = module
        self._joined: list[torch.Size] | None = None

    def join(self) -> None:
        """Average gradients over ranks from now on; to be called when the masks exist.

        And again where parameters may have another shape: DistributedDataParallel knows the shapes that they had when
        it was made, and is made again if one has changed.
        """
        if self._ranks.size == 1 or self.is_sharded:
            return
        for weight in compact_weights(self.module).values():
            weight.ranks_follow = True
        shapes = [param.shape for param in self.module.parameters()]
        if shapes == self._joined:
            return
        # Ranks have the same weights once they have trained together. The old one goes first, with its buffers.
        is_first, self._joined, self._called = self._joined is None, shapes, self.module
        devices = [self._ranks.device] if self._ranks.device.type == "cuda" else None
        self._called = DistributedDataParallel(self.module, device_ids=devices, init_sync=is_first)

    def leave(self) -> None:
        """Release the process group: DDP holds it, and its threads must not outlive it."""
        self._called = self.module

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """The model's outputs; with several ranks all of them have to call it."""
        return self._called(*inputs)

    def accumulating(self, more: bool) -> contextlib.AbstractContextManager[Any]:
        """For a forward and a backward pass; gradients are averaged over ranks unless there are ``more`` to come."""
        if self.is_sharded:
            self._called.set_requires_gradient_sync(not more)  # type: ignore[operator]
        elif more and isinstance(self._called, DistributedDataParallel):
            return self._called.no_sync()
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """Within it a rank may call :attr:`module` by itself, without gradients; all ranks have to enter and leave."""
        if self.is_sharded:
            self.module.unshard()  # type: ignore[operator]
        yield
        if self.is_sharded:
            self.module.reshard()  # type: ignore[operator]


def _shard(module: nn.Module, ranks: Ranks) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    kinds = {str(param.dtype).removeprefix("torch.") for param in module.parameters()}
    if len(kinds) > 1:
        raise UsageError(f"parallelism fsdp2 needs parameters of one type, the model has {' and '.join(sorted(kinds))}")
    single = next((name for name, param in module.named_parameters() if param.dim() == 0), None)
    if single is not None:
        raise UsageError(f"parallelism fsdp2 cannot share {single!r}, a single number; leave it out of 'trainable'")
    # What is gathered for the forward pass stays for the backward pass, which needs all of it at once as well.
    fully_shard(module, mesh=init_device_mesh(ranks.device.type, (ranks.size,)), reshard_after_forward=False)
