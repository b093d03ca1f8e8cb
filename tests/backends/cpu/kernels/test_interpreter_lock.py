"""Whatever waits or works for long in the kernels lets other threads of Python run meanwhile."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from sift_onnx.backends.cpu import _kernels

ROWS, COLUMNS = 2048, 4096
SHAPE = (64, COLUMNS, 1, 1)
# Who asks before the packing has begun, or after it, does not wait; a busy machine may let that happen many times.
PATIENCE_SECONDS = 30


@pytest.fixture(autouse=True)
def threads_that_keep_the_lock() -> Iterator[None]:
    """Until they give it up themselves: Python takes it from none."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture(scope="module")
def weights() -> _kernels.SparseWeights:
    dense = np.ones((ROWS, COLUMNS), np.float32)
    dense[:, ::3] = 0
    return _kernels.SparseWeights.from_dense(ROWS, COLUMNS, dense)


def others_run_during(call: Callable[[], Any], pack: Callable[[], Any] | None = None) -> bool:
    """Whether this thread ran while another was in ``call``, which may have had to wait for a third one to ``pack``."""
    order: list[str] = []
    packs, calls = threading.Event(), threading.Event()

    def packing() -> None:
        packs.set()
        if pack is not None:
            pack()

    def calling() -> None:
        packs.wait()
        calls.set()
        call()
        order.append("answered")

    threads = [threading.Thread(target=calling), threading.Thread(target=packing)]
    for thread in threads:
        thread.start()
    calls.wait()
    order.append("ran")
    for thread in threads:
        thread.join()
    return order == ["ran", "answered"]


def others_run_sometime(attempt: Callable[[], bool]) -> bool:
    """Whether one of many attempts found that others run."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if attempt():
            return True
    return False


ASKS: dict[str, Callable[[Any], Any]] = {
    "weight_bytes": lambda op: op.weight_bytes,
    "source": lambda op: op.source(),
    "release_source": lambda op: op.release_source(),
    "describe": lambda op: op.describe(SHAPE, 1),
    "prepare": lambda op: op.prepare(SHAPE, 1),
}


@pytest.mark.parametrize("name", ASKS)
def test_who_waits_for_a_layer_to_be_packed_lets_others_run(weights: _kernels.SparseWeights, name: str) -> None:
    def attempt() -> bool:
        conv = _kernels.Conv(weights)
        return others_run_during(lambda: ASKS[name](conv), lambda: conv.prepare(SHAPE, 1))

    assert others_run_sometime(attempt)


def test_who_makes_an_operator_lets_others_run() -> None:
    dense = np.ones((4096, 1024), np.float32)
    weights = _kernels.SparseWeights.from_dense(*dense.shape, dense)
    large_kernel = _kernels.SparseWeights.from_dense(32, 32 * 45 * 45, np.ones((32, 32 * 45 * 45), np.float32))
    first = _kernels.SparseWeights.from_dense(4096, 36, np.ones((4096, 36), np.float32))
    product = _kernels.DenseProduct(weights)
    for make in (
        lambda: _kernels.DenseProduct(weights),
        product.source,
        lambda: _kernels.Matmul(weights),
        lambda: _kernels.PackedRows(weights),
        _kernels.PackedRows(weights).source,
        lambda: _kernels.Conv(large_kernel, kernel=(45, 45)),
        lambda: _kernels.Winograd(first, kernel=(3, 3)),
        lambda: _kernels.PooledWinograd(first, kernel=(3, 3), window=(2, 2)),
    ):
        assert others_run_sometime(partial(others_run_during, make))
