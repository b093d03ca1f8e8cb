"""Trainings of the tutorials as they stand there, on sparse kernels where those pay and on torch's dense ones.

    python benchmarks/training/tutorials.py [--rounds 3]

Runs the blocks of a tutorial up to its training of a masked model, then that training with ``--kernels auto`` and
``--kernels dense`` in turns. The time is what the training itself reports, with the choice of kernels, and without the
start of Python.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
_BLOCK = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Training:
    """Of a tutorial.

    Attributes:
        tutorial: its file.
        until: what the first block has that is not run.
        arguments: of `sift-onnx train`, but for where it writes.
    """

    tutorial: str
    until: str
    arguments: str


TRAININGS = (
    Training("train-a-classifier.md", "train()", "1/wide.onnx --recipe rigl.yaml --data digits.py:digits --threads 1"),
    Training("grow-a-trained-model.md", "train grown.onnx", "grown.onnx --recipe rigl.yaml --data bars.npz"),
    Training("sparsify-a-gpt.md", "train wide.onnx", "wide.onnx --recipe gpt.yaml --data text.npz"),
    Training("grow-a-transformer.md", "train grown.onnx", "grown.onnx --recipe rigl.yaml --data text.npz"),
)


def prepare(training: Training, folder: Path) -> None:
    """Run what stands before the training."""
    text = (TUTORIALS / training.tutorial).read_text(encoding="utf-8")
    blocks = []
    for language, name, body in _BLOCK.findall(text):
        if training.until in body:
            break
        if name:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(body, encoding="utf-8")
        elif language == "sh":
            run(["bash", "-e", "-c", body], folder)
        elif language == "python":
            # Later blocks use what earlier ones define.
            blocks.append(body)
            run([sys.executable, "-c", "\n".join(blocks)], folder)
    else:
        raise SystemExit(f"{training.tutorial} has no block with {training.until!r}")


def run(command: list[str], folder: Path) -> None:
    """Run a command of this environment in a folder, without its output."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    subprocess.run(command, cwd=folder, env={**os.environ, "PATH": path}, check=True, stdout=subprocess.DEVNULL)


def seconds(training: Training, kernels: str, folder: Path) -> float:
    """Of one training."""
    source, *rest = shlex.split(training.arguments)
    command = ["sift-onnx", "train", source, "timed.onnx", *rest, "--kernels", kernels, "--json", "timed.json"]
    run([*command, "--force", "-q"], folder)
    return float(json.loads((folder / "timed.json").read_text(encoding="utf-8"))["seconds"])


def main() -> None:
    """Time all of them, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    print("| tutorial | auto, s | dense, s | ratio |\n| --- | ---: | ---: | ---: |")
    for training in TRAININGS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            prepare(training, folder)
            pairs = [[seconds(training, kernels, folder) for kernels in ("auto", "dense")] for _ in range(rounds)]
        auto, dense = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(a / d for a, d in pairs)
        print(f"| {training.tutorial} | {auto:.2f} | {dense:.2f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
