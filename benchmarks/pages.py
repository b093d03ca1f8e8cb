"""What the pages of results share: where and when figures were measured, tables in Markdown, charts that name them."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Measured", "chart", "commit", "digest", "processor_name", "table"]


@dataclass(frozen=True)
class Measured:
    """Figures of one script, as JSON.

    Attributes:
        processor: its name.
        date: of the measurement, ``YYYY-MM-DD``.
        commit: that was measured.
        command: that repeats it.
        rows: one mapping per row of the table, from the name of a column to its figure.
        remarks: what a reader has to know of this measurement.
    """

    processor: str
    date: str
    commit: str
    command: str
    rows: Sequence[dict[str, Any]]
    remarks: str = ""

    @classmethod
    def here(cls, rows: Sequence[dict[str, Any]]) -> Measured:
        """``rows`` as the running script has measured them, on this processor and today."""
        return cls(processor_name(), dt.date.today().isoformat(), commit(), shlex.join(["python", *sys.argv]), rows)

    @classmethod
    def read(cls, path: Path) -> Measured:
        """Read a file of results."""
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        assert document.pop("schema") == 1
        return cls(**document)

    def write(self, path: Path) -> None:
        """Write a file of results, with a line for each row, so that a difference shows which one changed."""
        lines = ",\n".join(f"  {json.dumps(row)}" for row in self.rows)
        head = json.dumps({"schema": 1, **asdict(self), "rows": []}, indent=1, ensure_ascii=False)
        path.write_text(head.replace('"rows": []', f'"rows": [\n{lines}\n ]') + "\n", encoding="utf-8")

    @property
    def origin(self) -> str:
        """Where and when it was measured, as a sentence."""
        remarks = f" {self.remarks}" if self.remarks else ""
        return f"Measured on {self.processor}; {self.date}, commit {self.commit}.{remarks}"


def commit() -> str:
    """The commit of the checkout; ``-dirty`` where tracked files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.check_output(command, text=True, cwd=Path(__file__).parent).strip()


def processor_name() -> str:
    """The processor's own name with family and model, as virtual machines hide parts of it."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return platform.processor() or platform.machine()
    lines = path.read_text(encoding="utf-8").splitlines()
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = found.get("model name", platform.machine())
    return f"{name} (family {found.get('cpu family')}, model {found.get('model')})"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; columns are aligned to the right where every cell begins with a digit."""
    columns = zip(*rows, strict=True)
    marks = ["---:" if all(re.match(r"\d|$", cell) for cell in column) else "---" for column in columns]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (header, marks, *rows))


def digest(shown: Any) -> str:
    """A digest of all that a chart shows: the chart has it, so that a chart of other figures is found."""
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()


@contextmanager
def chart(path: Path, key: str, **settings: Any) -> Iterator[Any]:
    """A matplotlib figure to draw on, which becomes an SVG with ``key`` in it.

    Args:
        path: of the SVG.
        key: from :func:`digest`.
        **settings: of ``pyplot.figure``.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        sys.exit("charts need matplotlib: pip install matplotlib")
    mpl.use("svg")
    # The same bytes for the same figures, and text that stays text.
    mpl.rcParams.update({"svg.hashsalt": path.parent.name, "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot as plt

    figure = plt.figure(layout="constrained", facecolor="white", **settings)
    yield figure
    figure.savefig(path, metadata={"Date": None, "Description": key})
    plt.close(figure)
