"""Threads that sessions share."""

from __future__ import annotations

import weakref

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.processors import usable_processors
from sift_onnx.errors import UsageError

__all__ = ["ThreadPool", "pool_of"]


class ThreadPool:
    """Threads that run the kernels of every session that is made with them, from several threads at once if need be.

    Workers go from the operator of one session to that of another, so that sessions together use as many threads as one
    alone. The threads end with the last session and the pool itself.

    Attributes:
        threads: how many, the calling one included.
        kernels: the pool as kernels take it.
    """

    def __init__(self, threads: int | None = None) -> None:
        """Start threads.

        Args:
            threads: how many, the calling one included; None is one per processor that the process may use.

        Raises:
            UsageError: ``threads`` is below 1, or above what is ever started.
        """
        self.threads = CompileOptions(threads).threads or usable_processors()
        self.kernels = _kernels.ThreadPool(self.threads)


_shared: weakref.WeakValueDictionary[int, ThreadPool] = weakref.WeakValueDictionary()


def pool_of(threads: int | None, pool: ThreadPool | None = None) -> ThreadPool:
    """``pool``, or the one that all sessions with this number of threads share.

    Raises:
        UsageError: ``pool`` is no pool, or has another number of threads.
    """
    if pool is None:
        count = threads or usable_processors()
        return _shared.get(count) or _shared.setdefault(count, ThreadPool(count))
    if not isinstance(pool, ThreadPool):
        raise UsageError(f"pool is a {type(pool).__name__}; pass a sift_onnx.ThreadPool")
    if threads not in (None, pool.threads):
        raise UsageError(f"threads is {threads}, but the pool has {pool.threads}; pass one of the two")
    return pool
