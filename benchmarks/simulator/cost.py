"""Time and memory of ``simulate``.

    python benchmarks/simulator/cost.py [--rounds 3]

Of ResNet-18, Sparse Wide at 90 %, at batch 64 on all cores of wse2, from files in both storages: the fast model and its
band at five machines, without loading; the whole command, with loading, sweep and page; and what onnxruntime takes to
run the dense file at batch 1. Of GPT-3 Small, Sparse Wide at 90 %, from a file with sparse storage; of GPT-3 1.3B, from
its sizes: a training step with the page. Every row is a process of its own; memory is its peak, imports included.
Beside the time on the clock is that of the processor, which neighbours disturb less.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import sift_onnx
from sift_onnx.backends.dataflow.machines.preset_files import load_machine
from sift_onnx.backends.dataflow.simulation.simulator import simulate_workload
from sift_onnx.backends.dataflow.workloads.lowering import lower
from sift_onnx.models import export

# VmHWM, not ru_maxrss: the latter starts at the peak of the process that called fork.
PEAK = 'import re; print("peak", re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])'
COMMAND = (
    """import sys
from sift_onnx.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    if end.code:
        raise
"""
    + PEAK
)
RUN = (
    """import sys
from sift_onnx.backends.base import get_backend
from sift_onnx.shapes.random_inputs import random_feeds
program = get_backend("onnxruntime").compile(sys.argv[1])
program.run(random_feeds(program.inputs, batch=1))
"""
    + PEAK
)


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dense, sparse = _wide(folder, "resnet18", "dense"), _wide(folder, "resnet18", "sparse")
        workload, machine = lower(dense, 64), load_machine("wse2")
        times = []
        for _ in range(rounds):
            start, used = time.perf_counter(), time.process_time()
            simulate_workload(workload, machine)
            times.append((time.perf_counter() - start, time.process_time() - used))
        print(f"ResNet-18, fast model and band, loaded: {_spread(times)}")
        for storage, path in (("dense", dense), ("sparse", sparse)):
            _report(f"ResNet-18, {storage} file, with page", rounds, folder, path, "--batch", "64")
        print(f"ResNet-18, dense file in onnxruntime at batch 1: {_alone(RUN, dense)[2] / 1e6:.0f} MB")
        small = _wide(folder, "gpt3-small", "sparse")
        _report("GPT-3 Small, sparse file, with page", rounds, folder, small, "--batch", "64")
        _report("GPT-3 1.3B, from sizes, with page", 1, folder, "gpt3-1.3b", "--wide", "0.9", "--training")


def _wide(folder: Path, name: str, storage: str) -> Path:
    """The file of an architecture, Sparse Wide at 90 %."""
    source, target = folder / "in.onnx", folder / f"{name}-{storage}.onnx"
    export(name, source, keep_batch_norm=False)
    sift_onnx.transform(source, wide=0.9).save(target, storage=storage)  # type: ignore[arg-type]
    size = sum(path.stat().st_size for path in folder.glob(f"{target.name}*"))
    print(f"{name}, {storage} storage: {size / 1e6:.0f} MB")
    source.unlink()
    return target


def _report(what: str, rounds: int, folder: Path, *arguments: str | Path) -> None:
    options = ("--html", str(folder / "page.html"), "--json", str(folder / "result.json"), "--force", "-q")
    runs = [_alone(COMMAND, "simulate", *arguments, *options) for _ in range(rounds)]
    print(f"{what}: {_spread([run[:2] for run in runs])}, {max(run[2] for run in runs) / 1e6:.0f} MB")


def _alone(code: str, *arguments: str | Path) -> tuple[float, float, int]:
    """Seconds on the clock, seconds of the processor and peak bytes of a process of its own."""
    start, before = time.perf_counter(), os.times()
    command = [sys.executable, "-c", code, *map(str, arguments)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"^peak (\d+)$", output, re.MULTILINE)
    assert found is not None
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - start, used, 1024 * int(found[1])


def _spread(times: list[tuple[float, float]]) -> str:
    clock, processor = (sorted(column) for column in zip(*times, strict=True))
    return (
        f"{statistics.median(clock):.2f} s ({clock[0]:.2f} to {clock[-1]:.2f} in {len(times)} runs), "
        f"{statistics.median(processor):.2f} s of the processor"
    )


if __name__ == "__main__":
    main()
