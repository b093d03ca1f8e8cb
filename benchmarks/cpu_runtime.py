"""The sparse CPU runtime beside onnxruntime: ResNet-18 and what Sparse Wide makes of it.

    python benchmarks/cpu_runtime.py [--model NAME] [--sparsity 0.9] [--batch 1,64] [--threads 2] [--seconds 5]

Three programs take turns in one process: ours on the sparse model, onnxruntime on the same file, and onnxruntime on
the dense original, which has as many multiply-accumulates. A peer that is not installed with this package joins as a
command that prints JSON with ``median_ms``, run in turns with ours:

    python benchmarks/cpu_runtime.py --peer "deepsparse=./deepsparse_bench.sh {model} {batch} 5"
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

import sift_onnx
from sift_onnx.backends.base import CompileOptions, Program, get_backend
from sift_onnx.backends.measure import interleave, paired_ratio, summarize
from sift_onnx.feeds import Feeds, graph_inputs, random_feeds
from sift_onnx.model import Model
from sift_onnx.models.export import export

PEER_ROUNDS = 3


def models(name: str, sparsity: float, folder: Path) -> tuple[Path, Path]:
    """The dense original and its sparse version, made where they are missing."""
    dense, sparse = folder / f"{name}.onnx", folder / f"{name}-wide-{sparsity:g}.onnx"
    sequence = 128 if name.startswith(("bert", "gpt")) else None
    if not dense.exists():
        export(name, dense, batch="dynamic", sequence=sequence)
    if not sparse.exists():
        budget = "layer" if sequence else "model"
        sift_onnx.save(sift_onnx.transform(dense, wide=sparsity, budget=budget), sparse)
    return dense, sparse


def peer_ms(command: str, model: Path, batch: int) -> float:
    """Median latency that the command prints, in milliseconds."""
    words = [word.format(model=model, batch=batch) for word in shlex.split(command)]
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return float(json.loads(printed.strip().splitlines()[-1])["median_ms"])


def beside_peer(
    ours: Program, feeds: Feeds, command: str, model: Path, batch: int, seconds: float
) -> tuple[float, float]:
    """Medians of ours and of the peer over rounds in turn, in milliseconds."""
    own, theirs = [], []
    for _ in range(PEER_ROUNDS):
        theirs.append(peer_ms(command, model, batch))
        time.sleep(0.2)
        (timing,) = interleave([partial(ours.run, feeds)], seconds=seconds)
        own.append(summarize(timing).median_ms)
    return statistics.median(own), statistics.median(theirs)


def main() -> None:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--batch", default="1,64")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="instead of wall time: steadier on a shared machine, with --threads 1",
    )
    parser.add_argument("--folder", type=Path, help="where models are kept; a temporary one by default")
    parser.add_argument("--peer", metavar="NAME=COMMAND")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        dense, sparse = models(arguments.model, arguments.sparsity, arguments.folder or Path(temporary))
        options = CompileOptions(arguments.threads)
        ours = get_backend("cpu").compile(sparse, options)
        same, original = (get_backend("onnxruntime").compile(path, options) for path in (sparse, dense))
        clock = time.process_time_ns if arguments.processor_time else time.perf_counter_ns
        inputs = graph_inputs(Model.load(dense).origin)
        print(f"{arguments.model}, Sparse Wide {arguments.sparsity:g}, {arguments.threads} threads; median ms")
        print("| batch | ours | onnxruntime, same file | ratio | onnxruntime, dense original | ratio |")
        print("|---:|---:|---:|---:|---:|---:|")
        for batch in map(int, arguments.batch.split(",")):
            feeds = random_feeds(inputs, batch)
            timings = interleave(
                [partial(program.run, feeds) for program in (ours, same, original)],
                seconds=arguments.seconds,
                clock=clock,
            )
            medians = [summarize(timing).median_ms for timing in timings]
            ratios = [paired_ratio(timings[0], other).median for other in timings[1:]]
            print(
                f"| {batch} | {medians[0]:.2f} | {medians[1]:.2f} | {ratios[0]:.3f} | {medians[2]:.2f} "
                f"| {ratios[1]:.3f} |",
                flush=True,
            )
            if arguments.peer:
                name, _, command = arguments.peer.partition("=")
                own, theirs = beside_peer(ours, feeds, command, sparse, batch, arguments.seconds)
                print(f"beside {name}, batch {batch}: {own:.2f} ms against {theirs:.2f}, ratio {own / theirs:.3f}")


if __name__ == "__main__":
    main()
