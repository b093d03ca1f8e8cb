"""Requests of many lengths in rotation, against the same lengths each by itself and against onnxruntime.

    python benchmarks/serving/lengths.py [--threads 2] [--sparsity 0.9] [--rounds 10] [--lists] [--deterministic]

An encoder of 6 layers, by itself and with words in front and classes behind, twelve lengths from 16 to 128; a 3x3
layer of 202 channels and a residual network of 15 convolutions, eight image sizes each. One session of each kind takes
all lengths in turn; "alone" are sessions of one length each. Rounds alternate, and the least time of each length
counts. "First run" is the first run of a length over its best in turn, the least of some new sessions, without the
first length, whose run packs. With --lists, no code is generated (SIFT_JIT=0). Sessions have the options that they
have by default, or with --deterministic nothing is timed against onnxruntime in a first run. Rows take the place of
those of the same case, threads, weights and clock in the file of results.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "cpu_runtime"))

import numpy as np
import onnx
import onnxruntime as ort
import pages
from generated import classifier, encoder, residual
from onnx import TensorProto, helper, numpy_helper

LENGTHS = (16, 24, 32, 48, 56, 64, 72, 80, 96, 104, 112, 128)
SIZES = (14, 20, 24, 28, 32, 40, 48, 56)
SIDES = (40, 16, 24, 28, 48, 20, 56, 32)
_STARTS = 3
Feeds = dict[str, np.ndarray]


def layer(channels: int, sparsity: float) -> onnx.ModelProto:
    """A 3x3 convolution of images of any size."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((channels, channels, 3, 3), np.float32) / 30
    weights *= rng.random(weights.shape) >= sparsity
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", channels, "h", "w"]) for n in ("x", "y")]
    graph = helper.make_graph([node], "layer", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def cases(sparsity: float) -> dict[str, tuple[onnx.ModelProto, list[Feeds]]]:
    """Models, and a request of each length."""
    rng = np.random.default_rng(1)
    tokens = [{"x": rng.standard_normal((1, n, 512)).astype(np.float32)} for n in LENGTHS]
    texts = [{"ids": rng.integers(0, 5000, (1, n))} for n in LENGTHS]
    images = [{"x": rng.standard_normal((1, 202, n, n)).astype(np.float32)} for n in SIZES]
    pictures = [{"x": rng.standard_normal((1, 3, n, n)).astype(np.float32)} for n in SIDES]
    return {
        "encoder of 6 layers, width 512, 16 to 128 tokens": (encoder(512, 6, sparsity), tokens),
        "classes of texts by the same encoder": (classifier(512, 6, sparsity), texts),
        "3x3, 202 channels, 14 to 56 pixels": (layer(202, sparsity), images),
        "residual network, 128 to 512 channels, 16 to 56 pixels": (residual(128, sparsity), pictures),
    }


def timed(session: Any, feeds: Feeds, clock: Callable[[], float]) -> float:
    """Milliseconds of a request."""
    start = clock()
    session.run(None, feeds)
    return 1e3 * (clock() - start)


def measure(
    path: Path, requests: list[Feeds], threads: int, rounds: int, clock: Callable[[], float], deterministic: bool
) -> dict[str, Any]:
    """A row of the table."""
    import sift_onnx

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.use_deterministic_compute = deterministic
    theirs = ort.SessionOptions()
    theirs.intra_op_num_threads = threads
    theirs.add_session_config_entry("session.intra_op.spin_duration_us", "500")
    opened: Callable[[], Any] = lambda: sift_onnx.InferenceSession(path, options)  # noqa: E731
    other = ort.InferenceSession(str(path), theirs, ["CPUExecutionProvider"])
    firsts = []
    for _ in range(_STARTS):
        shared = opened()
        firsts.append([timed(shared, feeds, clock) for feeds in requests])
    first = np.min(firsts, axis=0)
    alone = [opened() for _ in requests]
    for session, feeds in zip(alone, requests, strict=True):
        timed(session, feeds, clock)
    times: dict[str, list[list[float]]] = {"in_turn": [], "alone": [], "onnxruntime": []}
    for _ in range(rounds):
        # Twice by itself, and the second counts: it finds its weights in the caches.
        times["alone"].append(
            [(timed(s, f, clock), timed(s, f, clock))[1] for s, f in zip(alone, requests, strict=True)]
        )
        times["in_turn"].append([timed(shared, feeds, clock) for feeds in requests])
        times["onnxruntime"].append([timed(other, feeds, clock) for feeds in requests])
    least = {name: np.min(rows, axis=0) for name, rows in times.items()}
    mean = {name: float(best.mean()) for name, best in least.items()}
    starts = [one / best for one, best in zip(first[1:], least["in_turn"][1:], strict=True)]
    return {
        **{f"{name}_ms": round(value, 3) for name, value in mean.items()},
        "to_alone": round(mean["in_turn"] / mean["alone"], 3),
        "to_onnxruntime": round(mean["in_turn"] / mean["onnxruntime"], 3),
        "first_run": round(statistics.median(starts), 2),
        "first_run_most": round(max(starts), 2),
    }


def main() -> None:
    """Measure, print rows, and write them to a file of results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--processor-time", action="store_true", help="instead of wall time: steadier beside others, with --threads 1"
    )
    parser.add_argument("--lists", action="store_true")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--results", type=Path, metavar="FILE", help="where the rows are written")
    arguments = parser.parse_args()
    if arguments.lists:
        os.environ["SIFT_JIT"] = "0"  # before the kernels are loaded
    clock = time.process_time if arguments.processor_time else time.perf_counter
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        for case, (model, requests) in cases(arguments.sparsity).items():
            path = Path(name) / "model.onnx"
            onnx.save(model, path)
            row = {"case": case, "threads": arguments.threads, "weights": "lists" if arguments.lists else "code"}
            row["clock"] = "processor" if arguments.processor_time else "wall"
            measured = measure(path, requests, arguments.threads, arguments.rounds, clock, arguments.deterministic)
            rows.append(row | measured)
            print(*rows[-1].values(), sep=" | ", flush=True)
    if arguments.results is not None:
        earlier = pages.read(arguments.results) if arguments.results.exists() else None
        pages.write_over(arguments.results, rows, earlier, ("case", "threads", "weights", "clock"))


if __name__ == "__main__":
    main()
