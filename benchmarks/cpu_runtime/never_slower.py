"""The CPU back end against onnxruntime on models that it was not tuned for: how often, and by how much, it is slower.

    python benchmarks/cpu_runtime/never_slower.py [--threads 2] [--sparsity 0.8] [--batch 1 16] [--seconds 1]
    python benchmarks/cpu_runtime/never_slower.py --results benchmarks/cpu_runtime/never_slower.json

    python benchmarks/cpu_runtime/never_slower.py --models PRUNED.onnx ... --results FILE

Every generated model, or every file of ``--models``, runs in a session of each, which take turns in slices. A row has
the median of the ratios of slices, where the model runs, and what was timed for that; the last lines have the worst and
the geometric mean. "First run" is the first run of a class of shapes over a later one: it may have timed both ways.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import onnx
import onnxruntime as ort
import pages
from generated import GENERATED, generate
from page import row_cells

import sift_onnx
from sift_onnx.backends.cpu.run.session import InferenceSession
from sift_onnx.backends.measure import interleave, paired_ratio, summarize
from sift_onnx.shapes.random_inputs import Feeds, random_feeds
from sift_onnx.shapes.tensor_specs import model_inputs

_HEADER = ("model", "batch", "ours", "onnxruntime", "ratio", "first run", "nodes in", "why there")


def placement(session: InferenceSession) -> str:
    """Who runs the nodes of a model, most of them first."""
    counts = Counter(one.placement for one in session.placements if one.placement != "folded")
    return ", ".join(f"{place} {count}" for place, count in counts.most_common())


def opened(path: Path, threads: int) -> ort.InferenceSession:
    """A session of onnxruntime whose workers do not spin into the turns of ours."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.spin_duration_us", "500")
    return ort.InferenceSession(path, options, ["CPUExecutionProvider"])


def compared(
    ours: InferenceSession, other: ort.InferenceSession, feeds: Feeds, seconds: float, clock: Callable[[], int]
) -> dict[str, Any]:
    """A row of results, without the name of the model; ``clock`` counts nanoseconds."""
    start = clock()
    ours.run(None, feeds)
    first = 1e-9 * (clock() - start)
    runs = [partial(session.run, None, feeds) for session in (ours, other)]
    timings = interleave(runs, seconds=seconds, warmup=0.1, clock=clock)
    own, theirs = (summarize(timing) for timing in timings)
    return {
        "ours_ms": round(own.median_ms, 4),
        "onnxruntime_ms": round(theirs.median_ms, 4),
        "ratio": round(paired_ratio(*timings).median, 3),
        "ratio_of_least": round(own.min_ms / theirs.min_ms, 3),
        "first_run": round(1e3 * first / own.median_ms, 1),
        "runs_in": placement(ours),
        "verdict": ours.verdict,
    }


def files(arguments: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Path]]:
    """Models and their names: those that are given, or generated ones, each written to ``folder`` when it is due."""
    for path in arguments.models or ():
        yield path.name.partition(".")[0], path
    if arguments.models:
        return
    for name in GENERATED:
        if re.search(arguments.only, name):
            model, _ = generate(name, arguments.sparsity)
            path = folder / "model.onnx"
            onnx.save(model, path)
            yield name, path


def main() -> None:
    """Measure, print a table, and write the rows to a file of results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sparsity", type=float, default=0.8)
    parser.add_argument(
        "--models", type=Path, nargs="+", metavar="FILE", help="pruned files, in place of generated ones"
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--seconds", type=float, default=1.0, help="of each program in each row")
    parser.add_argument("--only", default="", metavar="REGEX", help="names of models")
    parser.add_argument(
        "--processor-time", action="store_true", help="instead of wall time: steadier beside others, with --threads 1"
    )
    parser.add_argument("--results", type=Path, metavar="FILE", help="where the rows are written")
    arguments = parser.parse_args()
    clock = time.process_time_ns if arguments.processor_time else time.perf_counter_ns
    rows: list[dict[str, Any]] = []
    print(*_HEADER, sep=" | ")
    with tempfile.TemporaryDirectory() as folder:
        for name, path in files(arguments, Path(folder)):
            if not re.search(arguments.only, name):
                continue
            inputs = model_inputs(sift_onnx.load(path))
            ours, other = InferenceSession(path, threads=arguments.threads), opened(path, arguments.threads)
            for batch in arguments.batch:
                feeds = random_feeds(inputs, batch)
                row = {"model": name, "batch": batch, "threads": arguments.threads, "sparsity": arguments.sparsity}
                row["clock"] = "processor" if arguments.processor_time else "wall"
                row |= compared(ours, other, feeds, arguments.seconds, clock)
                rows.append(row)
                print(*row_cells(row), sep=" | ", flush=True)
    ratios = [row["ratio"] for row in rows]
    worst = max(rows, key=lambda row: row["ratio"])
    print(f"worst {worst['ratio']:.2f} ({worst['model']}, batch {worst['batch']})")
    print(f"geometric mean {statistics.geometric_mean(ratios):.2f} of {len(ratios)}")
    if arguments.results:
        pages.write(arguments.results, rows)


if __name__ == "__main__":
    main()
