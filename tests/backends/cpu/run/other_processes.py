"""A program that runs in a Python of its own: it forks, or exits, while threads are at work in the kernels.

    python tests/backends/cpu/run/other_processes.py NAME-OF-A-FUNCTION

Its status is 0 if all went well. A child that hangs is ended by its alarm.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from sparse_nets import SparseNet

import sift_onnx
from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.lower import plan
from sift_onnx.backends.cpu.run import opening, trials
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram
from sift_onnx.errors import BackendError

SECONDS = 20
CHANNELS = 64

# The nets are small: what the border costs would send all of them to onnxruntime.
plan.why_not_profitable = lambda *_: ""
opening.is_certain = trials.is_certain = lambda *_: True


def sparse_net(size: int = 12, softmax: bool = False) -> tuple[Any, dict[str, Any]]:
    net = SparseNet()
    x = net.conv(net.input("x", 2, 8, size, size), 8, CHANNELS, 3, name="first")
    if softmax:
        x = net.op("Softmax", x, axis=1)  # onnxruntime's
    x = net.op("Relu", net.conv(x, CHANNELS, CHANNELS, 3, name="second"))
    net.output(net.dense(net.op("Flatten", net.op("GlobalAveragePool", x)), CHANNELS, 10, name="y"))
    return net.model(), net.feeds


def in_child(work: Callable[[], None]) -> None:
    """Fork, run ``work`` in the child, and raise here unless it came to its end."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(SECONDS)
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    if status != 0:
        raise SystemExit(f"the child ended with wait status {status}")


def run_in_thread(work: Callable[[], None]) -> None:
    """In a thread of the child's own, whose identity may be that of a thread of the parent's."""
    failures: list[BaseException] = []

    def caught() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=caught) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def pool_goes_in_a_child_with_threads_of_its_own() -> None:
    pools = [_kernels.ThreadPool(threads) for threads in range(2, 9)]

    def work() -> None:
        run_in_thread(lambda: None)
        hold = threading.Event()
        threads = [threading.Thread(target=hold.wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        pools.clear()
        hold.set()
        for thread in threads:
            thread.join()

    in_child(work)


def session_answers_in_a_child() -> None:
    for softmax in (False, True):
        model, feeds = sparse_net(softmax=softmax)
        for threads in (1, 2, 4):
            sessions = [sift_onnx.InferenceSession(model, threads=threads) for _ in range(2)]
            (wanted,) = sessions[0].run(None, feeds)  # the second has never run

            def work(sessions: list[Any] = sessions, feeds: Any = feeds, wanted: Any = wanted) -> None:
                def compare() -> None:
                    for session in sessions:
                        np.testing.assert_array_equal(session.run(None, feeds)[0], wanted)

                compare()
                run_in_thread(compare)
                in_child(compare)
                in_child(lambda: run_in_thread(compare))
                sessions.clear()

            in_child(work)
            np.testing.assert_array_equal(sessions[0].run(None, feeds)[0], wanted)


def child_does_not_read_another_model() -> None:
    """A child opens a session of its own, of the file that its parent has read."""
    model, feeds = sparse_net()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.onnx")
        onnx.save(model, path)
        (wanted,) = (program := OnnxRuntimeProgram(str(path), CompileOptions(threads=1))).run(feeds).values()

        def same() -> None:
            np.testing.assert_array_equal(*program.run(feeds).values(), wanted)

        in_child(same)

        def refused() -> None:
            with pytest.raises(BackendError, match="has changed since the session was created"):
                same()

        path.unlink()
        onnx.save(sparse_net(size=13)[0], path)
        in_child(refused)
        same()


def child_uses_as_many_threads_as_its_parent() -> None:
    pool = _kernels.ThreadPool(3)
    x = np.ones((64, 16, 64), np.float32)
    op = _kernels.Elementwise("first", layout="planes")

    def tasks() -> int:
        return len(os.listdir("/proc/self/task"))

    def work() -> None:
        assert tasks() == 1
        op.run(pool, (64, 16, 64, 1), x, np.empty_like(x))
        assert tasks() == 3
        assert pool.threads == 3

    in_child(work)


def forks_while_another_thread_packs_and_infers() -> None:
    """The locks of packing, of scratch memory and of Python's schedules are taken all the time."""
    model, feeds = sparse_net()
    sessions = [sift_onnx.InferenceSession(model, threads=2)]
    (wanted,) = sessions[0].run(None, feeds)
    done = threading.Event()

    def infer() -> None:
        while not done.is_set():
            session = sift_onnx.InferenceSession(model, threads=2)
            for _ in range(2):
                session.run(None, feeds)
            sessions[0].run(None, feeds)

    weights = _kernels.SparseWeights.from_dense(256, 2304, np.eye(256, 2304, dtype=np.float32))
    conv = _kernels.Conv(weights, kernel=(3, 3), pads=(1, 1, 1, 1), layout="planes")

    def pack() -> None:
        size = 0
        while not done.is_set():
            size += 1
            conv.prepare((1, 256, 7 + size % 40, 7 + size % 40), 1 + size % 3)

    others = [threading.Thread(target=infer), threading.Thread(target=pack)]
    for thread in others:
        thread.start()

    def work() -> None:
        np.testing.assert_array_equal(sessions[0].run(None, feeds)[0], wanted)
        conv.prepare((1, 256, 5, 5), 1)
        assert conv.weight_bytes > 0

    try:
        for _ in range(15):
            in_child(work)
    finally:
        done.set()
        for thread in others:
            thread.join()


def exits_while_another_thread_computes() -> None:
    """The operator takes longer than the process needs to exit: its threads are in code that was generated."""
    channels, shape = 256, (24, 256, 56, 56)
    mask = np.random.default_rng(0).random((channels, channels * 9)) < 0.2
    weights = _kernels.SparseWeights.from_dense(*mask.shape, mask.astype(np.float32))
    conv = _kernels.Conv(weights, kernel=(3, 3), pads=(1, 1, 1, 1), layout="planes")
    conv.prepare(shape, 2)
    pool = _kernels.ThreadPool(2)
    x, y = np.ones(shape, np.float32), np.full(shape, np.nan, np.float32)
    threading.Thread(target=conv.run, args=(pool, shape, x, y), daemon=True).start()
    while np.isnan(y[0, 0, 0, 0]):
        pass


def exits_while_other_threads_begin() -> None:
    """Runs are short: threads come back to Python, and make sessions, while it ends."""
    model, feeds = sparse_net()
    started = threading.Barrier(4)

    def infer() -> None:
        started.wait()
        while True:
            sift_onnx.InferenceSession(model, threads=2).run(None, feeds)

    for _ in range(3):
        threading.Thread(target=infer, daemon=True).start()
    started.wait()
    sift_onnx.InferenceSession(model, threads=2).run(None, feeds)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
