"""Sessions of one process on the same threads."""

import gc
import os
import random
import sys
import threading
import time

import numpy as np
import onnxruntime as ort
import pytest
from sparse_nets import ONE_THREAD, SparseNet

import sift_onnx
from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu.run.parts import Parts
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.errors import UsageError

pytestmark = pytest.mark.usefixtures("every_region_pays", "older_objects_are_frozen")

THREADS, SESSIONS = 5, 8
READS_TASKS = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def net():
    net = SparseNet()
    x = net.op("Relu", net.conv(net.input("x", 2, 8, 20, 20), 8, 32, 3))
    net.output(net.conv(x, 32, 32, 3))
    return net


def tasks():
    gc.collect()
    return len(os.listdir("/proc/self/task"))


def tasks_in_the_end(wanted):
    """Their number, once it is ``wanted``, or after two seconds: threads that have ended leave /proc a bit later."""
    end = time.monotonic() + 2
    while (found := tasks()) != wanted and time.monotonic() < end:
        time.sleep(0.01)
    return found


@READS_TASKS
@pytest.mark.parametrize("make", [lambda: {"threads": THREADS}, lambda: {"pool": sift_onnx.ThreadPool(THREADS)}])
def test_sessions_together_have_the_threads_of_one(net, make):
    before = tasks()
    options = make()
    sessions = [sift_onnx.InferenceSession(net.model(), **options) for _ in range(SESSIONS)]
    for session in sessions:
        session.run(None, net.feeds)
    assert [session.threads for session in sessions] == [THREADS] * SESSIONS
    assert tasks_in_the_end(before + THREADS - 1) == before + THREADS - 1
    del options, sessions, session
    assert tasks_in_the_end(before) == before


@READS_TASKS
def test_a_pool_ends_with_the_last_of_those_who_have_it(net):
    before = tasks()
    pool = sift_onnx.ThreadPool(THREADS)
    sessions = [sift_onnx.InferenceSession(net.model(), pool=pool) for _ in range(3)]
    wanted = sessions[0].run(None, net.feeds)[0]
    del pool
    for left in (2, 1):
        del sessions[random.Random(left).randrange(len(sessions))]
        assert tasks() == before + THREADS - 1
        for session in sessions:
            np.testing.assert_array_equal(session.run(None, net.feeds)[0], wanted)
        del session
    sessions.clear()
    assert tasks() == before


def test_sessions_run_at_once_on_one_pool_and_go_while_others_run(net):
    pool = sift_onnx.ThreadPool(3)
    sessions = [sift_onnx.InferenceSession(net.model(), pool=pool) for _ in range(SESSIONS)]
    wanted = sessions[0].run(None, net.feeds)[0]
    wrong = []
    started = threading.Barrier(SESSIONS)

    def run(session, times):
        started.wait()
        for _ in range(times):
            found = session.run(None, net.feeds)[0]
            if not np.array_equal(found, wanted):
                wrong.append(found)

    callers = [
        threading.Thread(target=run, args=(sessions.pop(), 5 + number * 5 % SESSIONS)) for number in range(SESSIONS)
    ]
    del pool
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


@pytest.mark.skipif(sys.platform != "linux", reason="reads the time of threads")
@pytest.mark.parametrize("batch", [1, 3, 16])
def test_parts_run_on_the_calling_thread_alone(net, batch):
    program = CpuProgram(net.model(), CompileOptions(threads=2, deterministic=True))
    (region,) = program.parts
    parts = Parts([region], region.region.outputs)
    x = np.random.default_rng(batch).standard_normal((batch, 8, 20, 20), dtype=np.float32)
    name = region.region.inputs[0][0]
    wanted = parts.run({name: x})
    alone = parts.on_one_thread()
    time.sleep(0.05)  # workers spin behind their last loop
    others = time.process_time() - time.thread_time()
    for _ in range(20):
        found = alone.run({name: x})
    assert time.process_time() - time.thread_time() - others < 1e-3
    for output, array in wanted.items():
        np.testing.assert_array_equal(found[output], array)
    assert [part.steps for part in alone.run_timed({name: x})[1]]


def test_a_pool_of_another_size_or_kind_is_refused(net):
    pool = sift_onnx.ThreadPool(2)
    assert sift_onnx.InferenceSession(net.model(), threads=2, pool=pool).threads == 2
    with pytest.raises(UsageError, match="threads is 3, but the pool has 2; pass one of the two"):
        sift_onnx.InferenceSession(net.model(), threads=3, pool=pool)
    with pytest.raises(UsageError, match="pool is a int; pass a"):
        sift_onnx.InferenceSession(net.model(), pool=2)
    with pytest.raises(UsageError, match="threads is 0; it must be at least 1"):
        sift_onnx.ThreadPool(0)


@pytest.mark.parametrize("cut", [True, False])
def test_workers_of_sub_graphs_sleep_when_their_run_ends(monkeypatch, cut):
    """They would keep the processor from the kernels of the next part. A model in one piece has no next part."""
    opened = []

    class Session(ort.InferenceSession):
        def __init__(self, source, options, **kwargs):
            opened.append(options)
            super().__init__(source, options, **kwargs)

    monkeypatch.setattr(ort, "InferenceSession", Session)
    model = SparseNet()
    x = model.input("x", 2, 8, 20, 20)
    model.output(model.conv(model.op("Atan", model.conv(x, 8, 32, 3)), 32, 32, 3) if cut else model.op("Atan", x))
    program = CpuProgram(model.model(), ONE_THREAD)
    assert len(program.parts) == (3 if cut else 1)
    (options,) = opened
    if cut:
        assert options.get_session_config_entry("session.force_spinning_stop") == "1"
    else:
        with pytest.raises(RuntimeError):
            options.get_session_config_entry("session.force_spinning_stop")
