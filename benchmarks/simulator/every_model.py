"""Every architecture of ``sift-onnx models``, as it is and Sparse Wide at 90 %, simulated at batch 1 and 64.

    python benchmarks/simulator/every_model.py [--only GLOB] [--skip GLOB]

Models are exported at full size; those of several gigabytes take minutes and as much disk. Each report must be finite,
with utilisation in (0, 1] and no negative stalls, for inference and for a training step.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import tempfile
from pathlib import Path

import sift_onnx
from sift_onnx.errors import BudgetError
from sift_onnx.models import ARCHITECTURES, export


def main() -> None:
    """Print a row per model and batch; stop at the first report that is not sound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", metavar="GLOB")
    parser.add_argument("--skip", default="", metavar="GLOB")
    arguments = parser.parse_args()
    print("| model | sparsity | batch | inference, cycles | training step, cycles | over itself dense |")
    print("|---|---:|---:|---:|---:|---:|")
    for architecture in fnmatch.filter(ARCHITECTURES, arguments.only):
        if fnmatch.fnmatch(architecture, arguments.skip):
            continue
        name = architecture
        with tempfile.TemporaryDirectory() as folder:
            original, wide = Path(folder) / "original.onnx", Path(folder) / "wide.onnx"
            export(architecture, original, keep_batch_norm=False)
            try:
                model = sift_onnx.transform(original, wide=0.9)
            except BudgetError:  # a vocabulary whose head costs more than the rest of the model
                model, name = sift_onnx.transform(original, wide=0.9, budget="layer"), f"{name}, --budget layer"
            model.save(wide, storage="sparse")
            for sparsity, path in ((0.0, original), (0.9, wide)):
                for batch in (1, 64):
                    inference, training = (_sound(path, batch, step) for step in (False, True))
                    speedup = inference["speedup"]["vs_dense_wide"]
                    cycles = [f"{document['totals']['cycles']:,}" for document in (inference, training)]
                    print(f"| {name} | {sparsity:g} | {batch} | {' | '.join(cycles)} | {speedup:.2f} |", flush=True)


def _sound(path: Path, batch: int, training: bool) -> dict[str, object]:
    document = sift_onnx.simulate(path, batch=batch, training=training).to_dict()
    json.dumps(document, allow_nan=False)
    for part in (document["totals"], *document["layers"]):
        assert 0 < part["utilization"] <= 1, part
        assert part["stall_cycles"] >= 0, part
    return document


if __name__ == "__main__":
    main()
