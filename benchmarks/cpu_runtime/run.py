"""The sparse CPU runtime compared with onnxruntime and DeepSparse: speed, memory, and the time to create a session.

    python benchmarks/cpu_runtime/run.py [--threads 2] [--seconds 3] [--only REGEX] [--peer] [--folder FOLDER]
    python benchmarks/cpu_runtime/run.py --threads 1 --processor-time ...
    python benchmarks/cpu_runtime/run.py --peer --results benchmarks/cpu_runtime/results/zen4.json
    python benchmarks/cpu_runtime/page.py        # README.md and chart.svg from results/*.json

Every row is a ratio of two programs that take turns on the same machine, and is shown with the bound that it should
meet. "Same file" is onnxruntime on the sparse model, "dense original" is onnxruntime on
the dense model with as many multiply-accumulates. DeepSparse is not a dependency of this project and its licence allows
evaluation only: ``--peer`` runs it in a separate environment, and says how to make that where it is missing.
``--results`` appends the run, with date, commit and processor, to a file of results.
"""

from __future__ import annotations

import argparse
import datetime as dt
import re
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

from cases import BATCHES, CHAIN_ROWS, Models, stage_of
from cost import creation_seconds, session_bytes
from deepsparse_peer import DeepSparse, missing_peer
from page import pages, table
from results import DEEPSPARSE, DENSE, DENSE_CHAIN, SAME_FILE, Processor, Row, Run, add_run

from sift_onnx.backends.base import CompileOptions, Program, get_backend
from sift_onnx.backends.cpu.isa import selected_isa
from sift_onnx.backends.measure import interleave, paired_ratio, summarize
from sift_onnx.backends.processors import usable_processors
from sift_onnx.shapes.random_inputs import random_feeds

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

    def against(self, ours: Program, other: Program, row: Row) -> Row:
        """``row`` with the times of ours and of another back end."""
        feeds = random_feeds(ours.inputs, row.batch)
        runs = [partial(program.run, feeds) for program in (ours, other)]
        timings = interleave(runs, seconds=self.seconds, clock=self.clock)
        own, theirs = (summarize(timing).median_ms for timing in timings)
        return replace(row, ratio=paired_ratio(*timings).median, ours=own, theirs=theirs)

    def against_deepsparse(self, ours: Program, path: Path, row: Row) -> Iterator[Row]:
        """``row`` with the times of ours and of DeepSparse, in rounds; nothing unless it is asked for."""
        if not self.peer:
            return
        assert row.batch is not None
        feeds = random_feeds(ours.inputs, row.batch)
        own, theirs = [], []
        with DeepSparse(path, row.batch, self.threads, self.processor_time) as peer:
            for number in range(_PEER_ROUNDS + 1):
                slices = self.seconds / _PEER_ROUNDS
                other = statistics.median(peer.run(slices))
                time.sleep(0.1)  # its workers go to sleep
                (timing,) = interleave([partial(ours.run, feeds)], seconds=slices, warmup=0, clock=self.clock)
                if number:  # the first round warms up
                    theirs.append(other)
                    own.append(summarize(timing).median_ms)
        ratio = statistics.median(a / b for a, b in zip(own, theirs, strict=True))
        yield replace(row, ratio=ratio, ours=statistics.median(own), theirs=statistics.median(theirs))

    def network(
        self, name: str, sparsity: float, batches: Sequence[int], bounds: Sequence[Sequence[float | None]]
    ) -> Iterator[Row]:
        """An architecture against DeepSparse, the same file and the dense original; ``bounds`` are per batch."""
        sparse, dense = self.models.wide(name, sparsity), self.models.dense(name)
        ours, original = self.program(sparse), self.program(dense, "onnxruntime")
        for batch, (peer, same, other) in zip(batches, bounds, strict=True):
            row = Row(title(name, sparsity), DEEPSPARSE, 0.0, batch, at_most=peer)
            yield from self.against_deepsparse(ours, sparse, row)
            same_row = replace(row, against=SAME_FILE, at_most=same)
            yield self.against(ours, self.program(sparse, "onnxruntime"), same_row)
            yield self.against(ours, original, replace(row, against=DENSE, at_most=other))

    def odd_batches(self) -> Iterator[Row]:
        """Time per image of batches that are not multiples of 16, over that of the next multiple."""
        ours = self.program(self.models.wide("resnet18", 0.9))
        for batch, whole in BATCHES:
            feeds = [random_feeds(ours.inputs, size) for size in (batch, whole)]
            timings = interleave([partial(ours.run, own) for own in feeds], seconds=self.seconds, clock=self.clock)
            own, other = (summarize(timing).median_ms for timing in timings)
            yield Row(
                title("resnet18", 0.9),
                f"batch {whole}",
                paired_ratio(*timings).median * whole / batch,
                batch,
                "time per image",
                own / batch,
                other / whole,
                at_most=1.25 if batch > 16 else 1.60,
            )

    def chain(self) -> Iterator[Row]:
        """Four products of 2048 x 2048 with ReLU."""
        sparse, dense = self.models.chain(0.9), self.models.chain(0.0)
        ours, original = self.program(sparse), self.program(dense, "onnxruntime")
        for rows in CHAIN_ROWS:
            row = Row("chain 4 x 2048x2048 90 %", DEEPSPARSE, 0.0, rows, at_most=0.75)
            yield from self.against_deepsparse(ours, sparse, row)
            yield self.against(ours, original, replace(row, against=DENSE_CHAIN, at_most=None))

    def peak(self) -> Iterator[Row]:
        """Of the 3x3 stages at 90 %, the median layer's share of what the multipliers could do."""
        program = self.program(self.models.wide("resnet18", 0.9))
        for batch, bound in ((1, 0.50), (64, 0.60)):
            shares: dict[str, list[float]] = {}
            for node in program.profile(random_feeds(program.inputs, batch)).nodes:
                stage = stage_of(node.name)
                if stage and node.share_of_peak is not None:
                    shares.setdefault(stage, []).append(node.share_of_peak)
            for stage, values in shares.items():
                share = statistics.median(values)
                yield Row(title("resnet18", 0.9), "peak", share, batch, f"{stage}, share", at_least=bound)

    def cost(self) -> Iterator[Row]:
        """Memory and creation, each program in its own processes."""
        path = self.models.wide("resnet18", 0.9)
        ours, theirs = (session_bytes(path, backend, self.threads) for backend in ("cpu", "onnxruntime"))
        for when, own, other in zip(("when created", "after a run"), ours, theirs, strict=True):
            sizes = own / 1e6, other / 1e6, "MB"
            yield Row(title("resnet18", 0.9), SAME_FILE, own / other, None, f"memory {when}", *sizes, at_most=0.33)
        for name, sparsity in (("resnet18", 0.9), ("bert-small", 0.75)):
            own, other = (1e3 * seconds for seconds in creation_seconds(self.models.wide(name, sparsity), self.threads))
            what = "time to create a session"
            yield Row(title(name, sparsity), SAME_FILE, own / other, None, what, own, other, at_most=1.50)


def title(name: str, sparsity: float) -> str:
    """A widened architecture's name in the results."""
    names = {"resnet18": "ResNet-18", "bert-small": "BERT Small", "mobilenetv2": "MobileNetV2"}
    return f"{names[name]} {100 * sparsity:g} %"


def main() -> None:
    """Measure, print a table in Markdown, and append the rows to a file of results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each program in each row")
    parser.add_argument("--only", default="", metavar="REGEX", help="groups of rows: " + ", ".join(_GROUPS))
    parser.add_argument("--folder", type=Path, help="where models are kept; a temporary one by default")
    parser.add_argument("--peer", action="store_true", help="compare with DeepSparse too, where it is installed")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="instead of wall time: steadier on a shared machine, with --threads 1",
    )
    parser.add_argument("--results", type=Path, metavar="FILE", help="append the run to this file of results")
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
        print(*table([]), sep="\n")
        rows = []
        for name, group in _GROUPS.items():
            if not re.search(arguments.only, name):
                continue
            for row in group(runtime):
                rows.append(row)
                print(table([row])[-1], flush=True)
    if arguments.results:
        add_run(
            arguments.results,
            Processor(pages.processor_name(), selected_isa(), f"{usable_processors()} cores."),
            Run(
                dt.date.today().isoformat(),
                pages.commit(),
                shlex.join(["python", *sys.argv]),
                arguments.threads,
                "processor" if arguments.processor_time else "wall",
                version("onnxruntime"),
                rows,
            ),
        )


_GROUPS = {
    "cost": Runtime.cost,
    "resnet-90": lambda runtime: runtime.network("resnet18", 0.9, (1, 64), ((0.50, 0.20, 1.90), (0.90, 0.14, 1.45))),
    "resnet-75": lambda runtime: runtime.network("resnet18", 0.75, (1, 64), ((0.80, None, None), (1.00, None, None))),
    "resnet-50": lambda runtime: runtime.network("resnet18", 0.5, (1, 64), ((None, 1.00, None), (None, 1.00, None))),
    "batches": Runtime.odd_batches,
    "chain": Runtime.chain,
    "bert": lambda runtime: runtime.network("bert-small", 0.75, (1, 8), ((0.85, None, None),) * 2),
    "mobilenet": lambda runtime: runtime.network("mobilenetv2", 0.75, (1, 16, 64), ((1.00, None, None),) * 3),
    "peak": Runtime.peak,
}


if __name__ == "__main__":
    main()
