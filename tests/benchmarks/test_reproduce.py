"""The reproduction's own logic: what counts as a difference, that nothing is run twice, and the page it writes."""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def reproduce():
    """Modules of benchmarks/reproduce, by name."""
    sys.path.insert(0, str(ROOT / "benchmarks" / "reproduce"))
    try:
        yield importlib.import_module
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize(
    ("first", "second", "above"),
    [
        ([3.0, 4.0, 5.1], [1.0, 2.0, 3.0], True),
        ([1.0, 2.0, 3.0], [3.0, 4.0, 5.1], False),
        ([1.0, 9.0, 2.0], [3.0, 2.0, 4.0], None),
        # One seed has no spread that a difference could be held against.
        ([5.0], [1.0], None),
    ],
)
def test_a_difference_counts_beyond_two_standard_errors(reproduce, first, second, above):
    difference = reproduce("compare").Difference.of(first, second)
    assert difference.is_above is above
    assert math.isclose(difference.mean, sum(first) / len(first) - sum(second) / len(second))


def test_standard_error_is_that_of_paired_differences(reproduce):
    difference = reproduce("compare").Difference.of([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (difference.mean, difference.error) == (2.0, 1 / math.sqrt(3))
    assert str(difference) == "+2.00 ± 0.58"


@pytest.mark.parametrize(
    ("found", "says"),
    [([True, True], True), ([True, None], None), ([None], None), ([True, False, None], False)],
)
def test_a_sentence_holds_if_every_comparison_does_and_fails_if_one_does(reproduce, found, says):
    assert reproduce("compare").verdict(found) is says


def test_jobs_run_once_and_come_back_in_order(reproduce, tmp_path):
    jobs = reproduce("jobs").Jobs(tmp_path, 2)
    arguments = [{"a": [n, 2], "b": [1, n]} for n in (3, 1, 3)]
    found = jobs.run(_dot, arguments, "products")
    assert found == [9, 3, 9]
    kept = sorted(tmp_path.iterdir())
    assert len(kept) == 2
    for path in kept:
        path.write_text(path.read_text().replace('"result": 9', '"result": 90'))
    assert jobs.run(_dot, arguments, "products") == [90, 3, 90]


def test_a_job_that_fails_ends_the_run_and_what_is_done_stays(reproduce, tmp_path):
    jobs = reproduce("jobs").Jobs(tmp_path, 1)
    with pytest.raises(TypeError):
        jobs.run(_dot, [{"a": [1], "b": [1]}, {"a": 1, "b": 1}], "products")
    assert [json.loads(path.read_text())["result"] for path in tmp_path.glob("*.json")] == [1]


def _dot(a: list[int], b: list[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))


def test_the_page_sorts_sentences_by_whether_they_hold(reproduce, tmp_path):
    pytest.importorskip("matplotlib")
    outcome = reproduce("outcome")
    claims = [
        outcome.Claim("One holds.", True, "2 is 2.", "not said"),
        outcome.Claim("One does not.", False, "3 is not 4.", "It is odd."),
        outcome.Claim("One is open.", None, "0 ± 1."),
    ]

    def draw(figure: Any) -> None:
        figure.subplots().plot([1, 2])

    found = outcome.Outcome("tableX", "Table X", "Measured.", ("a", "b"), [["1", "2"]], claims, {"x": 1}, draw)
    outcome.write(found, tmp_path, "python run.py tableX", "small", "cpu", 3.21)
    page = (tmp_path / "tableX" / "README.md").read_text()
    places = [
        page.index(text) for text in ("## What agrees", "One holds", "## What does not", "It is odd", "told", "open")
    ]
    assert places == sorted(places)
    assert "not said" not in page
    document = json.loads((tmp_path / "tableX" / "results.json").read_text())
    assert [claim["agrees"] for claim in document["claims"]] == [True, False, None]
    assert (document["values"], document["seconds"], document["setting"]) == ({"x": 1}, 3.2, "small")
    before = (tmp_path / "tableX" / "chart.svg").read_bytes()
    outcome.write(found, tmp_path, "python run.py tableX", "small", "cpu", 4.0)
    assert (tmp_path / "tableX" / "chart.svg").read_bytes() == before
