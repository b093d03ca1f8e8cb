"""Several ranks: masks that are the same on all of them, and tensors that FSDP2 shards.

Rank 0's masks are broadcast, and a hash shows that every rank has them. FSDP2 turns parameters, gradients and optimizer
states into DTensors. Masks stay plain buffers, whole on every rank, so that every rank computes the same update from
the same numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist

from sift_onnx.training.sparse.errors import SparsityStateError

__all__ = [
    "broadcast_masks",
    "check_agreement",
    "full_tensor",
    "is_parallel",
    "is_rank_0",
    "is_sharded",
    "laid_out_like",
    "local_shard",
    "mask_digest",
    "shard_like",
    "to_local",
]


def is_parallel(group: dist.ProcessGroup | None = None) -> bool:
    """Whether there are other ranks to agree with."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1


def is_rank_0(group: dist.ProcessGroup | None = None) -> bool:
    """Whether this rank's masks count."""
    return not is_parallel(group) or dist.get_rank(group) == 0


def broadcast_masks(
    masks: Mapping[str, torch.Tensor], group: dist.ProcessGroup | None = None
) -> dict[str, torch.Tensor]:
    """Rank 0's masks; every rank passes masks of the same names and shapes, in the same order.

    They travel in one message, eight weights to a byte.
    """
    if not masks:
        return {}
    flat = np.concatenate([mask.detach().cpu().numpy().reshape(-1) for mask in masks.values()])
    device = next(iter(masks.values())).device
    message = torch.from_numpy(np.packbits(flat)).to(device)
    dist.broadcast(message, group=group, group_src=0)
    bits = np.unpackbits(message.cpu().numpy(), count=flat.size).astype(np.bool_)
    parts = np.split(bits, np.cumsum([mask.numel() for mask in masks.values()])[:-1])
    received = zip(masks.items(), parts, strict=True)
    return {name: torch.from_numpy(part).reshape(mask.shape).to(mask.device) for (name, mask), part in received}


def mask_digest(masks: Mapping[str, torch.Tensor]) -> bytes:
    """A hash of names, shapes and bits; 32 bytes that do not depend on the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(masks):
        mask = masks[name]
        digest.update(f"{name}\0{tuple(mask.shape)}\0".encode())
        digest.update(np.packbits(mask.detach().cpu().numpy().reshape(-1)).tobytes())
    return digest.digest()


def check_agreement(masks: Mapping[str, torch.Tensor], step: int, group: dist.ProcessGroup | None = None) -> None:
    """Compare the masks of all ranks by their hash.

    Raises:
        SparsityStateError: they differ; every rank raises it.
    """
    if not masks:
        return
    device = next(iter(masks.values())).device
    own = torch.frombuffer(bytearray(mask_digest(masks)), dtype=torch.uint8).to(device)
    found = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, own, group=group)
    different = [rank for rank, digest in enumerate(found) if not torch.equal(digest, found[0])]
    if different:
        raise SparsityStateError(
            f"masks differ between ranks at step {step}: ranks {different} have others than rank 0; apply the same "
            "algorithm with the same seed on every rank, and load the same checkpoint"
        )


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is a DTensor."""
    # By its method: to import DTensor starts torch.distributed, which most programs never use.
    return hasattr(tensor, "full_tensor")


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with the shards of all ranks; for a DTensor a collective call, to be made by every rank alike."""
    tensor = tensor.detach()
    return cast(torch.Tensor, cast(Any, tensor).full_tensor()) if is_sharded(tensor) else tensor


def to_local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard, sharing its memory."""
    tensor = tensor.detach()
    return cast(torch.Tensor, cast(Any, tensor).to_local()) if is_sharded(tensor) else tensor


def shard_like(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A full tensor that every rank has, as a DTensor sharded like ``like``; no communication."""
    from torch.distributed.tensor import distribute_tensor

    sharded = cast(Any, like)
    # Without a source rank each rank cuts its shard out of the tensor that it has.
    placed = tensor.to(to_local(like).device)
    return distribute_tensor(placed, sharded.device_mesh, sharded.placements, src_data_rank=None)


def laid_out_like(value: Any, like: torch.Tensor | None) -> Any:
    """A full tensor of the shape of ``like``, sharded if that is; anything else as it is."""
    if not isinstance(value, torch.Tensor) or like is None or value.shape != like.shape:
        return value
    return shard_like(value, like) if is_sharded(like) and not is_sharded(value) else value


def local_shard(mask: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a full ``mask``, for :func:`to_local` of ``tensor``; no communication."""
    return to_local(shard_like(mask, tensor)) if is_sharded(tensor) else mask
