"""Results of `digits.py`, `growth.py` and `sparse_step.py` as tables in Markdown."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pages

__all__ = ["ALGORITHMS", "digits_table", "growth_table", "mean_and_spread", "sizes_table", "steps_table"]

ALGORITHMS = {"static": "fixed masks", "set": "SET", "rigl": "RigL"}


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation over seeds."""
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def digits_table(found: dict[str, Any]) -> str:
    """A row per configuration, a column per width; how many seeds are above dense stands in brackets."""
    widths = sorted(found["test"], key=int)
    rows = []
    for name, rate in found["rates"].items():
        cells = []
        for width in widths:
            values, dense = found["test"][width][name], found["test"][width]["dense"]
            mean, spread = mean_and_spread(values)
            above = sum(value > other for value, other in zip(values, dense, strict=False))
            wins = f" ({above} of {len(values)})" if name != "dense" else ""
            cells.append(f"{mean:.1f} ± {spread:.1f}{wins}")
        sparsity, _, algorithm = name.partition(" ")
        label = f"{sparsity}, {ALGORITHMS[algorithm]}" if algorithm else name
        rows.append([label, f"{rate:g}", *cells])
    return pages.table(["", "rate", *(f"w = {width}" for width in widths)], rows)


def sizes_table(found: dict[str, Any]) -> str:
    """Multiply-accumulates of each width and sparsity, and the share of the layers that stay dense."""
    sparsities = list(next(iter(found["sizes"].values())))
    columns = ["MACs, dense" if s == "0" else f"s = {s}" for s in sparsities]
    rows = []
    for width, sizes in sorted(found["sizes"].items(), key=lambda item: int(item[0])):
        shares = ", ".join(f"{size['stem and head'] / size['macs']:.0%}" for size in sizes.values())
        rows.append([width, *(f"{size['macs']:,}" for size in sizes.values()), shares])
    shares_of = ", ".join("dense" if s == "0" else s for s in sparsities)
    return pages.table(["w", *columns, f"of these, first and last layer ({shares_of})"], rows)


def growth_table(seeds: Sequence[dict[str, float]]) -> str:
    """A row per quantity, over seeds."""
    rows = []
    for key in seeds[0]:
        values = [seed[key] for seed in seeds]
        figures = (*mean_and_spread(values), min(values), max(values))
        rows.append([key, *(f"{figure:.1f}" for figure in figures)])
    return pages.table(["", "mean", "standard deviation", "lowest", "highest"], rows)


def steps_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Ratios of `sparse_step.py`, their bounds, and what they are made of."""
    cells = []
    for row in rows:
        bound = "" if row["at_most"] is None else f"{row['at_most']:g}"
        missed = "" if row["at_most"] is None or row["ratio"] <= row["at_most"] else " (missed)"
        figures = [f"{row[side]:.4g} {row['unit']}" for side in ("ours", "theirs")]
        case = f"{row['case']} (commit {row['commit']})" if "commit" in row else row["case"]
        cells.append([case, row["against"], f"{row['ratio']:.3f}", bound + missed, *figures])
    return pages.table(["case", "against", "ratio", "at most", "ours", "theirs"], cells)
