"""ResNet-18 and its Sparse Wide form in blocks of four inputs: trained on images, quantized, evaluated and timed.

    python benchmarks/quantized/trained.py --data FOLDER [--width 0.125] [--epochs 2 | --steps 300] [--folder FOLDER]

The images are of any folder that `sift-onnx train` takes whose images have one size, such as Fashion-MNIST. Everything
is done by the command line, with the commands that docs/quantization.md shows; with ``--folder`` the files stay, and
those that are there are not made again. ``--results`` writes a file of results, of which `page.py` makes a table.
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

import numpy as np
import torch

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.measure import interleave, paired_ratio, summarize
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram
from sift_onnx.datasets.folder import read_image_folder
from sift_onnx.models.registry import Architecture
from sift_onnx.models.resnet import resnet18
from sift_onnx.models.trace import to_onnx

sys.path.insert(0, str(Path(__file__).parents[1]))

import pages

DENSE, DENSE_INT8, WIDE, WIDE_INT8 = "dense fp32", "dense int8", "wide fp32", "wide int8"
_RECIPE = """\
version: 1
training:
  {length}
  batch_size: 128
  optimizer: {{type: sgd, lr: 0.1, momentum: 0.9, nesterov: true, weight_decay: 0.0005}}
  schedule: {{type: cosine, warmup: 50}}
  log_every: 100
"""
# Arguments of sift-onnx; the last file of each is what it makes.
_TRANSFORM = "transform dense.onnx wide.onnx --wide 0.75 --pattern block:1x4 --round-to 4"
_TRAIN = "train {0}.onnx {0}-trained.onnx --recipe recipe.yaml --data {1}"
_QUANTIZE = "quantize {0}-trained.onnx {0}-int8.onnx --data {1} --no-evaluate --json {0}-quantized.json"
_EVALUATE = "evaluate {0}-int8.onnx --data {1} --baseline {0}-trained.onnx --threads 1"


def export_dense(path: Path, shape: tuple[int, int, int], classes: int, width: float) -> None:
    """ResNet-18 with the stem for small images, for images of ``shape``; gray ones are repeated."""
    size = (3, *shape[1:])
    row = Architecture("resnet18", "ResNet-18, stem 3x3", "-", size, classes, "benchmarks.quantized")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = resnet18(width, classes, stem="cifar")
    to_onnx(module.eval(), row, "dynamic", "torchscript", 17).save(path, force=True)


def run(command: str, folder: Path, made: str = "", *options: str) -> None:
    """A command of sift-onnx in the folder; not if what it makes is there."""
    if made and (folder / made).exists():
        return
    print(f"sift-onnx {command}", flush=True)
    subprocess.run([sys.executable, "-m", "sift_onnx", *command.split(), "-q", *options], check=True, cwd=folder)


def accuracies(folder: Path, data: str) -> dict[str, float]:
    """Top-1 accuracy of the four models on the held-out images."""
    found = {}
    for name, floats, integers in (("dense", DENSE, DENSE_INT8), ("wide", WIDE, WIDE_INT8)):
        report = f"{name}-accuracy.json"
        run(_EVALUATE.format(name, data), folder, report, "--json", report)
        for one in json.loads((folder / report).read_text())["runs"]:
            found[floats if one["baseline"] else integers] = one["metrics"]["top1"]
    return found


def times(folder: Path, shape: tuple[int, int, int], batch: int, threads: int, seconds: float) -> dict[str, Any]:
    """Milliseconds of each way, least and median, and the ratio of the last one to it."""
    options = CompileOptions(threads)
    feeds = {"input": np.random.default_rng(0).random((batch, 3, *shape[1:]), np.float32)}
    ways = {
        DENSE: OnnxRuntimeProgram(str(folder / "dense-trained.onnx"), options),
        DENSE_INT8: OnnxRuntimeProgram(str(folder / "dense-int8.onnx"), options),
        WIDE: CpuProgram(str(folder / "wide-trained.onnx"), options),
        WIDE_INT8: CpuProgram(str(folder / "wide-int8.onnx"), options),
    }
    clock = time.thread_time_ns if threads == 1 else time.perf_counter_ns
    runs = [lambda program=program: program.run(feeds) for program in ways.values()]
    timings = interleave(runs, seconds=seconds, clock=clock)
    ms = {}
    for way, timing in zip(ways, timings, strict=True):
        summary = summarize(timing)
        ms[way] = [round(summary.min_ms, 4), round(summary.median_ms, 4)]
    ratios = {
        way: round(paired_ratio(timings[-1], timing).median, 3) for way, timing in zip(ways, timings, strict=True)
    }
    return {"batch": batch, "threads": threads, "ms": ms, "ratio": ratios}


def main() -> None:
    """Make the models and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of labelled images")
    parser.add_argument("--width", type=float, default=0.125)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, help="of 128 images, in place of epochs")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each way")
    parser.add_argument("--folder", type=Path, help="where files stay")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    data = str(Path(given.data).resolve())
    images = read_image_folder(Path(data)).train
    if images.shape is None:
        sys.exit(f"{data}: images of several sizes; take IDX files or CIFAR's")
    length = f"steps: {given.steps}" if given.steps else f"epochs: {given.epochs}"
    with tempfile.TemporaryDirectory() as name:
        folder = given.folder or Path(name)
        folder.mkdir(exist_ok=True)
        (folder / "recipe.yaml").write_text(_RECIPE.format(length=length))
        if not (folder / "dense.onnx").exists():
            export_dense(folder / "dense.onnx", images.shape, int(images.labels.max()) + 1, given.width)
        run(_TRANSFORM, folder, "wide.onnx")
        for model in ("dense", "wide"):
            run(_TRAIN.format(model, data), folder, f"{model}-trained.onnx")
            run(_QUANTIZE.format(model, data), folder, f"{model}-int8.onnx")
        row: dict[str, Any] = {
            "images": Path(data).name,
            "width": given.width,
            "length": length,
            "accuracy": accuracies(folder, data),
            "live_quads": json.loads((folder / "wide-quantized.json").read_text())["totals"]["live_quads"],
            "times": [times(folder, images.shape, batch, given.threads, given.seconds) for batch in given.batch],
        }
    print(json.dumps(row, indent=1))
    if given.results:
        given.results.parent.mkdir(exist_ok=True)
        pages.write(given.results, [row])


if __name__ == "__main__":
    main()
