from __future__ import annotations

import os
import sys

import numpy as np
import pytest

from sift_onnx.backends.cpu import _kernels


def affinities() -> dict[int, set[int]]:
    return {int(task): os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_threads_may_run_where_they_might_before() -> None:
    """Workers move off the processor of the calling thread, but give none up."""
    known = affinities()
    pool = _kernels.ThreadPool(len(os.sched_getaffinity(0)))
    added = {task: mask for task, mask in affinities().items() if task not in known}
    x, out = np.ones(1 << 16, np.float32), np.empty(1 << 16, np.float32)
    op = _kernels.GlobalAveragePool(layout="planes")
    shape, mine = (64, 16, 8, 8), os.sched_getaffinity(0)
    try:
        for repeat in range(200):
            os.sched_setaffinity(0, {sorted(mine)[repeat % len(mine)]})
            op.run(pool, shape, x, out[: 64 * 16])
    finally:
        os.sched_setaffinity(0, mine)
    np.testing.assert_array_equal(out[: 64 * 16], 1)
    assert {task: mask for task, mask in affinities().items() if task in added} == added
