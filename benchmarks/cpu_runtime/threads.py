"""The CPU back end and onnxruntime at several numbers of threads: which is faster, and what more threads gain each.

    python benchmarks/cpu_runtime/threads.py [--threads 1 2 4 8 16] [--batch 1 16] [--sparsity 0.8] [--seconds 0.5]
    python benchmarks/cpu_runtime/threads.py --results benchmarks/cpu_runtime/threads.json
    python benchmarks/cpu_runtime/threads.py --models PRUNED.onnx ... --only REGEX

Every model is pruned and opened once by each for every number of threads; the two take turns in slices. A row has the
median times, the median of the ratios of slices, and how many times faster than with the first number of threads each
of the two is.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import onnx
import pages
from cases import Models
from generated import generate
from never_slower import compared, opened

import sift_onnx
from sift_onnx.backends.cpu.isa import selected_isa
from sift_onnx.backends.cpu.run.session import InferenceSession
from sift_onnx.shapes.random_inputs import random_feeds
from sift_onnx.shapes.tensor_specs import model_inputs

_NETWORKS = ("resnet50", "mobilenetv2", "bert-small")
_GENERATED = (
    "residual, tiny",
    "residual, large",
    "mobile, medium",
    "channels last, medium",
    "parted, medium",
    "encoder, small",
    "encoder, large",
    "perceptron, large",
    "recurrent, medium",
    "gMLP, small",
)
_HEADER = ("model", "batch", "threads", "ours, ms", "onnxruntime, ms", "ratio", "ours gains", "onnxruntime gains", "in")


def files(arguments: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Path]]:
    """Models and their names, pruned, each written to ``folder`` when it is due unless it is given."""
    if arguments.models:
        yield from ((path.name.partition(".")[0], path) for path in arguments.models)
        return
    for name in (*_NETWORKS, *_GENERATED):
        if not re.search(arguments.only, name):
            continue
        path = folder / "pruned.onnx"
        if name in _NETWORKS:
            sift_onnx.prune(Models(folder).dense(name), arguments.sparsity).save(path, force=True)
        else:
            model, _ = generate(name, arguments.sparsity)
            onnx.save(model, path)
        yield name, path


def rows_of(name: str, path: Path, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of a model, by batch, then threads."""
    inputs = model_inputs(sift_onnx.load(path))
    sessions = [(count, InferenceSession(path, threads=count), opened(path, count)) for count in arguments.threads]
    for batch in arguments.batch:
        feeds = random_feeds(inputs, batch)
        first: dict[str, Any] = {}
        for count, ours, other in sessions:
            row = {"model": name, "batch": batch, "threads": count, "sparsity": arguments.sparsity}
            row |= compared(ours, other, feeds, arguments.seconds, time.perf_counter_ns)
            first = first or row
            row["ours_gains"] = round(first["ours_ms"] / row["ours_ms"], 2)
            row["onnxruntime_gains"] = round(first["onnxruntime_ms"] / row["onnxruntime_ms"], 2)
            yield row


def main() -> None:
    """Measure, print a table, and write the rows to a file of results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--sparsity", type=float, default=0.8)
    parser.add_argument("--models", type=Path, nargs="+", metavar="FILE", help="pruned files, in place of these models")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each program in each row")
    parser.add_argument("--only", default="", metavar="REGEX", help="names of models")
    parser.add_argument("--results", type=Path, metavar="FILE", help="where the rows are written, after each model")
    arguments = parser.parse_args()
    print(f"{pages.processor_name()}, {selected_isa()}")
    print(*_HEADER, sep=" | ")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, path in files(arguments, Path(folder)):
            for row in rows_of(name, path, arguments):
                rows.append(row)
                cells = (
                    *(row[key] for key in ("model", "batch", "threads", "ours_ms", "onnxruntime_ms", "ratio")),
                    *(row[key] for key in ("ours_gains", "onnxruntime_gains", "runs_in")),
                )
                print(*cells, sep=" | ", flush=True)
            if arguments.results:
                pages.write(arguments.results, rows)
    for count in arguments.threads:
        ratios = [row["ratio"] for row in rows if row["threads"] == count]
        mean = statistics.geometric_mean(ratios)
        print(f"{count} threads: geometric mean {mean:.2f}, worst {max(ratios):.2f}, of {len(ratios)}")


if __name__ == "__main__":
    main()
