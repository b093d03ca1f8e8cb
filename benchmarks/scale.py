"""Memory and time of widening models that do not fit into memory, against ``dd`` writing as many bytes.

    python benchmarks/scale.py [--model gpt3-1.3b] [--layers 24] [--sparsity 0.9] [--folder DIR]
    python benchmarks/scale.py --model gpt3-small --num-classes 16384 --layers 12,24

For each number of layers: the model is exported, and ``transform --wide S --storage sparse`` runs in a process of its
own, whose peak memory is taken and whose time ends when the files are on the disk (fsync). The result is inspected, in
a process of its own too, and every sparse tensor read: its indices ascend within the tensor, none of its values is
zero, and there are as many as the mask should have. Then the result is removed, and ``dd conv=fsync`` writes as many
bytes of zeros into the same folder. The folder has to hold the model and the result: 19 GB for gpt3-1.3b.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sift_onnx.models import export

# VmHWM, not ru_maxrss: the latter starts at the peak of the process that called fork.
PEAK = """
import json, os, re, sys, time
def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""
TRANSFORM = (
    PEAK
    + """
import sift_onnx
start = time.perf_counter()
model = sift_onnx.transform(sys.argv[1], wide=sys.argv[3])
data = model.save(sys.argv[2], storage="sparse", force=True)
for path in filter(None, (sys.argv[2], data)):
    with open(path, "rb") as file:
        os.fsync(file.fileno())
seconds = time.perf_counter() - start
done = {"seconds": seconds, "processor": time.process_time(), "peak": peak(), "data": str(data) if data else None}
print(json.dumps(done))
"""
)
INSPECT = (
    PEAK
    + """
import sift_onnx
start = time.perf_counter()
report = sift_onnx.inspect(sys.argv[1]).to_dict()
print(json.dumps({"seconds": time.perf_counter() - start, "peak": peak(), "report": report}))
"""
)
READ = (
    PEAK
    + """
import numpy as np
import sift_onnx
model = sift_onnx.load(sys.argv[1])
counts = {}
for name, constant in model.masked().items():
    weight = constant.weight
    assert np.all(np.diff(weight.indices) > 0) and weight.indices[-1] < weight.size
    counts[name] = int(np.count_nonzero(weight.values))
print(json.dumps({"peak": peak(), "counts": counts}))
"""
)


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt3-1.3b")
    parser.add_argument("--layers", default="", help="numbers of layers, by comma; the model's own by default")
    parser.add_argument("--num-classes", type=int, help="vocabulary; the model's own by default")
    parser.add_argument("--sparsity", default="0.9")
    parser.add_argument("--folder", default=None, help="where the files go; a temporary folder by default")
    arguments = parser.parse_args()
    layers = [int(n) for n in arguments.layers.split(",") if n] or [None]
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for number in layers:
            measure(Path(folder), arguments.model, number, arguments.num_classes, arguments.sparsity)


def measure(folder: Path, model: str, layers: int | None, vocabulary: int | None, sparsity: str) -> None:
    """One row of figures."""
    source, target = folder / "in.onnx", folder / "out.onnx"
    written = export(model, source, layers=layers, num_classes=vocabulary, force=True)
    name = f"{model}, {layers} layers" if layers else model
    print(f"{name}: {written.parameters:,} parameters, {written.bytes / 1e9:.2f} GB", flush=True)
    dense = child(INSPECT, source)
    done = child(TRANSFORM, source, target, sparsity)
    files = [target, *([Path(done["data"])] if done["data"] else [])]
    size = sum(path.stat().st_size for path in files)
    found, read = child(INSPECT, target), child(READ, target)
    check(dense["report"], found["report"], read["counts"])
    for path in files:
        path.unlink()
    seconds = dd(folder / "dd.bin", size)
    print(f"  output               {size / 1e9:.2f} GB; {sum(read['counts'].values()):,} non-zeros under masks, exact")
    processor = f"{done['processor']:.1f} s of processor time"
    print(f"  transform            {done['seconds']:.1f} s, {processor}; peak memory {done['peak'] / 1e9:.2f} GB")
    print(f"  dd of as many bytes  {seconds:.1f} s; ratio {done['seconds'] / seconds:.2f}")
    print(f"  inspect              {found['seconds']:.1f} s; peak memory {found['peak'] / 1e9:.2f} GB", flush=True)


def check(before: dict[str, Any], after: dict[str, Any], counts: dict[str, int]) -> None:
    """Every mask has its non-zeros, and the model its multiply-accumulates, to one non-zero per layer."""
    # Some of a hundred million normal draws are zero: the original has been trained with them, they count.
    macs = before["totals"]["macs"], after["totals"]["effective_macs"]
    positions = max(layer["macs"] // layer["params"] for layer in after["layers"])
    assert abs(macs[1] - macs[0]) <= positions, macs
    nnz = {layer["name"]: layer["nnz"] for layer in after["layers"] if layer["search_space"]}
    assert counts == nnz, "non-zeros differ from what the masks say"


def child(code: str, *arguments: object) -> dict[str, Any]:
    """What the code prints last, as a process of its own."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    result: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return result


def dd(path: Path, size: int) -> float:
    """Seconds that dd takes for as many bytes, fsync included."""
    command = ["dd", "if=/dev/zero", f"of={path}", "bs=4M", f"count={size}", "iflag=count_bytes", "conv=fsync"]
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    seconds = time.perf_counter() - start
    path.unlink()
    return seconds


if __name__ == "__main__":
    main()
