"""Results of a processor as JSON: one file per processor, one entry per run of ``run.py``."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["DEEPSPARSE", "DENSE", "DENSE_CHAIN", "FOLDER", "SAME_FILE", "Processor", "Row", "Run", "add_run"]

FOLDER = Path(__file__).parent / "results"
SAME_FILE = "onnxruntime, same file"
DENSE = "onnxruntime, dense original"
DENSE_CHAIN = "onnxruntime, no weight zero"
DEEPSPARSE = "DeepSparse 1.8.0"


@dataclass(frozen=True)
class Row:
    """One ratio.

    Attributes:
        model: what ran, with its sparsity.
        against: what it is divided by; one of the names above, or another batch of the same program.
        ratio: ours over the other's; a median of pairs, so that it can differ from ``ours / theirs``.
        batch: items per run; None where there is none.
        what: the quantity that is compared.
        ours: in ``unit``; None where only the ratio was measured.
        theirs: in ``unit``.
        unit: of ``ours`` and ``theirs``.
        at_most: what the ratio should not exceed, if anything.
        at_least: what it should reach, if anything.
    """

    model: str
    against: str
    ratio: float
    batch: int | None = None
    what: str = "time"
    ours: float | None = None
    theirs: float | None = None
    unit: str = "ms"
    at_most: float | None = None
    at_least: float | None = None

    @property
    def label(self) -> str:
        """The row's name in a table."""
        batch = "" if self.batch is None else f", batch {self.batch}"
        what = "" if self.what == "time" else f", {self.what}"
        return f"{self.model}{batch}{what} : {self.against}"

    @property
    def bound(self) -> str:
        """What the ratio should be."""
        if self.at_least is not None:
            return f"at least {self.at_least:.2f}"
        return "" if self.at_most is None else f"at most {self.at_most:.2f}"

    @property
    def verdict(self) -> str:
        """Whether it is so; empty without a bound."""
        if self.at_least is not None:
            return "met" if self.ratio >= self.at_least else "missed"
        if self.at_most is not None:
            return "met" if self.ratio <= self.at_most else "missed"
        return ""


@dataclass(frozen=True)
class Run:
    """One call of ``run.py``.

    Attributes:
        date: of the measurement, ``YYYY-MM-DD``.
        commit: that was measured.
        command: that repeats it.
        threads: of every program.
        clock: ``wall``, or ``processor`` for processor time.
        onnxruntime: its version.
        rows: in the order in which they were measured.
        remarks: what a reader has to know of this run.
    """

    date: str
    commit: str
    command: str
    threads: int
    clock: str
    onnxruntime: str
    rows: Sequence[Row]
    remarks: str = ""


@dataclass(frozen=True)
class Processor:
    """A file of results.

    Attributes:
        processor: its name.
        isa: instruction set of the kernels that ran.
        machine: its cores and caches that could be used.
        runs: oldest first.
        stale: why the figures no longer describe this runtime; empty where they do.
    """

    processor: str
    isa: str
    machine: str
    runs: Sequence[Run] = ()
    stale: str = ""

    @classmethod
    def read(cls, path: Path) -> Processor:
        """Read a file of results."""
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        assert document.pop("schema") == 1
        runs = [Run(**run | {"rows": [Row(**row) for row in run["rows"]]}) for run in document.pop("runs")]
        return cls(**document, runs=runs)

    def write(self, path: Path) -> None:
        """Write the file; default values of rows are left out."""
        document = {"schema": 1, **asdict(self)}
        for run in document["runs"]:
            run["rows"] = [_without_defaults(row) for row in run["rows"]]
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(document, indent=1, ensure_ascii=False)
        # A line for each row, so that a difference shows which one changed.
        text = re.sub(r'\{\s+"model".*?\}', lambda row: json.dumps(json.loads(row[0])), text, flags=re.DOTALL)
        path.write_text(text + "\n", encoding="utf-8")


def _without_defaults(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if value != Row.__dataclass_fields__[key].default}


def add_run(path: Path, here: Processor, run: Run) -> None:
    """Append ``run`` to the results at ``path``, which are begun with ``here`` where there are none."""
    found = Processor.read(path) if path.exists() else here
    Processor(found.processor, found.isa, found.machine, [*found.runs, run], found.stale).write(path)
