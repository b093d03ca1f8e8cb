"""Processes that try cases, with limits on memory and time; one that dies or hangs is a finding, and replaced."""

from __future__ import annotations

import faulthandler
import multiprocessing as mp
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fuzz.trial import Outcome, try_file

__all__ = ["Limits", "Result", "try_all"]

Trial = Callable[[bytes, int, Callable[[str], None]], Outcome]

# Sessions leave caches behind, in this package's libraries and others'.
_CASES_PER_PROCESS = 500


@dataclass(frozen=True)
class Limits:
    """What one case may take: seconds, and bytes of address space of the process that tries it."""

    seconds: float = 10.0
    memory: int = 4 << 30


@dataclass(frozen=True)
class Result:
    """How a case went: where it came from, the stages that it passed, how long it took, and what was found."""

    number: int
    origin: str
    passed: tuple[str, ...]
    seconds: float
    findings: tuple[str, ...]


def _work(pipe: Connection, seed: int, limits: Limits, log: str, try_file: Trial) -> None:
    from fuzz.cases import mutated_file
    from fuzz.seeds import seed_files

    # What native code prints before it dies.
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    faulthandler.enable(descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    seeds = seed_files()
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory, limits.memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        number = pipe.recv()
        if number is None:
            return
        origin, content = mutated_file(seeds, number, seed)
        pipe.send(("begins", origin))
        outcome = try_file(content, number, lambda stage: pipe.send(("stage", stage)))
        pipe.send(("done", outcome))


class _Worker:
    """A process and the case that it is at."""

    def __init__(self, context: Any, seed: int, limits: Limits, log: Path, trial: Trial) -> None:
        arguments = (seed, limits, str(log), trial)
        self._start = lambda pipe: context.Process(target=_work, args=(pipe, *arguments), daemon=True)
        self.limits, self.log = limits, log
        self.number: int | None = None
        self.launch()

    def launch(self) -> None:
        self.pipe, other = mp.Pipe()
        self.process = self._start(other)
        self.process.start()
        other.close()
        self.tried = 0

    def begin(self, number: int) -> None:
        if self.tried >= _CASES_PER_PROCESS:
            self.stop()
            self.launch()
        self.number, self.origin, self.stage, self.began = number, "", "", None
        self.tried += 1
        self.pipe.send(number)

    def stop(self) -> None:
        if self.process.is_alive():
            try:
                self.pipe.send(None)
                self.process.join(5)
            except OSError:
                pass
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.pipe.close()

    def result(self) -> Result | None:
        """What came of the case, if it is over."""
        try:
            while self.pipe.poll():
                kind, value = self.pipe.recv()
                if kind == "begins":
                    self.origin, self.began = value, time.monotonic()
                elif kind == "stage":
                    self.stage = value
                else:
                    return self._end(tuple(value.passed), tuple(value.findings))
        except (EOFError, OSError):
            self.process.join()
            said = self.log.read_text(errors="replace")[-6000:]
            result = self._end((), (f"{self.stage}: the process died, code {self.process.exitcode}\n{said}",))
            self.launch()
            return result
        if self.began is not None and time.monotonic() - self.began > self.limits.seconds:
            # It says where it is before it goes.
            os.kill(self.process.pid, signal.SIGABRT)
            self.process.join(2)
            said = self.log.read_text(errors="replace")[-6000:]
            result = self._end((), (f"{self.stage}: more than {self.limits.seconds:g} s\n{said}",))
            self.stop()
            self.launch()
            return result
        return None

    def _end(self, passed: tuple[str, ...], findings: tuple[str, ...]) -> Result:
        assert self.number is not None
        seconds = time.monotonic() - (self.began or time.monotonic())
        result = Result(self.number, self.origin, passed, seconds, findings)
        self.number = None
        return result


def try_all(
    numbers: Iterable[int], seed: int, jobs: int, limits: Limits, logs: Path, trial: Trial = try_file
) -> Iterator[Result]:
    """Results in the order in which they come.

    Args:
        numbers: of the files.
        seed: of all mutations.
        jobs: processes.
        limits: of one file.
        logs: folder for what the processes print.
        trial: what is done with a file; a function of a module, since it travels to the processes by its name.
    """
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["fuzz.trial", "fuzz.seeds"])
    workers = [_Worker(context, seed, limits, logs / f"worker{i}.log", trial) for i in range(jobs)]
    waiting = iter(numbers)
    try:
        for worker in workers:
            _next(worker, waiting)
        while any(worker.number is not None for worker in workers):
            wait([worker.pipe for worker in workers if worker.number is not None], timeout=0.5)
            for worker in workers:
                result = worker.result() if worker.number is not None else None
                if result is not None:
                    yield result
                    _next(worker, waiting)
    finally:
        for worker in workers:
            worker.stop()


def _next(worker: _Worker, waiting: Iterator[int]) -> None:
    number = next(waiting, None)
    if number is not None:
        worker.begin(number)
