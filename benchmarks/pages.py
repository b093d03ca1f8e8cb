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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = [
    "chart",
    "commit",
    "digest",
    "measured_on",
    "origin",
    "processor_name",
    "read",
    "table",
    "write",
    "write_over",
]


def origin() -> dict[str, Any]:
    """What a file of results says of the running script: where, when, of which commit and by which command."""
    return {
        "schema": 1,
        "processor": processor_name(),
        "date": dt.date.today().isoformat(),
        "commit": commit(),
        # Other machines keep their files elsewhere.
        "command": shlex.join(
            ["python", *(Path(word).name if Path(word).is_absolute() else word for word in sys.argv)]
        ),
    }


def measured_on(origin: Mapping[str, Any]) -> str:
    """The same as a sentence."""
    return f"Measured on {origin['processor']}; {origin['date']}, commit {origin['commit']}."


def read(path: Path) -> dict[str, Any]:
    """A file of results: what :func:`origin` says, and the figures."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert document["schema"] == 1
    return document


def write(path: Path, rows: Sequence[Mapping[str, Any]], of: Mapping[str, Any] | None = None) -> None:
    """Write a file of results, with a line for each row, so that a difference shows which one changed.

    Args:
        path: of the file.
        rows: its figures.
        of: what :func:`origin` said when most of them were measured; now, by default.
    """
    head = json.dumps((origin() if of is None else dict(of)) | {"rows": []}, indent=1, ensure_ascii=False)
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    path.write_text(head.replace('"rows": []', f'"rows": [\n{lines}\n ]') + "\n", encoding="utf-8")


def write_over(
    path: Path, rows: Sequence[Mapping[str, Any]], earlier: Mapping[str, Any] | None, keys: Sequence[str]
) -> None:
    """Write rows in the place of those of an earlier run, and the others behind them, with the commit that they are of.

    Args:
        path: of the file.
        rows: what was measured now.
        earlier: what :func:`read` found in the file before; None if there was none: then as :func:`write`.
        keys: columns that tell which row is which.
    """
    if earlier is None:
        write(path, rows)
        return
    now = {tuple(row[key] for key in keys): dict(row) | {"commit": commit()} for row in rows}
    merged = [now.pop(tuple(row[key] for key in keys), row) for row in earlier["rows"]]
    write(path, [*merged, *now.values()], {key: value for key, value in earlier.items() if key != "rows"})


def commit(root: Path = Path(__file__).parents[1]) -> str:
    """The commit of the checkout; ``-dirty`` where tracked files differ from it, other than what benchmarks write."""
    describe = ["git", "describe", "--always", "--exclude=*"]
    name = subprocess.check_output(describe, text=True, cwd=root).strip()
    written = [f":(exclude,glob)benchmarks/**/*.{suffix}" for suffix in ("json", "md", "svg")]
    differ = ["git", "diff-index", "--quiet", "HEAD", "--", ".", *written]
    changed = subprocess.run(differ, cwd=root, check=False)
    return f"{name}-dirty" if changed.returncode else name


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
