"""What a session costs besides the time of its runs: memory, and the time to create it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from sift_onnx.backends.base import CompileOptions, get_backend

__all__ = ["creation_seconds", "session_bytes"]

_ROUNDS = 5
# In a separate process: a program would reuse what an earlier one left in the allocator.
_PROBE = """
import gc, sys
from sift_onnx.backends.base import CompileOptions, get_backend
from sift_onnx.shapes.random_inputs import random_feeds

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))

path, backend, threads = sys.argv[1], get_backend(sys.argv[2]), int(sys.argv[3])
before = resident()
program = backend.compile(path, CompileOptions(threads))
gc.collect()
created = resident()
program.run(random_feeds(program.inputs, 1))
gc.collect()
print(created - before, resident() - before)
"""


def session_bytes(path: Path, backend: str, threads: int) -> tuple[int, int]:
    """Resident memory that a session adds to its process: when created, and after a run at batch 1."""
    command = [sys.executable, "-c", _PROBE, str(path.resolve()), backend, str(threads)]
    # Elsewhere than in the sources' folder, whose `sift_onnx` lacks what an installation puts there.
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)
    created, run = done.stdout.split()
    return int(created), int(run)


def creation_seconds(path: Path, threads: int) -> tuple[float, float]:
    """The least time of ours and of onnxruntime's creation of a session, in turns, the file in the page cache."""
    backends = [get_backend(name) for name in ("cpu", "onnxruntime")]
    least = [float("inf")] * 2
    for _ in range(_ROUNDS):
        for i, backend in enumerate(backends):
            start = time.perf_counter()
            program = backend.compile(path, CompileOptions(threads))
            least[i] = min(least[i], time.perf_counter() - start)
            del program
    return least[0], least[1]
