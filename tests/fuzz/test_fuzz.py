"""A sample of the mutated files; `make fuzz` tries all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz.cases import lay_out, mutated_file
from fuzz.harm import die, hang, want_memory
from fuzz.seeds import seed_files
from fuzz.trial import Outcome, try_file
from fuzz.workers import Limits, try_all
from sift_onnx.model import Model

# Crashes, hangs and tracebacks of old, as long as seeds stay as they are; each has a test of its own elsewhere.
_FOUND = (
    69,
    204,
    245,
    455,
    528,
    833,
    843,
    1079,
    1389,
    2080,
    2476,
    3581,
    3917,
    4065,
    4200,
    4842,
    5680,
    5989,
    7760,
    7840,
)


def test_mutated_files_are_taken_or_refused_in_one_line(tmp_path: Path) -> None:
    results = list(try_all([*_FOUND, *range(100_000, 100_100)], 0, 1, Limits(seconds=60), tmp_path))
    findings = [f"file {r.number} (of {r.origin}): {finding}" for r in results for finding in r.findings]
    assert not findings, "\n".join(findings)
    # Mutations that break everything at the door would find nothing.
    assert sum("load" in result.passed for result in results) > 20
    assert sum("session" in result.passed for result in results) > 10


def test_every_seed_goes_through_what_it_is_made_for() -> None:
    seeds = seed_files()
    for name in ("images", "tokens", "functions", "external", "masked/images-dense", "masked/tokens-sparse"):
        outcome = try_file(seeds[name], 0)
        assert outcome.findings == []
        assert {"load", "inspect", "session"} <= set(outcome.passed), name


def test_a_case_is_the_same_each_time() -> None:
    seeds = seed_files()
    assert seed_files() == seeds
    assert [mutated_file(seeds, n) for n in range(50)] == [mutated_file(seeds, n) for n in range(50)]
    assert len({content for _, content in (mutated_file(seeds, n) for n in range(50))}) > 40


@pytest.mark.parametrize(("trial", "word"), [(die, "died"), (hang, "more than"), (want_memory, "MemoryError")])
def test_crashes_hangs_and_memory_are_found_and_the_next_file_is_tried(
    trial: Callable[..., Outcome], word: str, tmp_path: Path
) -> None:
    results = list(try_all([1, 2], 0, 1, Limits(seconds=1), tmp_path, trial))
    assert [word in "".join(result.findings) for result in results] == [True, True]


def test_a_traceback_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: object) -> Model:
        raise KeyError("x")

    content = seed_files()["linear"]
    monkeypatch.setattr(Model, "load", fail)
    outcome = try_file(content, 0)
    assert [("KeyError" in finding) for finding in outcome.findings] == [True] * 4


def test_nothing_of_the_outside_lies_inside(tmp_path: Path) -> None:
    path = lay_out(tmp_path, b"model")
    assert path.read_bytes() == b"model"
    assert (path.parent / "link.bin").resolve() == (tmp_path / "outside.bin").resolve()
