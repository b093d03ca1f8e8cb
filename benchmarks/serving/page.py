"""README.md of this folder, from its files of results.

python benchmarks/serving/page.py
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pages

FOLDER = Path(__file__).parent
PAGE = FOLDER / "README.md"
_INTRODUCTION = """\
# Serving with the CPU runtime

Time to open a session, throughput for many callers, and cost of requests of many lengths, compared with onnxruntime on
the same file. All runs are interleaved in one process.
"""
# A file of results: its section, and the columns of its table by key.
_SECTIONS: dict[str, tuple[str, dict[str, str]]] = {
    "opening": (
        """
## Opening a session

A session is opened from the model, from a cache of lowered models (`packed_cache`), and in onnxruntime, with the files
in the page cache. Figures are the minimum of the rounds. "First run" is the first request of a new session, which packs
weights and may time both ways. Ratios are relative to onnxruntime's time to open.
""",
        {
            "model": "model", "way": "opened", "wall_ms": "ms", "median_ms": "median", "processor_ms": "processor ms",
            "ratio": "ratio", "processor_ratio": "of processor time", "first_run_ms": "first run, ms",
        },
    ),
    "callers": (
        """
## Many callers

Requests per second of all callers, also relative to one caller, by time and by processor time, and percentiles of
latencies. Ratios are medians over eight turns, percentiles are of all requests.
""",
        {
            "model": "model", "way": "who calls", "requests_per_second": "requests/s", "of_one_caller": "of one caller",
            "processor_of_one": "per second of processor time",
            "p50_ms": "p50, ms", "p90_ms": "p90", "p99_ms": "p99", "p99_of_p50": "p99 : p50",
        },
    ),
    "lengths": (
        """
## Lengths in rotation

Mean of the minimum times of all lengths, in milliseconds. "Alone" are sessions with a single length each. "First run"
is the first run of a length, relative to its minimum in rotation: the median and the largest over lengths, without the
length that came first. Of three new sessions, the minimum counts.
""",
        {
            "case": "case", "weights": "weights", "in_turn_ms": "in turn", "alone_ms": "alone",
            "onnxruntime_ms": "onnxruntime", "to_alone": "to alone", "to_onnxruntime": "to onnxruntime",
            "first_run": "first run", "first_run_most": "largest",
        },
    ),
}  # fmt: skip


def section(document: dict[str, Any], text: str, columns: dict[str, str]) -> str:
    """A section: what it is of, where it was measured and how, and a table."""
    rows = document["rows"]
    threads = ", ".join(str(n) for n in sorted({row["threads"] for row in rows}))
    said = f"{pages.measured_on(document)} Threads: {threads}. {document.get('remarks', '')}"
    head = f"{text}\n{textwrap.fill(said.strip(), 120)}\n\n    {document['command']}\n\n"
    return head + pages.table(list(columns.values()), [[str(row[key]) for key in columns] for row in rows])


def page(folder: Path = FOLDER) -> str:
    """The page, with a section for each file of results that is there."""
    sections = [
        section(pages.read(folder / f"{name}.json"), *words)
        for name, words in _SECTIONS.items()
        if (folder / f"{name}.json").exists()
    ]
    return _INTRODUCTION + "".join(sections)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
