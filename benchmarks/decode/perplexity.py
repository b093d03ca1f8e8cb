"""Perplexity of a small Sparse Wide GPT on text, with weights as fp32, bf16, fp16 and int8, and in onnxruntime.

    python benchmarks/decode/perplexity.py [--sparsity 0.75] [--scale 2] [--steps 1.0] [--results FILE]
    python benchmarks/decode/page.py

The model and its training are those of the reproduction (``benchmarks/reproduce/text.py``, setting ``small``), at
``--scale`` of its width and ``--steps`` of its training. Writes a file of results.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "reproduce"))

import pages
import text

import sift_onnx

SETTING = "small"
BACKENDS = {"fp32": "cpu", "bf16": "cpu:bf16", "fp16": "cpu:fp16", "int8": "cpu:int8", "onnxruntime": "onnxruntime"}


def held_out(windows: int) -> np.ndarray:
    """Stretches of text that nothing was trained on, [windows, bytes]."""
    whole, length = text.text_of(SETTING, "test"), text.SETTINGS[SETTING].sequence
    starts = np.linspace(0, len(whole) - length - 1, windows).astype(np.int64)
    return whole[starts[:, None] + np.arange(length)].astype(np.int64)


def main() -> None:
    """Train, evaluate, print, and write a file of results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sparsity", default="0.75")
    parser.add_argument("--scale", type=float, default=2.0, help="of the width of the setting")
    parser.add_argument("--steps", type=float, default=1.0, help="of the steps of the setting")
    parser.add_argument("--windows", type=int, default=512)
    parser.add_argument("--results", type=Path)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        made = text.pre_train(SETTING, args.sparsity, 0.004, 0, "cpu", folder, scale=args.scale, length=args.steps)
        data = Path(folder) / "text.npz"
        np.savez(data, input_ids=held_out(args.windows))
        report = sift_onnx.evaluate(
            made["file"], str(data), backend=list(BACKENDS.values()), metric=["perplexity", "top1"]
        )
    names = {backend: name for name, backend in BACKENDS.items()}
    for run in report.runs:
        row = {"name": names[run.backend], "sparsity": float(args.sparsity),
               "scale": args.scale * text.SETTINGS[SETTING].width} | run.metrics  # fmt: skip
        print(row, flush=True)
        rows.append(row)
    if args.results is not None:
        args.results.parent.mkdir(exist_ok=True)
        pages.write(args.results, rows)


if __name__ == "__main__":
    main()
