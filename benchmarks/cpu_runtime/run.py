"""The sparse CPU runtime beside onnxruntime and DeepSparse: speed, memory, and the time to create a session.

    python benchmarks/cpu_runtime/run.py [--threads 2] [--seconds 3] [--only REGEX] [--peer] [--folder FOLDER]
    python benchmarks/cpu_runtime/run.py --threads 1 --processor-time ...

Every row is a ratio of two programs that take turns on the same machine, and stands beside what it should be at most
(or at least, where the row says so). "Same file" is onnxruntime on the sparse model, "original" is onnxruntime on the
dense model with as many multiply-accumulates. DeepSparse is no dependency of this project and its licence allows
evaluation only: ``--peer`` runs it in an environment of its own, and says how to make that where it is missing.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from cases import BATCHES, CHAIN_ROWS, Models, stage_of
from cost import creation_seconds, session_bytes
from deepsparse_peer import DeepSparse, missing_peer

from sift_onnx.backends.base import CompileOptions, Program, get_backend
from sift_onnx.backends.measure import interleave, paired_ratio, summarize
from sift_onnx.shapes.random_inputs import random_feeds

# What is measured, the ratio, its bound, and the times behind it.
Row = tuple[str, float, str, str]
_PEER_ROUNDS = 5


class Runtime:
    """Measures rows."""

    def __init__(self, models: Models, threads: int, seconds: float, peer: bool, processor_time: bool) -> None:
        self.models = models
        self.threads = threads
        self.seconds = seconds
        self.peer = peer
        self.processor_time = processor_time
        self.clock = time.process_time_ns if processor_time else time.perf_counter_ns

    def program(self, path: Path, backend: str = "cpu") -> Program:
        return get_backend(backend).compile(path, CompileOptions(self.threads))

    def against(self, ours: Program, other: Program, batch: int, what: str, bound: str) -> Row:
        """Ours beside another back end."""
        feeds = random_feeds(ours.inputs, batch)
        runs = [partial(program.run, feeds) for program in (ours, other)]
        timings = interleave(runs, seconds=self.seconds, clock=self.clock)
        medians = [summarize(timing).median_ms for timing in timings]
        return what, paired_ratio(*timings).median, bound, f"{medians[0]:.2f} : {medians[1]:.2f} ms"

    def against_deepsparse(self, ours: Program, path: Path, batch: int, what: str, bound: str) -> Iterator[Row]:
        """Ours beside DeepSparse, in rounds; nothing where it is not asked for."""
        if not self.peer:
            return
        feeds = random_feeds(ours.inputs, batch)
        own, theirs = [], []
        with DeepSparse(path, batch, self.threads, self.processor_time) as peer:
            for number in range(_PEER_ROUNDS + 1):
                slices = self.seconds / _PEER_ROUNDS
                other = statistics.median(peer.run(slices))
                time.sleep(0.1)  # its workers go to sleep
                (timing,) = interleave([partial(ours.run, feeds)], seconds=slices, warmup=0, clock=self.clock)
                if number:  # the first round warms up
                    theirs.append(other)
                    own.append(summarize(timing).median_ms)
        ratio = statistics.median(a / b for a, b in zip(own, theirs, strict=True))
        times = f"{statistics.median(own):.2f} : {statistics.median(theirs):.2f} ms"
        yield what, ratio, bound, times

    def resnet(self, sparsity: float) -> Iterator[Row]:
        """ResNet-18 at batch 1 and 64."""
        sparse, dense = self.models.wide("resnet18", sparsity), self.models.dense("resnet18")
        ours, original = self.program(sparse), self.program(dense, "onnxruntime")
        bounds = {
            0.9: ("0.50", "0.20", "1.90", "0.90", "0.14", "1.45"),
            0.75: ("0.80", "", "", "1.00", "", ""),
            0.5: ("", "1.00", "", "", "1.00", ""),
        }[sparsity]
        for i, batch in enumerate((1, 64)):
            name = f"ResNet-18 {sparsity:.0%}, batch {batch}"
            peer, same, other = bounds[3 * i : 3 * i + 3]
            yield from self.against_deepsparse(ours, sparse, batch, f"{name} : DeepSparse", peer)
            yield self.against(ours, self.program(sparse, "onnxruntime"), batch, f"{name} : same file", same)
            yield self.against(ours, original, batch, f"{name} : original", other)

    def odd_batches(self) -> Iterator[Row]:
        """Time per image of batches that are no multiple of 16, in that of the next one."""
        ours = self.program(self.models.wide("resnet18", 0.9))
        for batch, whole in BATCHES:
            feeds = [random_feeds(ours.inputs, size) for size in (batch, whole)]
            timings = interleave([partial(ours.run, own) for own in feeds], seconds=self.seconds, clock=self.clock)
            medians = [summarize(timing).median_ms for timing in timings]
            ratio = paired_ratio(*timings).median * whole / batch
            bound = "1.25" if batch > 16 else "1.60"
            times = f"{medians[0] / batch:.2f} : {medians[1] / whole:.2f} ms per image"
            yield f"ResNet-18 90%, batch {batch} : {whole}, per image", ratio, bound, times

    def chain(self) -> Iterator[Row]:
        """Four products of 2048 x 2048 with ReLU."""
        sparse, dense = self.models.chain(0.9), self.models.chain(0.0)
        ours, original = self.program(sparse), self.program(dense, "onnxruntime")
        for rows in CHAIN_ROWS:
            name = f"chain 4 x 2048x2048 90%, {rows} rows"
            yield from self.against_deepsparse(ours, sparse, rows, f"{name} : DeepSparse", "0.75")
            yield self.against(ours, original, rows, f"{name} : onnxruntime, no weight zero", "")

    def network(self, name: str, batches: tuple[int, ...], bound: str) -> Iterator[Row]:
        """Another architecture at 75 %."""
        sparse, dense = self.models.wide(name, 0.75), self.models.dense(name)
        ours, original = self.program(sparse), self.program(dense, "onnxruntime")
        for batch in batches:
            title = f"{name} 75%, batch {batch}"
            yield from self.against_deepsparse(ours, sparse, batch, f"{title} : DeepSparse", bound)
            yield self.against(ours, self.program(sparse, "onnxruntime"), batch, f"{title} : same file", "")
            yield self.against(ours, original, batch, f"{title} : original", "")

    def peak(self) -> Iterator[Row]:
        """Of the 3x3 stages at 90 %, the median layer's share of what the multipliers could do."""
        program = self.program(self.models.wide("resnet18", 0.9))
        for batch, bound in ((1, "at least 0.50"), (64, "at least 0.60")):
            shares: dict[str, list[float]] = {}
            for node in program.profile(random_feeds(program.inputs, batch)).nodes:
                stage = stage_of(node.name)
                if stage and node.share_of_peak is not None:
                    shares.setdefault(stage, []).append(node.share_of_peak)
            for stage, values in shares.items():
                yield f"ResNet-18 90%, batch {batch}, {stage}: share of peak", statistics.median(values), bound, ""

    def cost(self) -> Iterator[Row]:
        """Memory and creation, each program in processes of its own."""
        path = self.models.wide("resnet18", 0.9)
        ours, theirs = (session_bytes(path, backend, self.threads) for backend in ("cpu", "onnxruntime"))
        for when, own, other in zip(("created", "after a run"), ours, theirs, strict=True):
            times = f"{own / 1e6:.0f} : {other / 1e6:.0f} MB"
            yield f"ResNet-18 90%, memory {when} : same file", own / other, "0.33", times
        for name, sparsity in (("resnet18", 0.9), ("bert-small", 0.75)):
            own, other = creation_seconds(self.models.wide(name, sparsity), self.threads)
            times = f"{1e3 * own:.0f} : {1e3 * other:.0f} ms"
            yield f"{name} {sparsity:.0%}, creating a session : same file", own / other, "1.50", times


def main() -> None:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each program in each row")
    parser.add_argument("--only", default="", metavar="REGEX", help="groups of rows: " + ", ".join(_GROUPS))
    parser.add_argument("--folder", type=Path, help="where models are kept; a temporary one by default")
    parser.add_argument("--peer", action="store_true", help="beside DeepSparse too, where it is installed")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="instead of wall time: steadier on a shared machine, with --threads 1",
    )
    arguments = parser.parse_args()
    if arguments.peer and (missing := missing_peer()):
        sys.exit(missing)
    with tempfile.TemporaryDirectory() as temporary:
        runtime = Runtime(
            Models(arguments.folder or Path(temporary)),
            arguments.threads,
            arguments.seconds,
            arguments.peer,
            arguments.processor_time,
        )
        print("| ours : the other | ratio | at most | | times |\n|---|---:|---:|---|---|")
        for name, group in _GROUPS.items():
            if not re.search(arguments.only, name):
                continue
            for what, ratio, bound, times in group(runtime):
                print(f"| {what} | {ratio:.3f} | {bound} | {_verdict(ratio, bound)} | {times} |", flush=True)


def _verdict(ratio: float, bound: str) -> str:
    if not bound:
        return ""
    least = bound.removeprefix("at least ")
    met = ratio >= float(least) if least != bound else ratio <= float(bound)
    return "met" if met else "missed"


_GROUPS = {
    "cost": Runtime.cost,
    "resnet-90": lambda runtime: runtime.resnet(0.9),
    "resnet-75": lambda runtime: runtime.resnet(0.75),
    "resnet-50": lambda runtime: runtime.resnet(0.5),
    "batches": Runtime.odd_batches,
    "chain": Runtime.chain,
    "bert": lambda runtime: runtime.network("bert-small", (1, 8), "0.85"),
    "mobilenet": lambda runtime: runtime.network("mobilenetv2", (1, 16, 64), "1.00"),
    "peak": Runtime.peak,
}


if __name__ == "__main__":
    main()
