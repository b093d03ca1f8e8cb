"""Forked children, and processes that exit while threads are at work: each case in a Python of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("other_processes.py")
FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")


def run(name: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(SCRIPT.parents[3] / "support"), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, SCRIPT, name], capture_output=True, text=True, check=False, timeout=300, env=environment
    )
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)


@FORKS
@pytest.mark.parametrize(
    "name",
    [
        "pool_goes_in_a_child_with_threads_of_its_own",
        "session_answers_in_a_child",
        "child_does_not_read_another_model",
        "forks_while_another_thread_packs_and_infers",
    ],
)
def test_forked_children(name: str) -> None:
    run(name)


@FORKS
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_child_uses_as_many_threads_as_its_parent() -> None:
    run("child_uses_as_many_threads_as_its_parent")


@pytest.mark.parametrize("name", ["exits_while_another_thread_computes", "exits_while_other_threads_begin"])
def test_a_process_exits_while_other_threads_are_at_work(name: str) -> None:
    run(name)
