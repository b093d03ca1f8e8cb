"""Time and memory of ``transform``, against loading and saving the same files with onnx.

    python benchmarks/transform_cost.py [--model resnet18] [--sparsity 0.9] [--rounds 5]

Each round times ``onnx.load(in) + onnx.save(out)`` and the whole of ``sift_onnx.transform(in)`` + ``save(out)`` one
after the other, in one process, imports excluded; ratios are taken round by round. Peak memory is that of a process
that does nothing but the transform, imports included, as a multiple of the output file.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import onnx

import sift_onnx
from sift_onnx.models import export

# VmHWM, not ru_maxrss: the latter starts at the peak of the process that called fork.
ALONE = """
import re, sys
import sift_onnx
sift_onnx.transform(sys.argv[1], wide=sys.argv[3]).save(sys.argv[2], force=True)
print(1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]))
"""


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--sparsity", default="0.9")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source, target, copied = (Path(folder) / name for name in ("in.onnx", "out.onnx", "copy.onnx"))
        export(arguments.model, source, keep_batch_norm=False)
        sift_onnx.transform(source, wide=arguments.sparsity).save(target)
        print(f"{arguments.model}: {source.stat().st_size / 1e6:.1f} MB -> {target.stat().st_size / 1e6:.1f} MB")
        ratios, ours, theirs = [], [], []
        for _ in range(arguments.rounds):
            wide = onnx.load(target)
            start = time.perf_counter()
            onnx.load(source)
            onnx.save(wide, copied)
            theirs.append(time.perf_counter() - start)
            del wide
            start = time.perf_counter()
            sift_onnx.transform(source, wide=arguments.sparsity).save(target, force=True)
            ours.append(time.perf_counter() - start)
            ratios.append(ours[-1] / theirs[-1])
        print(f"onnx.load + onnx.save   {statistics.median(theirs):.2f} s (median of {arguments.rounds})")
        print(f"transform + save        {statistics.median(ours):.2f} s")
        print(f"ratio                   {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        command = [sys.executable, "-c", ALONE, str(source), str(target), arguments.sparsity]
        peak = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"peak memory             {peak / 1e6:.0f} MB, {peak / target.stat().st_size:.2f} x the output file")


if __name__ == "__main__":
    main()
