"""Work of numpy's on torch's number of threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

__all__ = ["spread"]

_Result = TypeVar("_Result")

# Elements below which a thread costs more than it brings.
_WORTH_A_THREAD = 1 << 20


def spread(size: int, work: Callable[[int, int], _Result]) -> list[_Result]:
    """The results of ``work(start, stop)`` over consecutive parts of ``range(size)``, in their order.

    numpy lets other threads run while it computes, and takes one itself.
    """
    parts = min(torch.get_num_threads(), size // _WORTH_A_THREAD)
    if parts <= 1:
        return [work(0, size)]
    bounds = [size * i // parts for i in range(parts + 1)]
    with ThreadPoolExecutor(parts) as threads:
        return list(threads.map(work, bounds[:-1], bounds[1:]))
