"""Many independent runs on several processes; what a run found is kept in a file, so that nothing runs twice."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import click

from sift_onnx.backends.processors import usable_processors

__all__ = ["Jobs"]

Job = dict[str, Any]


class Jobs:
    """Runs jobs, which are arguments of a function as JSON has them.

    Args:
        folder: where results are kept, a file for each job.
        workers: processes, which share the cores; OMP_NUM_THREADS is the number of threads of each.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder = folder
        self.workers = workers
        self._taken: dict[Path, float | None] = {}

    @property
    def processor_seconds(self) -> float | None:
        """Of all jobs asked for so far, each counted once, whenever it ran; None where that is not known of one."""
        known = [taken for taken in self._taken.values() if taken is not None]
        return sum(known) if len(known) == len(self._taken) > 0 else None

    def run(self, function: Callable[..., Any], jobs: Sequence[Job], what: str) -> list[Any]:
        """What ``function`` returns for each of ``jobs``, in order.

        Args:
            function: of a module, called with a job's items as keywords; returns what JSON has.
            jobs: which arguments; equal ones are run once.
            what: is done, for the line that says how far it is.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        places = {self._place(function, job): job for job in jobs}
        missing = [(place, job) for place, job in places.items() if not place.exists()]
        start, done = time.monotonic(), 0
        # A fork of a process that has used torch's threads may hang.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self.workers, context, initializer=_share_cores, initargs=(self.workers,)) as pool:
            running = {pool.submit(_timed, function, job): (place, job) for place, job in missing}
            for future in as_completed(running):
                place, job = running[future]
                result, taken = future.result()
                unfinished = place.with_suffix(".part")
                kept = json.dumps({"job": job, "result": result, "seconds": round(taken, 2)})
                unfinished.write_text(kept + "\n", encoding="utf-8")
                unfinished.replace(place)
                done += 1
                if done % 10 == 0 or done == len(missing):
                    passed = time.monotonic() - start
                    click.echo(f"{what}: {done} of {len(missing)} runs, {passed:.0f} s", err=True)
        found = {place: json.loads(place.read_text(encoding="utf-8")) for place in places}
        self._taken |= {place: kept.get("seconds") for place, kept in found.items()}
        return [found[self._place(function, job)]["result"] for job in jobs]

    def _place(self, function: Callable[..., Any], job: Job) -> Path:
        text = json.dumps([function.__module__, function.__name__, job], sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.json"


def _timed(function: Callable[..., Any], job: Job) -> tuple[Any, float]:
    """What a job returns, and the processor time that it took, of all threads."""
    start = time.process_time()
    result = function(**job)
    return result, time.process_time() - start


def _share_cores(workers: int) -> None:
    """Before a job imports torch, which takes its number of threads from there, unless the user has said one."""
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, usable_processors() // workers)))
