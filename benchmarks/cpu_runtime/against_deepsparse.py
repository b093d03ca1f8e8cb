"""The CPU back end against DeepSparse 1.8.0, and onnxruntime, on pruned models at their usual batches.

    python benchmarks/cpu_runtime/against_deepsparse.py [--threads 2] [--seconds 3] [--only REGEX] [--peer FOLDER]
    python benchmarks/cpu_runtime/against_deepsparse.py --threads 1 --processor-time ...
    python benchmarks/cpu_runtime/against_deepsparse.py --results benchmarks/cpu_runtime/deepsparse.json

Rows of a call take the place of those of the same model, batch, threads and clock in the file of results, so that all
cases can be measured in pieces. ``--folder`` keeps the models from one call to the next.

DeepSparse is not a dependency of this project, and its licence allows evaluation only: it runs as a black box in an
environment of its own (``--peer``), without telemetry. A file and a batch run in rounds: a slice of DeepSparse, one of
ours, one of onnxruntime. The ratio is the median over rounds. Models have random weights. Of each layer but the first
and the last the largest stay, of the detector's layers random ones.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import onnx
import onnxruntime as ort
import pages
from cases import Models
from deepsparse_peer import HOME, DeepSparse, missing_peer
from generated import detector

import sift_onnx
from sift_onnx.backends.measure import interleave, summarize
from sift_onnx.passes import Prune
from sift_onnx.shapes.random_inputs import random_feeds
from sift_onnx.shapes.tensor_specs import model_inputs

ROUNDS = 5
# Columns that tell which row is which.
_KEYS = ("model", "batch", "threads", "clock")


@dataclass(frozen=True)
class Case:
    """A model at some batches.

    Attributes:
        name: of the model.
        make: writes it to a folder, with a share of its weights pruned, and gives its path.
        sparsities: of which there is a file each.
        batches: each timed by itself.
        at_most: what ours may take of DeepSparse's time.
    """

    name: str
    make: Callable[[Path, float], Path]
    sparsities: tuple[float, ...]
    batches: tuple[int, ...]
    at_most: float


def pruned(architecture: str) -> Callable[[Path, float], Path]:
    """One of this project's architectures, as it is deployed."""

    def make(folder: Path, sparsity: float) -> Path:
        path = folder / f"{architecture}-{sparsity:g}.onnx"
        if not path.exists():
            model = sift_onnx.load(Models(folder).dense(architecture))
            sift_onnx.save(Prune(sparsity)(model).model, path)
        return path

    return make


def detecting(side: int) -> Callable[[Path, float], Path]:
    """A detector of YOLOv8n's shape."""

    def make(folder: Path, sparsity: float) -> Path:
        path = folder / f"yolov8n-{side}-{sparsity:g}.onnx"
        if not path.exists():
            onnx.save(detector(side, sparsity), path)
        return path

    return make


CASES = (
    Case("ResNet-50", pruned("resnet50"), (0.8, 0.95), (1, 16, 64), 0.95),
    Case("YOLOv8n shape, 320 pixels", detecting(320), (0.65, 0.85), (1, 8), 0.90),
    Case("YOLOv8n shape, 640 pixels", detecting(640), (0.65, 0.85), (1, 8), 0.90),
    Case("BERT Small", pruned("bert-small"), (0.8, 0.9), (1, 8), 1.05),
    Case("MobileNetV2", pruned("mobilenetv2"), (0.8,), (1, 16), 1.05),
)


@dataclass(frozen=True)
class Measuring:
    """How long, on what, and by which clock."""

    threads: int
    seconds: float
    processor_time: bool
    home: Path

    def rows(self, path: Path, batches: tuple[int, ...]) -> Iterator[dict[str, Any]]:
        """What three programs take of a file, batch by batch."""
        inputs = model_inputs(sift_onnx.load(path))
        options = ort.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.add_session_config_entry("session.intra_op.spin_duration_us", "500")
        sessions = {
            "ours": sift_onnx.InferenceSession(path, threads=self.threads),
            "onnxruntime": ort.InferenceSession(path, options, ["CPUExecutionProvider"]),
        }
        for batch in batches:
            feeds = random_feeds(inputs, batch)
            runs = {name: partial(session.run, None, feeds) for name, session in sessions.items()}
            times = self.rounds(path, batch, runs)
            row = {f"{name}_ms": round(statistics.median(own), 4) for name, own in times.items()}
            for name in ("deepsparse", "onnxruntime"):
                pairs = zip(times["ours"], times[name], strict=True)
                row[f"to_{name}"] = round(statistics.median(a / b for a, b in pairs), 3)
            yield {"batch": batch, "threads": self.threads, "clock": self.clock_name} | row

    @property
    def clock_name(self) -> str:
        return "processor" if self.processor_time else "wall"

    def rounds(self, path: Path, batch: int, runs: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
        """Milliseconds of each program in each round; the first round warms up and is left out."""
        clock = time.process_time_ns if self.processor_time else time.perf_counter_ns
        found: dict[str, list[float]] = {name: [] for name in ("deepsparse", *runs)}
        with DeepSparse(path, batch, self.threads, self.processor_time, self.home) as peer:
            for number in range(ROUNDS + 1):
                seconds = self.seconds / ROUNDS
                times = {"deepsparse": statistics.median(peer.run(seconds))}
                time.sleep(0.1)  # its workers go to sleep
                for name, run in runs.items():
                    (timing,) = interleave([run], seconds=seconds, warmup=0, clock=clock)
                    times[name] = summarize(timing).median_ms
                if number:
                    for name, value in times.items():
                        found[name].append(value)
        return found


def main() -> None:
    """Measure, print rows, and write them to a file of results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each program in each row")
    parser.add_argument("--only", default="", metavar="REGEX", help="names of models, with sparsity and batch")
    parser.add_argument("--folder", type=Path, help="where models are kept; a temporary one by default")
    parser.add_argument("--peer", type=Path, default=HOME, metavar="FOLDER", help="the environment of DeepSparse")
    parser.add_argument(
        "--processor-time", action="store_true", help="instead of wall time: steadier beside others, with --threads 1"
    )
    parser.add_argument("--results", type=Path, metavar="FILE", help="where the rows are written")
    arguments = parser.parse_args()
    if missing := missing_peer(arguments.peer):
        sys.exit(missing)
    measuring = Measuring(arguments.threads, arguments.seconds, arguments.processor_time, arguments.peer)
    rows: list[dict[str, Any]] = []
    results = arguments.results
    earlier = pages.read(results) if results is not None and results.exists() else None
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        for case in CASES:
            for sparsity in case.sparsities:
                name = f"{case.name} {100 * sparsity:g} %"
                batches = tuple(n for n in case.batches if re.search(arguments.only, f"{name}, batch {n}"))
                if not batches:
                    continue
                for row in measuring.rows(case.make(folder, sparsity), batches):
                    rows.append({"model": name} | row | {"at_most": case.at_most})
                    print(*rows[-1].values(), sep=" | ", flush=True)
                    if results is not None:  # what has been measured is not lost
                        pages.write_over(results, rows, earlier, _KEYS)
    if rows:
        print(f"geometric mean {statistics.geometric_mean(row['to_deepsparse'] for row in rows):.2f} of {len(rows)}")


if __name__ == "__main__":
    main()
