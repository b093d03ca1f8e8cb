"""Quantized networks on the CPU back end, against the same weights as floats there, and against onnxruntime.

onnxruntime runs the same file, the dense int8 one, and the dense floats.

    python benchmarks/quantized/networks.py resnet50 --sparsity 0.95 [--block] [--batch 1] [--threads 2]
    python benchmarks/quantized/networks.py resnet50 --sparsity 0.85 --block --spelling integers --peer
    python benchmarks/quantized/networks.py ... --results benchmarks/quantized/results/networks/PROCESSOR.json

Networks have random weights (``nets.py``). Programs take turns in one process; DeepSparse (``--peer``) takes its turns
in one of its own. With one thread, times are of the processor, which other programs disturb less. ``--results`` adds
the row to a file, in the place of one of the same network, pattern, spelling, batch and threads.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "cpu_runtime"))

import pages
from deepsparse_peer import DeepSparse, missing_peer
from nets import NETWORKS, quantized

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.measure import interleave, paired_ratio, summarize
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram

OURS, OUR_FLOATS, SAME_FILE, DENSE_INT8 = "ours", "ours, fp32", "same file", "dense int8"
DENSE_FLOATS, DEEPSPARSE = "dense fp32", "DeepSparse"
_PEER_ROUNDS = 4
_KEYS = ("network", "pattern", "spelling", "batch", "threads")


def measure(network: str, given: argparse.Namespace) -> dict[str, Any]:
    """A row: milliseconds of each way, least and median, and ratios of ours to it."""
    shape = (given.batch, *NETWORKS[network][1])
    spelling = given.spelling or NETWORKS[network][2]
    feeds = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    options = CompileOptions(given.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = given.models or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        own_floats, own = quantized(network, given.sparsity, given.block, spelling, folder)
        floats, dense = quantized(network, 0.0, False, spelling, folder)
        ways = {
            OURS: CpuProgram(str(own), options),
            OUR_FLOATS: CpuProgram(str(own_floats), options),
            SAME_FILE: OnnxRuntimeProgram(str(own), options),
            DENSE_INT8: OnnxRuntimeProgram(str(dense), options),
            DENSE_FLOATS: OnnxRuntimeProgram(str(floats), options),
        }
        first = {way: next(iter(program.run(feeds).values())) for way, program in ways.items()}
        clock = time.thread_time_ns if given.threads == 1 else time.perf_counter_ns
        runs = [lambda program=program: program.run(feeds) for program in ways.values()]
        timings = dict(zip(ways, interleave(runs, seconds=given.seconds, clock=clock), strict=True))
        row: dict[str, Any] = {
            "network": network,
            "pattern": f"{'block:1x4 ' if given.block else ''}{given.sparsity:.0%}",
            "spelling": spelling,
            "batch": given.batch,
            "threads": given.threads,
            "clock": "processor" if given.threads == 1 else "wall",
            "difference": float(np.abs(first[OURS] - first[SAME_FILE]).max() / np.abs(first[SAME_FILE]).max()),
            "parts": len(ways[OURS].parts),
            "in_kernels": any(placement.placement == "kernels" for placement in ways[OURS].placements),
            "ms": {},
            "ratio": {},
        }
        for way, timing in timings.items():
            found = summarize(timing)
            row["ms"][way] = [round(found.min_ms, 3), round(found.median_ms, 3)]
            if way != OURS:
                row["ratio"][way] = round(paired_ratio(timings[OURS], timing).median, 3)
        if given.peer:
            row["ms"][DEEPSPARSE], row["ratio"][DEEPSPARSE] = _beside_peer(own, ways[OURS], feeds, given, clock)
    return row


def _beside_peer(
    path: Path, ours: CpuProgram, feeds: dict[str, np.ndarray], given: argparse.Namespace, clock: Any
) -> tuple[list[float], float]:
    """Least and median milliseconds of DeepSparse, and the ratio of the medians of turns with ours."""
    theirs, own = [], []
    with DeepSparse(path, given.batch, given.threads, processor_time=given.threads == 1) as peer:
        for _ in range(_PEER_ROUNDS):
            theirs += peer.run(given.seconds / _PEER_ROUNDS)
            (timing,) = interleave([lambda: ours.run(feeds)], seconds=given.seconds / _PEER_ROUNDS, clock=clock)
            own += [1e-6 * ns for part in timing.slices for ns in part]
    found = [round(float(value), 3) for value in (min(theirs), np.median(theirs))]
    return found, round(float(np.median(own) / np.median(theirs)), 3)


def keep(path: Path, row: dict[str, Any]) -> None:
    """Add a row to a file of results, with its own date and command."""
    rows = pages.read(path)["rows"] if path.exists() else []
    told = pages.origin()
    row |= {key: told[key] for key in ("date", "commit", "command")}
    rows = [other for other in rows if any(other[key] != row[key] for key in _KEYS)]
    path.parent.mkdir(parents=True, exist_ok=True)
    pages.write(path, sorted([*rows, row], key=lambda one: [str(one[key]).zfill(4) for key in _KEYS]))


def main() -> None:
    """Measure, and print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", metavar="network", help=" ".join(NETWORKS))
    parser.add_argument("--sparsity", type=float, default=0.95)
    parser.add_argument("--block", action="store_true", help="blocks 1x4 along the input features")
    parser.add_argument("--spelling", choices=["qdq", "qoperator", "dynamic", "integers"])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each way")
    parser.add_argument("--models", type=Path, help="folder that keeps the models, which take long to make")
    parser.add_argument("--peer", action="store_true", help="DeepSparse as well, on the spelling `integers`")
    parser.add_argument("--results", type=Path, help="file of results that the rows are added to")
    given = parser.parse_args()
    if given.peer and missing_peer():
        sys.exit(missing_peer())
    for network in given.networks:
        row = measure(network, given)
        print(json.dumps({key: row[key] for key in (*_KEYS, "difference", "parts", "in_kernels")}))
        for way, (least, median) in row["ms"].items():
            ratio = f"{row['ratio'][way]:6.3f}" if way in row["ratio"] else ""
            print(f"  {way:12} {least:9.2f} ms, median {median:9.2f} {ratio}", flush=True)
        if given.results:
            keep(given.results, row)


if __name__ == "__main__":
    main()
