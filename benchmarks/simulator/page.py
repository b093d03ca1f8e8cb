"""README.md and chart.svg of this folder, from every_model.json.

python benchmarks/simulator/page.py        # needs `pip install matplotlib`
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pages

__all__ = ["chart_key", "draw", "page"]

FOLDER = Path(__file__).parent
_INTRODUCTION = """\
# The dataflow simulator

Simulated cycles on wse2 for the architectures of `sift-onnx models`, original and Sparse Wide at 90 %. Cycles do not
depend on the processor that computes them. {origin}

![speedup of every sparse model over itself executed dense, at batch 1 and 64](chart.svg)

"""
_READING = """
"Over itself dense" is the wide model's inference with every zero multiplied, over its inference that skips them.
gpt3-medium, original, was computed on 2026-11-20 only: inference takes 5,633,853 cycles at batch 1 and 12,310,316 at
64, a training step 15,893,370 and 34,670,824.

## Repeat it

    {command}
    python benchmarks/simulator/page.py

The first command also checks each report: finite, utilisation in (0, 1], no negative stalls. The second writes this
page and its chart.

Results of the other scripts in this folder are on the simulator's page:

- `cost.py`, time and memory, from files and from sizes: [Speed and memory](../../docs/simulator.md#speed-and-memory)
- `figure3.py`, training steps of GPT-3 1.3B compared with the paper's 3.8x:
  [Figure 3](../../docs/simulator.md#figure-3-right-gpt-3-13b-sparse-wide-training-step-sequence-256-batch-528)
- `events.py`, the fast model against the event-driven one on 1,000 random products:
  [The event-driven model](../../docs/simulator.md#the-event-driven-model)
"""
_HEADER = ("model", "batch", "inference, original", "wide", "training step, original", "wide", "wide over itself dense")
Pair = tuple[dict[str, Any], dict[str, Any]]


def _pairs(found: dict[str, Any]) -> list[Pair]:
    """For each model and batch, the original's row and the wide model's."""
    originals = {(row["model"], row["batch"]): row for row in found["rows"] if row["sparsity"] == 0}
    return [(originals[row["model"], row["batch"]], row) for row in found["rows"] if row["sparsity"] > 0]


def _name(row: dict[str, Any]) -> str:
    return row["model"] if row["budget"] == "model" else f"{row['model']}, --budget {row['budget']}"


def page(found: dict[str, Any]) -> str:
    """The text of README.md."""
    rows = []
    for original, wide in _pairs(found):
        cycles = [f"{row[f'{step}_cycles']:,}" for step in ("inference", "training") for row in (original, wide)]
        rows.append([_name(wide), str(wide["batch"]), *cycles, f"{wide['over_itself_dense']:.2f}"])
    text = _INTRODUCTION.format(origin=pages.measured_on(found)) + pages.table(_HEADER, rows)
    return text + _READING.format(command=found["command"])


def _speedups(found: dict[str, Any]) -> list[tuple[str, int, float]]:
    return [(_name(wide), wide["batch"], wide["over_itself_dense"]) for _, wide in _pairs(found)]


def chart_key(found: dict[str, Any]) -> str:
    """A digest of all that the chart shows."""
    return pages.digest(_speedups(found))


def draw(found: dict[str, Any], path: Path) -> None:
    """The chart: a line per model, a mark per batch."""
    speedups = _speedups(found)
    names = list(dict.fromkeys(name for name, _, _ in speedups))
    with pages.chart(path, chart_key(found), figsize=(8.4, 0.27 * len(names) + 1.2)) as figure:
        axis = figure.subplots()
        for batch, marker in ((1, "o"), (64, "s")):
            points = [(speedup, names.index(name)) for name, of, speedup in speedups if of == batch]
            axis.plot(*zip(*points, strict=True), marker, label=f"batch {batch}", markersize=5.5)
        axis.set_yticks(range(len(names)), names)
        axis.invert_yaxis()
        axis.set_xlim(left=0)
        axis.grid(alpha=0.3)
        axis.set_xlabel("speedup over the same model executed dense")
        figure.legend(loc="outside lower center", ncols=2, frameon=False)


def main() -> None:
    """Write both files."""
    found = pages.read(FOLDER / "every_model.json")
    (FOLDER / "README.md").write_text(page(found), encoding="utf-8")
    draw(found, FOLDER / "chart.svg")


if __name__ == "__main__":
    main()
