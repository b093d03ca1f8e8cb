"""Memory that the system has back as soon as an array is gone, whichever thread made it."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np
import numpy.typing as npt

__all__ = ["page_array"]

# The allocator keeps what it has: on other threads than the first, up to tens of megabytes for good.
_LEAST = 1 << 20
_LEAST_HUGE = 4 << 20


def page_array(nbytes: int) -> npt.NDArray[np.uint8]:
    """An array of any values; a large one has pages of its own."""
    if nbytes < _LEAST or not hasattr(mmap, "MAP_ANONYMOUS"):
        return np.empty(nbytes, np.uint8)
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= _LEAST_HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        # A hint, which systems without large pages refuse.
        with contextlib.suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)
