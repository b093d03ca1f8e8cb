"""How long a session takes to open: from its model, from a cache of lowered models, and in onnxruntime.

    python benchmarks/serving/opening.py [--threads 2] [--sparsity 0.9] [--rounds 7] [MODEL.onnx ...]

Rounds of all three alternate in one process; the files are in the page cache, as after a first start. The first run of
a session, which packs its weights and may time both ways, is listed besides. Without models, a ResNet-50 and an encoder
of BERT Base's size are made.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "cpu_runtime"))

import onnx
import onnxruntime as ort
import pages
from generated import encoder

import sift_onnx
from sift_onnx.passes import Prune
from sift_onnx.shapes.random_inputs import random_feeds
from sift_onnx.shapes.tensor_specs import model_inputs


def made(folder: Path, sparsity: float) -> list[Path]:
    """The two models, without a normalization that is not folded."""
    from sift_onnx.models.export import export

    dense, resnet, bert = (folder / f"{name}.onnx" for name in ("dense", "ResNet-50", "BERT Base"))
    export("resnet50", dense, batch="dynamic", keep_batch_norm=False, zero_init_residual=False)
    sift_onnx.save(Prune(sparsity)(sift_onnx.load(dense)).model, resnet)
    onnx.save(encoder(768, 12, sparsity), bert)
    return [resnet, bert]


def timed(action: Callable[[], Any]) -> tuple[Any, float, float]:
    """What it gives; milliseconds of wall time and of processor time."""
    gc.collect()
    used, start = time.process_time(), time.perf_counter()
    result = action()
    return result, 1e3 * (time.perf_counter() - start), 1e3 * (time.process_time() - used)


def measure(path: Path, threads: int, rounds: int, folder: Path) -> list[dict[str, Any]]:
    """A row for each way to open ``path``."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    ways: dict[str, Callable[[], Any]] = {
        "onnxruntime": lambda: ort.InferenceSession(str(path), options, ["CPUExecutionProvider"]),
        "from the model": lambda: sift_onnx.InferenceSession(path, threads=threads),
        "from the cache": lambda: sift_onnx.InferenceSession(path, threads=threads, packed_cache=folder),
    }
    feeds = random_feeds(model_inputs(sift_onnx.load(path)), 1)
    ways["from the cache"]()
    times: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            session, wall, used = timed(way)
            times[name].append((wall, used, timed(lambda session=session: session.run(None, feeds))[1]))
            del session
    least = {name: [min(column) for column in zip(*rows, strict=True)] for name, rows in times.items()}
    middle = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in times.items()}
    base = least["onnxruntime"]
    return [
        {
            "model": path.stem, "threads": threads, "way": name, "wall_ms": round(wall, 1),
            "median_ms": round(median, 1), "processor_ms": round(used, 1), "first_run_ms": round(first, 1),
            "ratio": round(wall / base[0], 3), "processor_ratio": round(used / base[1], 3),
        }
        for (name, (wall, used, first)), (median, _, _) in zip(least.items(), middle.values(), strict=True)
    ]  # fmt: skip


def main() -> None:
    """Measure, print rows, and write them to a file of results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--results", type=Path, metavar="FILE", help="where the rows are written")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in arguments.models or made(folder, arguments.sparsity):
            rows += measure(path, arguments.threads, arguments.rounds, folder / "packed")
            for row in rows[-3:]:
                print(*row.values(), sep=" | ", flush=True)
    if arguments.results:
        pages.write(arguments.results, rows)


if __name__ == "__main__":
    main()
