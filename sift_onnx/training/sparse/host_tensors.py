"""Passes over large tensors on the host, by numpy on torch's number of threads.

numpy asks the system for huge pages where torch does not, and to be given a page costs more than to fill it: copies and
magnitudes of large tensors take a quarter of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch

__all__ = ["copied", "in_parts", "magnitudes", "zero_outside"]

_Result = TypeVar("_Result")

# Elements below which a thread costs more than it brings.
_WORTH_A_THREAD = 1 << 20

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def in_parts(size: int, work: Callable[[int, int], _Result]) -> list[_Result]:
    """The results of ``work(start, stop)`` over consecutive parts of ``range(size)``, in their order.

    numpy releases the interpreter's lock while it computes, and uses one thread itself.
    """
    parts = min(torch.get_num_threads(), size // _WORTH_A_THREAD)
    if parts <= 1:
        return [work(0, size)]
    bounds = [size * i // parts for i in range(parts + 1)]
    with ThreadPoolExecutor(parts) as threads:
        return list(threads.map(work, bounds[:-1], bounds[1:]))


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor, without its history."""
    tensor = tensor.detach()
    return torch.from_numpy(np.array(tensor.numpy())) if _is_plain(tensor) else tensor.clone()


def magnitudes(tensor: torch.Tensor) -> torch.Tensor:
    """Absolute values of a tensor, without its history."""
    tensor = tensor.detach()
    return torch.from_numpy(np.abs(tensor.numpy())) if _is_plain(tensor) else tensor.abs()


@torch.no_grad()
def zero_outside(mask: torch.Tensor, tensor: torch.Tensor) -> None:
    """Zero pruned elements in place.

    Each training step does this to each masked weight and its gradient. On the host numpy does it on the bits of the
    numbers: in a third of the time of ``masked_fill_``, and without an inverse of the mask. NaN, infinities and the
    sign of zero go as well, which a product would keep.

    Args:
        mask: a bool tensor of the shape of ``tensor`` and on its device, false where an element is pruned.
        tensor: to be changed.
    """
    integer = _INTEGERS.get(tensor.element_size())
    flat = tensor.is_contiguous() and mask.is_contiguous()
    if tensor.device.type != "cpu" or not flat or integer is None or tensor.is_complex():
        tensor.masked_fill_(~mask, 0)
        return
    bits = tensor.detach().reshape(-1).view(integer).numpy()
    active = mask.reshape(-1).view(torch.int8).numpy()

    def clear(start: int, stop: int) -> None:
        # Minus one has all bits.
        part = bits[start:stop]
        np.bitwise_and(part, np.negative(active[start:stop]), out=part)

    in_parts(bits.size, clear)
    # Writes through numpy bypass torch's version counter.
    torch.autograd.graph.increment_version(tensor)


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64) and tensor.dim() > 0
