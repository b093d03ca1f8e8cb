"""The ranks of one training: what ``torchrun`` starts, or this process alone."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from sift_onnx.errors import BackendError, UsageError

__all__ = ["Ranks", "joined_ranks"]


@dataclass(frozen=True)
class Ranks:
    """This process among the others.

    Attributes:
        rank: of this process.
        size: the number of processes.
        device: where this process computes.
    """

    rank: int
    size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this process writes files and log lines."""
        return self.rank == 0

    def all_have(self, mine: bool) -> bool:
        """Whether something holds on every rank; all of them have to ask."""
        return bool(self.smallest(int(mine)))

    def smallest(self, mine: int) -> int:
        """The smallest of a number's values on all ranks; all of them have to ask."""
        if self.size == 1:
            return mine
        value = torch.tensor(mine, device=self.device)
        dist.all_reduce(value, op=dist.ReduceOp.MIN)
        return int(value.item())

    def of_leader(self, value: Any) -> Any:
        """The first rank's value, which is pickled; all of them have to ask."""
        if self.size == 1:
            return value
        message = [value]
        dist.broadcast_object_list(message, src=0)
        return message[0]

    def wait(self) -> None:
        """Wait for the others."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def joined_ranks(device: str = "auto") -> Iterator[Ranks]:
    """Join the ranks that ``torchrun`` started, by its environment variables; leave them at the end.

    Args:
        device: ``auto`` (CUDA if there is one), ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        UsageError: there is no such device.
        BackendError: CUDA was asked for and there is none.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    chosen = _device(device, int(os.environ.get("LOCAL_RANK", "0")) if size > 1 else None)
    started = size > 1 and not dist.is_initialized()
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if started:
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield Ranks(rank, size, chosen)
        if started:
            # A rank that leaves early breaks the connections of those that still talk to it.
            dist.barrier()
    finally:
        if started:
            dist.destroy_process_group()
            # Cycles hold the group. Its threads abort the process if they still run while Python ends.
            gc.collect()


def _device(name: str, local_rank: int | None) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"`device` {name!r} is not a device; choose auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"`device` {name!r} is not supported; choose auto, cpu, cuda or cuda:N")
    if device.type == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise BackendError(f"`device` {name}: torch finds no CUDA device here; leave `device` out")
    index = local_rank if local_rank is not None else device.index or 0
    if index >= torch.cuda.device_count():
        raise UsageError(f"`device` {name}: there are {torch.cuda.device_count()} CUDA devices, counted from 0")
    return torch.device("cuda", index)
