"""Types are described once, whatever the number of threads that use them first."""

import os
import subprocess
import sys

import msgspec
import pytest

from sift_onnx.settings.typed import typed

# Without the lock, it crashed in six of six runs.
FIRST_USE = """
import sys, threading
from dataclasses import make_dataclass
import msgspec
from sift_onnx.settings.typed import typed

sys.setswitchinterval(1e-6)
for number in range(40):
    inner = msgspec.defstruct("Inner", [("a", int), ("b", dict[str, float])])
    outer = make_dataclass("Outer", [("inner", tuple[inner, ...]), ("n", int)])
    ready, found = threading.Barrier(8), []

    def use():
        ready.wait()
        found.append(typed({"inner": [{"a": number, "b": {"c": 1.5}}], "n": 2}, outer))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert len(found) == 8 and all(one == outer((inner(number, {"c": 1.5}),), 2) for one in found)
"""


FORK = """
import os, threading
from sift_onnx.settings import typed as module

held, done = threading.Event(), threading.Event()

def hold():
    with module._describing:
        held.set()
        done.wait()

threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if child == 0:
    os._exit(0 if module._describing.acquire(blocking=False) and module.typed(3, int) == 3 else 1)
status = os.waitpid(child, 0)[1]
done.set()
assert os.waitstatus_to_exitcode(status) == 0
"""


def run(script: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


def test_threads_that_use_a_type_first_do_not_crash() -> None:
    run(FIRST_USE)


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(msgspec.ValidationError):
        typed("a", int)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_child_that_is_forked_meanwhile_does_not_wait() -> None:
    run(FORK)
