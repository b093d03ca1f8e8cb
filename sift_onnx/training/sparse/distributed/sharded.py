"""Tensors of which each rank holds a part: FSDP2 turns parameters, gradients and optimizer states into DTensors.

Masks stay plain buffers, whole on every rank, so that every rank can tell the same update from the same numbers.
"""

from __future__ import annotations

from typing import Any, cast

import torch

__all__ = ["is_sharded", "local_part", "shard", "shard_like", "whole"]


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is a DTensor."""
    # By its method: to import DTensor starts torch.distributed, which most programs never use.
    return hasattr(tensor, "full_tensor")


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with all its parts; for a DTensor a collective call, to be made by every rank alike."""
    tensor = tensor.detach()
    return cast(torch.Tensor, cast(Any, tensor).full_tensor()) if is_sharded(tensor) else tensor


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The part that this rank holds, sharing its memory."""
    tensor = tensor.detach()
    return cast(torch.Tensor, cast(Any, tensor).to_local()) if is_sharded(tensor) else tensor


def shard(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A whole tensor that every rank has, as a DTensor of the parts of ``like``, a DTensor; no communication."""
    from torch.distributed.tensor import distribute_tensor

    sharded = cast(Any, like)
    # Without a source rank each rank cuts its part out of the tensor that it has.
    placed = tensor.to(local_part(like).device)
    return distribute_tensor(placed, sharded.device_mesh, sharded.placements, src_data_rank=None)


def shard_like(mask: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a whole ``mask``, for :func:`local_part` of ``tensor``; no communication."""
    return local_part(shard(mask, tensor)) if is_sharded(tensor) else mask
