"""Results of `zoo.py`, `shipped.py` and `continued.py` as tables in Markdown."""

from __future__ import annotations

import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verdicts import FAMILIES, verdict

sys.path.insert(0, str(Path(__file__).parents[1]))

import pages

__all__ = ["conditioning_table", "continued_table", "families_table", "models_table", "reasons_table", "shipped_table"]

Rows = Sequence[Mapping[str, Any]]
_LONGEST_REASON = 200


def families_table(rows: Rows) -> str:
    """How many exports of each family grow, by sparsity."""
    counts: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        counts[row["family"], row["sparsity"]].append(row)
    cells = []
    for (family, sparsity), found in sorted(
        counts.items(), key=lambda item: (list(FAMILIES).index(item[0][0]), item[0])
    ):
        verdicts = [verdict(row) for row in found]
        grown = verdicts.count("grown")
        worst = max((row["error"] for row in found if "error" in row), default=0.0)
        numbers = [len({row["model"] for row in found}), len(found), grown]
        others = [verdicts.count(kind) for kind in ("in part", "refused", "wrong")]
        cells.append(
            [family, sparsity, *map(str, numbers), f"{grown / len(found):.0%}", *map(str, others), f"{worst:.1e}"]
        )
    header = ["family", "s", "models", "exports", "grown", "share", "in part", "refused", "wrong", "largest error"]
    return pages.table(header, cells)


def models_table(rows: Rows) -> str:
    """A row for each model: how far its exports grow, and the largest error."""
    models: dict[tuple[str, str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        models[row["family"], row["library"], row["model"]].append(row)
    sparsities = sorted({row["sparsity"] for row in rows})
    cells = []
    for (family, library, model), found in models.items():
        growth = [_growth([row for row in found if row["sparsity"] == sparsity]) for sparsity in sparsities]
        exporters = ", ".join(dict.fromkeys(row["exporter"] for row in found))
        errors = [row["error"] for row in found if "error" in row]
        cells.append([model, library, family, exporters, *growth, f"{max(errors):.1e}" if errors else ""])
    return pages.table(
        ["model", "library", "family", "exporters", *(f"s = {s}" for s in sparsities), "largest error"], cells
    )


def _growth(rows: Rows) -> str:
    """Multiply-accumulates without masks; what has not grown, most of it, by what it is."""
    said = [f"×{row['growth']:.2f}" if verdict(row) == "grown" else verdict(row) for row in rows]
    return ", ".join(dict.fromkeys(said))


def reasons_table(rows: Rows) -> str:
    """What keeps its width, or is refused, and why."""
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        for text in [row["refused"]] if "refused" in row else row.get("kept", ()) or [row.get("defect", "")]:
            if text:
                reasons[row.get("model") or row["file"], _general(text)].append(verdict(row))
    cells = [[name, ", ".join(dict.fromkeys(found)), reason] for (name, reason), found in reasons.items()]
    return pages.table(["model", "verdict", "what keeps its width, and why"], cells)


def _general(reason: str) -> str:
    """A reason without the names and numbers of one node among many, in one line."""
    text = re.sub(r"^\S+ \((\w+)\)", r"\1", reason)
    text = re.sub(r"grows from \d+ to \d+", "grows", text)
    text = re.sub(r"\d[\d,]* times instead of \d[\d,]*", "more often", text)
    text = re.sub(r": \d+ features .* places$", "", text)
    text = text.replace("|", "\\|")
    return text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON].rsplit(" ", 1)[0] + " ..."


def shipped_table(rows: Rows) -> str:
    """A row for each file."""
    files: dict[tuple[str, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        files[row["package"], row["version"], row["file"], row["about"]].append(row)
    cells = []
    for (package, version, file, about), found in files.items():
        macs = next((f"{row['macs'] / 1e6:,.1f}" for row in found if "macs" in row), "")
        errors = [f"{row['error']:.1e}" if "error" in row else "" for row in found]
        cells.append(
            [f"{package.replace('_', '-')} {version}", file, about, macs, *(_growth([r]) for r in found), *errors]
        )
    sparsities = list(dict.fromkeys(row["sparsity"] for row in rows))
    header = ["package", "file", "what it does", "million MACs"]
    header += [f"s = {s}" for s in sparsities] + [f"error at {s}" for s in sparsities]
    return pages.table(header, cells)


def conditioning_table(rows: Rows) -> str:
    """Where outputs differ notably: what rounding does to the original, and the difference in double precision."""
    cells = [
        [
            row.get("model") or row["file"],
            row.get("exporter") or row["package"].replace("_", "-"),
            row["sparsity"],
            *(f"{row[key]:.1e}" for key in ("error", "rounding", "rounding_grown", "error64")),
        ]
        for row in rows
        if "rounding" in row
    ]
    header = ["model", "from", "s", "grown - original", "original - exact", "grown - exact", "in double precision"]
    return pages.table(header, cells)


def continued_table(tasks: Mapping[str, Rows]) -> str:
    """A row per model and training: loss on examples that no training saw, mean and spread over seeds."""
    cells = []
    for task, rows in tasks.items():
        second = next(key for key in rows[0]["dense"] if key != "loss")
        for key, label in LABELS.items():
            values = [[row[key][name] for row in rows] for name in ("loss", second)]
            better = sum(row[key]["loss"] < row["dense"]["loss"] for row in rows)
            figures = [f"{statistics.mean(v):.4f} ± {statistics.stdev(v):.4f}" for v in values]
            compared = f"{better} of {len(rows)}" if key == "rigl" else ""
            cells.append([task, label, figures[0], f"{figures[1]} ({second})", compared])
    return pages.table(["model", "training", "loss", "other metric", "seeds with a lower loss than dense"], cells)


LABELS = {
    "original": "original",
    "grown": "grown, not trained further",
    "dense": "original, trained further",
    "rigl": "grown, trained further with RigL",
}
