"""DeepSparse 1.8.0 in a separate Python environment, timed as a black box."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import TracebackType

__all__ = ["HOME", "DeepSparse", "missing_peer"]

HOME = Path(os.environ.get("SIFT_PEERS", "~/.cache/sift-peers")).expanduser() / "deepsparse"
# Runs for as many seconds as each line says, and answers with the milliseconds of each run. What the engine prints of
# itself goes elsewhere.
_WORKER = """
import json, os, sys, time
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
from deepsparse import Engine
engine = Engine(sys.argv[1], batch_size=int(sys.argv[2]), num_cores=int(sys.argv[3]))
inputs = engine.generate_random_inputs()
clock = time.process_time if sys.argv[4] == "processor" else time.perf_counter
engine.run(inputs)
for line in sys.stdin:
    times, end = [], time.perf_counter() + float(line)
    while not times or time.perf_counter() < end:
        start = clock()
        engine.run(inputs)
        times.append(1e3 * (clock() - start))
    print(json.dumps(times), file=answers, flush=True)
"""


def missing_peer(home: Path = HOME) -> str:
    """How to install DeepSparse in an environment of its own; empty if it is there."""
    if (home / "bin" / "python").exists():
        return ""
    return (
        f"DeepSparse is not installed in {home}. It needs Python 3.8 to 3.11; its licence allows evaluation only:\n"
        f"    python3.11 -m venv {home} && {home}/bin/pip install deepsparse==1.8.0"
    )


class DeepSparse:
    """A model at one batch, compiled in a process that waits to be asked."""

    def __init__(self, path: Path, batch: int, threads: int, processor_time: bool = False, home: Path = HOME) -> None:
        clock = "processor" if processor_time else "wall"
        command = [str(home / "bin" / "python"), "-c", _WORKER, str(path.resolve()), str(batch), str(threads), clock]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"NM_DISABLE_ANALYTICS": "1"},
        )

    def run(self, seconds: float) -> list[float]:
        """Milliseconds of each run in a row of runs, at least one."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("DeepSparse ended; run its engine by hand to see why")
        times: list[float] = json.loads(answer)
        return times

    def __enter__(self) -> DeepSparse:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()
