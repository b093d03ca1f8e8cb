"""The figures of the README: its table and both of its charts, from the committed results of the benchmarks.

python benchmarks/front_page.py        # needs `pip install matplotlib`; prints what the README quotes
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "cpu_runtime"))

import pages
from results import DENSE, SAME_FILE, Processor, Row

__all__ = [
    "IMAGES",
    "accuracy_key",
    "draw_accuracy",
    "draw_latency",
    "latency_key",
    "read_results",
    "readme_cost",
    "readme_table",
]

HERE = Path(__file__).parent
IMAGES = HERE.parent / "docs" / "images"
ALGORITHM, SPARSITIES, WIDTH = "RigL", ("50%", "75%", "90%"), "3"
BEST = "75% rigl"
# Of these models; a batch of one is what most requests are.
MODELS, BATCH = ("ResNet-18 90 %", "ResNet-18 75 %", "BERT Small 75 %", "MobileNetV2 75 %"), 1
GREY, COLOURS = "#8b949e", ("#74abec", "#1f5fa8", "#0b3a70")
OURS, THEIRS = "#17806d", "#c2571a"
Rows = Mapping[tuple[str, int], Mapping[str, Row]]


def read_results() -> tuple[dict[str, Any], Processor, Rows]:
    """Trainings on digits; the newest processor that times were measured on; its rows by model and batch."""
    digits = pages.read(HERE / "training" / "digits.json")
    found = [Processor.read(path) for path in sorted((HERE / "cpu_runtime" / "results").glob("*.json"))]
    processor = max((p for p in found if not p.stale), key=lambda p: p.runs[-1].date)
    rows: dict[tuple[str, int], dict[str, Row]] = {}
    for run in processor.runs:
        for row in run.rows:
            if run.clock == "wall" and row.what == "time" and row.batch is not None:
                rows.setdefault((row.model, row.batch), {})[row.against] = row
    return digits, processor, rows


def readme_table(digits: Mapping[str, Any], processor: Processor, rows: Rows) -> str:
    """The table of the README, in Markdown."""
    tested, sizes = digits["test"][WIDTH], digits["sizes"][WIDTH]
    dense, best = tested["dense"], tested[BEST]
    above = sum(b > d for b, d in zip(best, dense, strict=True))
    row = rows[MODELS[0], BATCH]
    run = processor.runs[-1]
    lines = [
        ["MACs per image, digits", f"{sizes['0']['macs']:,}", f"{sizes['0.75']['macs']:,}"],
        [
            "accuracy on held-out images, digits",
            f"{_mean(dense)} %",
            f"**{_mean(best)} %**, above dense in {above} of {len(dense)} runs",
        ],
        [
            f"latency of ResNet-18 at 90 %, batch {BATCH}, onnxruntime",
            f"{row[DENSE].theirs:.1f} ms",
            f"{row[SAME_FILE].theirs:.0f} ms, with the zeros multiplied",
        ],
        [
            "the same, sift-onnx",
            "",
            f"**{row[DENSE].ours:.1f} ms**, {row[DENSE].ratio:.2f} times the dense original's",
        ],
    ]
    table = pages.table(["", "dense original", "Sparse Wide, same MACs"], lines)
    return (
        f"{table}\nDigits: mean and standard deviation of {len(dense)} trainings of {digits['epochs']} epochs "
        f"({digits['date']}). Latency: {run.threads} cores of an\n{processor.processor}, {run.date}.\n"
    )


def readme_cost(rows: Rows) -> str:
    """The sentences of the README about latency."""
    dense, same = ([row[other].ratio for row in rows.values() if other in row] for other in (DENSE, SAME_FILE))
    return (
        f"takes {min(dense):.1f} to {max(dense):.1f} times as long in our "
        "[measurements](benchmarks/cpu_runtime/README.md). On the same file, onnxruntime\n"
        f"takes {1 / max(same):.1f} to {1 / min(same):.1f} times as long as sift-onnx."
    )


def accuracy_key(digits: Mapping[str, Any]) -> str:
    """A digest of all that the chart of accuracy shows."""
    return pages.digest([digits["test"], digits["sizes"]])


def draw_accuracy(digits: Mapping[str, Any], path: Path) -> None:
    """Accuracies of models with equal MACs next to each other, for three sizes."""
    widths = sorted(digits["test"], key=int)
    names = ["dense", *(f"{s} {ALGORITHM.lower()}" for s in SPARSITIES)]
    with pages.chart(path, accuracy_key(digits), figsize=(5.0, 3.3)) as figure:
        axis = figure.subplots()
        for i, (name, colour) in enumerate(zip(names, (GREY, *COLOURS), strict=True)):
            means, spreads = zip(*(_mean_and_spread(digits["test"][w][name]) for w in widths), strict=True)
            label = "dense original" if name == "dense" else f"Sparse Wide {name.split()[0]}, {ALGORITHM}"
            x = [n + 0.16 * (i - 1.5) for n in range(len(widths))]
            axis.errorbar(x, means, spreads, fmt="os"[i == 0], label=label, color=colour, markersize=6, capsize=2)
        axis.set_xticks(range(len(widths)), [f"{digits['sizes'][w]['0']['macs']:,}" for w in widths])
        axis.set_xlabel("multiply-accumulates per image, equal for all four models")
        axis.set_ylabel("accuracy on held-out images, %")
        axis.set_title("More accuracy at the same cost", loc="left", fontsize=10, fontweight="bold")
        axis.grid(axis="y", alpha=0.3)
        axis.legend(loc="lower right", frameon=False)


def latency_key(processor: Processor, rows: Rows) -> str:
    """A digest of all that the chart of latency shows."""
    shown = [[model, [rows[model, BATCH][other].ratio for other in (DENSE, SAME_FILE)]] for model in MODELS]
    return pages.digest([processor.processor, processor.runs[-1].date, shown])


def draw_latency(processor: Processor, rows: Rows, path: Path) -> None:
    """Times of the sparse file, on our kernels and on onnxruntime, in units of the dense original."""
    run = processor.runs[-1]
    with pages.chart(path, latency_key(processor, rows), figsize=(5.0, 3.3)) as figure:
        axis = figure.subplots()
        for i, model in enumerate(MODELS):
            ours = rows[model, BATCH][DENSE].ratio
            same = ours / rows[model, BATCH][SAME_FILE].ratio
            for y, value, colour, label in (
                (i - 0.19, ours, OURS, "sift-onnx"),
                (i + 0.19, same, THEIRS, "onnxruntime"),
            ):
                axis.barh(y, value, 0.36, color=colour, label=f"{label}, sparse file" if not i else None)
                axis.annotate(f"{value:.2f}", (value, y), (4, 0), textcoords="offset points", va="center", fontsize=8.5)
        axis.axvline(1, color=GREY, linestyle=":", linewidth=1.8, label="dense original, onnxruntime")
        axis.set_yticks(range(len(MODELS)), MODELS)
        axis.invert_yaxis()
        axis.set_xlim(0, 1.12 * max(rows[m, BATCH][DENSE].ratio / rows[m, BATCH][SAME_FILE].ratio for m in MODELS))
        axis.set_xlabel(f"time over the dense original's, batch {BATCH}: {processor.processor.split(' (')[0]}, "
                        f"{run.threads} cores")  # fmt: skip
        axis.set_title("Kernels that skip zeros", loc="left", fontsize=10, fontweight="bold")
        axis.grid(axis="x", alpha=0.3)
        axis.legend(loc="lower right", frameon=False)


def _mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    return statistics.mean(values), statistics.stdev(values)


def _mean(values: Sequence[float]) -> str:
    mean, spread = _mean_and_spread(values)
    return f"{mean:.1f} ± {spread:.1f}"


def main() -> None:
    """Draw both charts, and print the table."""
    digits, processor, rows = read_results()
    IMAGES.mkdir(exist_ok=True)
    draw_accuracy(digits, IMAGES / "accuracy.svg")
    draw_latency(processor, rows, IMAGES / "latency.svg")
    print(readme_table(digits, processor, rows), readme_cost(rows), sep="\n")


if __name__ == "__main__":
    main()
