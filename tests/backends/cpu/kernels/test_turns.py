"""Requests of several callers of one pool, which take turns."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

from sift_onnx.backends.cpu import _kernels

SHAPE = (1, 64, 32, 32)
SIZE = 64 * 32 * 32


def doubled(times: int) -> _kernels.Sequence:
    """Its input, twice as large again and again."""
    op = _kernels.Elementwise("add", layout="planes")
    steps = [(op, SHAPE, (1, 0), ((1, 0), None, None), (1, 0)) for _ in range(times - 1)]
    return _kernels.Sequence([(op, SHAPE, (0, 0), ((0, 0), None, None), (1, 0)), *steps], 0, [SIZE, SIZE])


def run_beside(calls: list[Callable[[], None]]) -> list[BaseException | None]:
    """Calls in as many threads, and what each of them raised."""
    raised: list[BaseException | None] = [None] * len(calls)

    def run(number: int) -> None:
        try:
            calls[number]()
        except BaseException as error:
            raised[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_callers_have_their_own_results(threads: int) -> None:
    pool, workspace = _kernels.ThreadPool(threads), _kernels.Workspace()
    sequences = [doubled(times) for times in range(1, 9)]
    made = [np.zeros(SIZE, np.float32) for _ in sequences]

    def call(number: int) -> Callable[[], None]:
        x = np.full(SIZE, 1 + number, np.float32)

        def run() -> None:
            for _ in range(40):
                made[number][:] = 0
                sequences[number].run(pool, workspace, [x, made[number]])
                assert made[number][0] == made[number][-1] == (1 + number) * 2 ** (1 + number)

        return run

    assert run_beside([call(number) for number in range(len(sequences))]) == [None] * len(sequences)


def test_an_error_reaches_the_caller_whose_request_it_is_of() -> None:
    pool, workspace = _kernels.ThreadPool(2), _kernels.Workspace()
    good, x = doubled(3), np.ones(SIZE, np.float32)
    op = _kernels.Elementwise("first", layout="images16")
    bad = _kernels.Sequence([(op, (16, 4, 1, 1), (0, 0), (None, None, None), (1, 0))], 0, [64, 64])
    room = np.zeros(128, np.float32)
    begin = -room.ctypes.data // 4 % 16 + 1
    unaligned = room[begin : begin + 64]

    def succeed() -> None:
        for _ in range(50):
            out = np.zeros(SIZE, np.float32)
            good.run(pool, workspace, [x, out])
            assert out[-1] == 8

    def fail() -> None:
        for _ in range(50):
            with pytest.raises(ValueError, match="must be aligned to 64 bytes"):
                bad.run(pool, workspace, [unaligned, unaligned])

    assert run_beside([succeed, fail] * 4) == [None] * 8


def test_a_short_request_does_not_wait_for_the_end_of_a_long_one() -> None:
    pool, workspace = _kernels.ThreadPool(len(os.sched_getaffinity(0)) * 2), _kernels.Workspace()
    x, short = np.ones(SIZE, np.float32), doubled(1)
    long, begun, ended = doubled(120_000), threading.Event(), threading.Event()
    out = np.zeros(SIZE, np.float32)

    def run_long() -> None:
        begun.set()
        long.run(pool, workspace, [np.zeros(SIZE, np.float32), out])
        ended.set()

    thread = threading.Thread(target=run_long)
    thread.start()
    begun.wait()
    for _ in range(3):
        short.run(pool, workspace, [x, np.zeros(SIZE, np.float32)])
    was_first = not ended.is_set()
    thread.join()
    assert was_first


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_turns_of_its_own() -> None:
    pool, workspace = _kernels.ThreadPool(2), _kernels.Workspace()
    sequence, x = doubled(30), np.ones(SIZE, np.float32)
    stop = threading.Event()

    def run() -> None:
        out = np.zeros(SIZE, np.float32)
        while not stop.is_set():
            sequence.run(pool, workspace, [x, out])

    def fork() -> None:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                out = np.zeros(SIZE, np.float32)
                sequence.run(pool, _kernels.Workspace(), [x, out])
                os._exit(0 if out[-1] == 2**30 else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        stop.set()

    assert run_beside([run, run, run, fork]) == [None] * 4
