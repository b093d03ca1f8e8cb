"""README.md and chart.svg of this folder, from results/*.json.

python benchmarks/cpu_runtime/page.py        # needs `pip install matplotlib`
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pages
from results import DEEPSPARSE, DENSE, DENSE_CHAIN, FOLDER, SAME_FILE, Processor, Row, Run

__all__ = ["Case", "cases", "chart_key", "draw", "page", "processors", "row_cells", "table"]

PAGE = Path(__file__).with_name("README.md")
CHART = Path(__file__).with_name("chart.svg")
GENERATED = Path(__file__).with_name("never_slower.json")
PRUNED = Path(__file__).with_name("pruned_zoo.json")
PRUNED_TIMM = Path(__file__).with_name("pruned_timm.json")
# One file for each processor.
BESIDE = sorted(Path(__file__).parent.glob("deepsparse*.json"))
# From here on, what a request costs in Python is little.
_LONG_MS = 0.1
# A model at a batch: its rows by what it is compared with.
Case = tuple[str, int, dict[str, Row]]
# The chain has no original: its dense matrices are of the same shape.
_COLUMNS = ((SAME_FILE,), (DENSE, DENSE_CHAIN), (DEEPSPARSE,))
_INTRODUCTION = """\
# The sparse CPU runtime compared with onnxruntime and DeepSparse

Models that Sparse Wide has grown, at the multiply-accumulates of their dense original.
Measured on {machine}; {date}, commit {commit}.

![time of the sparse CPU runtime over the time of others, per model and batch](chart.svg)

| model | batch | ours | onnxruntime, same file | onnxruntime, dense original | DeepSparse 1.8.0 |
|---|---:|---:|---:|---:|---:|
"""
_READING = """
Times are medians in milliseconds. In brackets: our time over the other's, a median of pairs that ran in turns; below 1
ours is faster. The chain is four products of 2048 x 2048 with ReLU; its batch is the rows of the activations, and its
dense original has the same shape without a zero.

**When it is slower.** {slower}
The dense original runs near the peak of the multipliers. A widened model has more channels at the same
multiply-accumulates (3.2 times at 90 %, twice at 75 %): its activations move as many more bytes, and layers that stay
dense, such as depthwise convolutions, are as much wider. MobileNetV2 shows it most. What binds each model, and what was
tried and not kept, is in [docs/cpu-runtime-notes.md](../../docs/cpu-runtime-notes.md).

## Repeat it

    python benchmarks/cpu_runtime/run.py --peer --seconds 2 --results benchmarks/cpu_runtime/results/PROCESSOR.json
    python benchmarks/cpu_runtime/page.py

The first command measures and appends to a file of results, the second makes this page and its chart from all of them.
"""
_GENERATED = """
## Never slower than onnxruntime: {title}

{models}, {sparsity} of their weights pruned, against onnxruntime on the same file,
with {threads}, {clock} time. {origin}
Worst {worst}, of runs that take 0.1 ms or more {worst_long}; geometric mean {mean} of {count}.

    {command}

The ratio is the median of slices in which sessions take turns; in brackets, that of the least times. A request costs
two to four microseconds of Python more than in onnxruntime's own session, which shows where a run takes less than a
twentieth of a millisecond. "First" is the time of the first run, in runs: code and lists are made, and both ways timed
where that was done.

"""

_BESIDE = """
## DeepSparse on pruned models

The same file in DeepSparse 1.8.0 and in onnxruntime, in rounds. Rows with a commit of their own were measured again,
with the same script.
"""
_BESIDE_ON = """
{origin}

    {command}

"""

# Files of results, what they are of, and their models in words.
_NEVER_SLOWER = {
    GENERATED: ("generated models", "Models that nothing was tuned for"),
    PRUNED: (
        "other people's models",
        "TorchScript exports of [the zoo](../zoo/README.md) with an open batch",
    ),
    PRUNED_TIMM: ("models of timm", "TorchScript exports of models of timm and torchvision, with random weights"),
}


def processors(folder: Path = FOLDER) -> list[Processor]:
    """All files of results, those that describe this runtime first."""
    found = [Processor.read(path) for path in sorted(folder.glob("*.json"))]
    return sorted(found, key=lambda processor: bool(processor.stale))


def cases(processor: Processor) -> list[Case]:
    """Models at a batch, sparsities of a model together; of several measurements, the last one."""
    found: dict[tuple[str, int], dict[str, Row]] = {}
    shown = [run for run in processor.runs if run.clock == "wall" and run.threads == processor.runs[-1].threads]
    for run in shown:
        for row in run.rows:
            if row.what == "time" and row.batch is not None:
                found.setdefault((row.model, row.batch), {})[row.against] = row
    names = list(dict.fromkeys(_name(model) for model, _ in found))
    order = sorted(found, key=lambda case: names.index(_name(case[0])))
    return [(model, batch, found[model, batch]) for model, batch in order]


def _name(model: str) -> str:
    return model.rsplit(" ", 2)[0]


def page(found: Sequence[Processor]) -> str:
    """The text of README.md."""
    current = found[0]
    run = current.runs[-1]
    machine = f"{run.threads} threads of an {current.processor}, onnxruntime {run.onnxruntime}"
    text = _INTRODUCTION.format(machine=machine, date=run.date, commit=run.commit)
    text += "".join(f"{line}\n" for line in _case_lines(current))
    text += _READING.format(slower=_slower(current))
    for processor in found:
        text += f"\n## {processor.processor}\n\n"
        if processor.stale:
            text += f"**These figures are stale.** {processor.stale}\n\n"
        text += f"{processor.machine} Instruction set: {processor.isa}.\n"
        for each in processor.runs:
            text += _run_text(each)
    if BESIDE:
        text += _BESIDE
    for path in BESIDE:
        text += _beside_deepsparse(pages.read(path))
    for path, words in _NEVER_SLOWER.items():
        if path.exists():
            text += _never_slower(pages.read(path), *words)
    return text


def _never_slower(document: dict[str, Any], title: str, models: str) -> str:
    """The section about what ``never_slower.py`` measured."""
    rows = document["rows"]
    ratios = [row["ratio"] for row in rows]
    text = _GENERATED.format(
        title=title,
        models=models,
        sparsity=f"{rows[0]['sparsity']:.0%}",
        threads=_threads(rows[0]["threads"]),
        clock=rows[0]["clock"],
        origin=pages.measured_on(document),
        worst=_worst(rows),
        worst_long=_worst([row for row in rows if row["onnxruntime_ms"] >= _LONG_MS]),
        mean=f"{statistics.geometric_mean(ratios):.2f}",
        count=len(rows),
        command=document["command"],
    )
    header = ["model", "batch", "ours, ms", "onnxruntime, ms", "ratio", "first", "nodes in", "why there"]
    return text + pages.table(header, [row_cells(row) for row in rows])


def _worst(rows: Sequence[dict[str, Any]], ratio: str = "ratio") -> str:
    worst = max(rows, key=lambda row: row[ratio])
    return f"{worst[ratio]:.2f} ({worst['model']}, batch {worst['batch']})"


def _beside_deepsparse(document: dict[str, Any]) -> str:
    """What ``against_deepsparse.py`` measured on one processor."""
    text = _BESIDE_ON.format(origin=pages.measured_on(document), command=document["command"])
    settings = dict.fromkeys((row["threads"], row["clock"]) for row in document["rows"])
    return text + "\n".join(
        _table_beside([row for row in document["rows"] if (row["threads"], row["clock"]) == setting], *setting)
        for setting in settings
    )


def _table_beside(rows: Sequence[dict[str, Any]], threads: int, clock: str) -> str:
    """Rows of a number of threads and a clock, and what they come to."""
    means = [statistics.geometric_mean(row[f"to_{name}"] for row in rows) for name in ("deepsparse", "onnxruntime")]
    text = (
        f"{_threads(threads).capitalize()}, {clock} time. Worst against DeepSparse {_worst(rows, 'to_deepsparse')}; "
        f"geometric mean {means[0]:.2f} of {len(rows)}, and {means[1]:.2f} against onnxruntime.\n\n"
    )
    header = ["model", "batch", "ours, ms", "DeepSparse, ms", "ratio", "at most", "onnxruntime, ms", "ratio"]
    cells = [
        [
            f"{row['model']} (commit {row['commit']})" if "commit" in row else row["model"],
            str(row["batch"]),
            _number(row["ours_ms"]),
            _number(row["deepsparse_ms"]),
            f"{row['to_deepsparse']:.2f}",
            f"{row['at_most']:.2f}",
            _number(row["onnxruntime_ms"]),
            f"{row['to_onnxruntime']:.2f}",
        ]
        for row in rows
    ]
    return text + pages.table(header, cells)


def _threads(count: int) -> str:
    return "one thread" if count == 1 else f"{count} threads"


def row_cells(row: dict[str, Any]) -> list[str]:
    """A row of ``never_slower.py`` in words."""
    return [
        row["model"],
        str(row["batch"]),
        _number(row["ours_ms"]),
        _number(row["onnxruntime_ms"]),
        f"{row['ratio']:.2f} ({row['ratio_of_least']:.2f})",
        f"{row['first_run']:.1f}",
        row["runs_in"],
        row["verdict"] or "estimates were clear",
    ]


def _case_lines(processor: Processor) -> Iterable[str]:
    for model, batch, rows in cases(processor):
        ours = statistics.median_low(row.ours for row in rows.values() if row.ours is not None)
        cells = [model, str(batch), _number(ours)]
        for names in _COLUMNS:
            row = next((rows[name] for name in names if name in rows), None)
            cells.append("" if row is None or row.theirs is None else f"{_number(row.theirs)} ({row.ratio:.2f})")
        yield f"| {' | '.join(cells)} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def _slower(processor: Processor) -> str:
    """How often, and by how much, ours is slower than each of the others."""
    ratios = {
        against: [rows[against].ratio for _, _, rows in cases(processor) if against in rows]
        for against in (DENSE, SAME_FILE, DEEPSPARSE)
    }
    above = {against: [ratio for ratio in each if ratio > 1] for against, each in ratios.items()}
    return "\n".join(
        f"Ours is slower than {against} in {len(above[against])} of {len(each)} cases"
        + (f" ({min(above[against]):.2f} to {max(above[against]):.2f} times its time)." if above[against] else ".")
        for against, each in ratios.items()
        if each
    )


def _run_text(run: Run) -> str:
    clock = "wall time" if run.clock == "wall" else "processor time"
    settings = f"{clock}, {_threads(run.threads)}, onnxruntime {run.onnxruntime}"
    summary = f"{run.date}, commit {run.commit}: {len(run.rows)} rows, {settings}"
    rows = "\n".join(table(run.rows))
    lines = [f"\n<details><summary>{summary}</summary>\n", f"`{run.command}`\n"]
    lines += [f"{run.remarks}\n"] if run.remarks else []
    return "\n".join([*lines, f"{rows}\n", "</details>\n"])


def table(rows: Sequence[Row]) -> list[str]:
    """Lines of a table in Markdown; its header alone, without rows."""
    lines = ["| ours : the other | ratio | should be | | times or sizes |", "|---|---:|---:|---|---|"]
    for row in rows:
        sizes = ""
        if row.ours is not None and row.theirs is not None:
            # Only digits that were recorded: some figures have fewer.
            sizes = f"{round(row.ours, 2):g} : {round(row.theirs, 2):g} {row.unit}"
        lines.append(f"| {row.label} | {round(row.ratio, 3):g} | {row.bound} | {row.verdict} | {sizes} |")
    return lines


def chart_key(processor: Processor) -> str:
    """A digest of all that the chart shows: the chart has it, so that a chart of other figures is found."""
    shown = [[model, batch, {name: row.ratio for name, row in rows.items()}] for model, batch, rows in cases(processor)]
    return pages.digest([_title(processor), shown])


def _title(processor: Processor) -> str:
    run = processor.runs[-1]
    return f"{processor.processor}, {run.threads} threads, {run.date}"


def draw(processor: Processor, path: Path) -> None:
    """The chart: a line per model and batch, a mark per program that it is compared with."""
    lines = cases(processor)
    with pages.chart(path, chart_key(processor), figsize=(8.4, 0.27 * len(lines) + 1.2)) as figure:
        axis = figure.subplots()
        marks = zip(_COLUMNS, ("onnxruntime, same file", "onnxruntime, dense original", DEEPSPARSE), "osD", strict=True)
        for names, label, marker in marks:
            points = [(rows[name].ratio, i) for i, (_, _, rows) in enumerate(lines) for name in names if name in rows]
            axis.plot(*zip(*points, strict=True), marker, label=label, markersize=5.5)
        axis.axvline(1, color="black", linewidth=1)
        axis.set_xscale("log")
        ticks = [0.1, 0.2, 0.5, 1, 2]
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
        axis.set_yticks(range(len(lines)), [f"{model}, batch {batch}" for model, batch, _ in lines])
        axis.invert_yaxis()
        axis.grid(alpha=0.3)
        axis.set_xlabel("our time over the other's: left of 1 ours is faster")
        axis.set_title(_title(processor), fontsize=9)
        figure.legend(loc="outside lower center", ncols=3, frameon=False)


def main() -> None:
    """Write both files."""
    found = processors()
    PAGE.write_text(page(found), encoding="utf-8")
    draw(found[0], CHART)


if __name__ == "__main__":
    main()
