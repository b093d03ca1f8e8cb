"""Many callers: eight threads on one session, and eight sessions on one pool, against one caller and onnxruntime.

    python benchmarks/serving/callers.py [--threads 2] [--callers 8] [--seconds 3] [MODEL.onnx ...]

Requests per second of all callers, and percentiles of their latencies. All ways take turns in one process. With N
callers a request waits for others: percentiles are read against their own median. Throughput is read against that of
one caller, turn by turn, since cores of a virtual machine may be near each other in one turn and far in the next.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "cpu_runtime"))

import onnx
import onnxruntime as ort
import pages
from generated import encoder, generate

import sift_onnx
from sift_onnx.backends.load import Load, under_load
from sift_onnx.backends.measure import Timing, summarize
from sift_onnx.shapes.random_inputs import Feeds, random_feeds
from sift_onnx.shapes.tensor_specs import model_inputs

_TURNS = 8


def _ratio(values: list[float], base: list[float]) -> float:
    """The median of ratios of the same turn."""
    return statistics.median(value / one for value, one in zip(values, base, strict=True))


def made(folder: Path, sparsity: float) -> list[Path]:
    """A convolutional model, and an encoder."""
    residual, tokens = folder / "residual, large.onnx", folder / "encoder of 6 layers.onnx"
    onnx.save(generate("residual, large", sparsity)[0], residual)
    onnx.save(encoder(512, 6, sparsity), tokens)
    return [residual, tokens]


def in_rotation(sessions: list[Any], feeds: Feeds) -> Callable[[], object]:
    """A run of the next session each time: callers of as many sessions spread over them."""
    number = itertools.count()
    return lambda: sessions[next(number) % len(sessions)].run(None, feeds)


def measure(path: Path, threads: int, callers: int, seconds: float, folder: Path) -> list[dict[str, Any]]:
    """A row for each way to call ``path``."""
    feeds = random_feeds(model_inputs(sift_onnx.load(path)), 1)
    pool = sift_onnx.ThreadPool(threads)
    sessions = [sift_onnx.InferenceSession(path, pool=pool, packed_cache=folder) for _ in range(callers)]
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.spin_duration_us", "500")
    other = ort.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    ways: dict[str, tuple[list[Any], int]] = {
        "one caller": (sessions[:1], 1),
        f"{callers} callers of one session": (sessions[:1], callers),
        f"{callers} sessions on one pool": (sessions, callers),
        "onnxruntime, one caller": ([other], 1),
        f"onnxruntime, {callers} callers of one session": ([other], callers),
    }
    rows = []
    timings: dict[str, list[Any]] = {name: [] for name in ways}
    # Beside other work, more callers get more of the processors: requests per second of processor time tell that apart.
    per_second: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(_TURNS):
        for name, (called, streams) in ways.items():
            run = in_rotation(called, feeds)
            used = time.process_time()
            (timing,) = under_load([run], Load(streams), seconds=seconds / _TURNS, warmup=0)
            used = time.process_time() - used
            timings[name].append(timing)
            # The burst before it has a request of each caller.
            requests = streams + sum(map(len, timing.slices))
            per_second[name].append(requests / used)
    rates = {name: [timing.iterations_per_second for timing in found] for name, found in timings.items()}
    for name, found in timings.items():
        summary = summarize(Timing(tuple(one for timing in found for one in timing.slices), 0))
        rows.append({
            "model": path.stem, "threads": threads, "way": name,
            "requests_per_second": round(statistics.median(rates[name]), 1),
            "of_one_caller": round(_ratio(rates[name], rates["one caller"]), 3),
            "processor_of_one": round(_ratio(per_second[name], per_second["one caller"]), 3),
            "p50_ms": round(summary.median_ms, 2), "p90_ms": round(summary.p90_ms, 2),
            "p99_ms": round(summary.p99_ms, 2), "p99_of_p50": round(summary.p99_ms / summary.median_ms, 2),
        })  # fmt: skip
    return rows


def main() -> None:
    """Measure, print rows, and write them to a file of results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each way")
    parser.add_argument("--results", type=Path, metavar="FILE", help="where the rows are written")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in arguments.models or made(folder, arguments.sparsity):
            own = measure(path, arguments.threads, arguments.callers, arguments.seconds, folder / "packed")
            for row in own:
                print(*row.values(), sep=" | ", flush=True)
            rows += own
    if arguments.results:
        pages.write(arguments.results, rows)


if __name__ == "__main__":
    main()
