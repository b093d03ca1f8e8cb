"""Every architecture of ``sift-onnx models``, as it is and Sparse Wide at 90 %, simulated at batch 1 and 64.

    python benchmarks/simulator/every_model.py [--only GLOB] [--skip GLOB] [--results FILE]
    python benchmarks/simulator/page.py        # README.md and chart.svg from every_model.json

Models are exported at full size; those of several gigabytes take minutes and as much disk. Each report must be finite,
with utilisation in (0, 1] and no negative stalls, for inference and for a training step.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pages

import sift_onnx
from sift_onnx.errors import BudgetError
from sift_onnx.models import ARCHITECTURES, export


def main() -> None:
    """Print a line per model, sparsity and batch; stop at the first report that is not sound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", metavar="GLOB")
    parser.add_argument("--skip", default="", metavar="GLOB")
    parser.add_argument("--results", type=Path, metavar="FILE", help="write the figures as JSON")
    arguments = parser.parse_args()
    rows = []
    for architecture in fnmatch.filter(ARCHITECTURES, arguments.only):
        if not fnmatch.fnmatch(architecture, arguments.skip):
            for row in _simulated(architecture):
                rows.append(row)
                print(row, flush=True)
    if arguments.results:
        pages.write(arguments.results, rows)


def _simulated(architecture: str) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        original, wide = Path(folder) / "original.onnx", Path(folder) / "wide.onnx"
        export(architecture, original, keep_batch_norm=False)
        budget = "model"
        try:
            model = sift_onnx.transform(original, wide=0.9)
        except BudgetError:  # a vocabulary whose head costs more than the rest of the model
            budget = "layer"
            model = sift_onnx.transform(original, wide=0.9, budget=budget)
        model.save(wide, storage="sparse")
        for sparsity, path in ((0.0, original), (0.9, wide)):
            for batch in (1, 64):
                inference, training = (_sound(path, batch, step) for step in (False, True))
                yield {
                    "model": architecture,
                    "budget": budget,
                    "sparsity": sparsity,
                    "batch": batch,
                    "inference_cycles": inference["totals"]["cycles"],
                    "training_cycles": training["totals"]["cycles"],
                    "over_itself_dense": inference["speedup"]["vs_dense_wide"],
                }


def _sound(path: Path, batch: int, training: bool) -> dict[str, Any]:
    document = sift_onnx.simulate(path, batch=batch, training=training).to_dict()
    json.dumps(document, allow_nan=False)
    for part in (document["totals"], *document["layers"]):
        assert 0 < part["utilization"] <= 1, part
        assert part["stall_cycles"] >= 0, part
    return document


if __name__ == "__main__":
    main()
