"""README.md of this folder, from results/*.json.

python benchmarks/decode/page.py
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pages

__all__ = ["page"]

PAGE = Path(__file__).with_name("README.md")
RESULTS = Path(__file__).parent / "results"
_INTRODUCTION = """\
# Weights as they come from memory

One row of activations through a chain of {layers} products of {width} x {width} with ReLU, {gigabytes:.1f} GB of
weights as dense floats, {threads} threads; all ways to run a file in turns in one process.

"""
_READING = """
Times are the least of the turns, in milliseconds; ratios are to onnxruntime on the same file, whose weights are dense
floats. *Read* is the share of a plain loop: it reads as many bytes as our weights hold, on the same threads, in turns
with them. Weights of 8 and 4 bits in onnxruntime are MatMulNBits in blocks of 32, dense. What is smaller than the
last-level cache of the machine may stay in it, for the loop as for the products.

## Repeat it

    python benchmarks/decode/decode_bytes.py --layers 8 --results benchmarks/decode/results/PROCESSOR.json
    python benchmarks/decode/page.py
"""


def page(documents: Sequence[Mapping[str, Any]]) -> str:
    """The page."""
    first = documents[0]["rows"][0]
    gigabytes = 4e-9 * first["layers"] * first["width"] ** 2
    text = _INTRODUCTION.format(**first, gigabytes=gigabytes)
    for document in documents:
        text += f"{pages.measured_on(document)} {document.get('note', '')}".rstrip() + "\n\n"
        rows = {(row["sparsity"], row["name"]): row for row in document["rows"]}
        cells = []
        for (sparsity, name), row in rows.items():
            if name.endswith("read"):
                continue
            ms = row["least_ms"]
            ratio = ms / rows[sparsity, "onnxruntime"]["least_ms"]
            gigabytes_held = rate = share = ""
            if "bytes" in row:
                gigabytes_held = f"{1e-9 * row['bytes']:.2f}"
                rate = f"{1e-6 * row['bytes'] / ms:.1f}"
                share = f"{rows[sparsity, f'{name}, read']['least_ms'] / ms:.0%}"
            cells.append([f"{sparsity:.0%}", name, gigabytes_held, f"{ms:.2f}", f"{ratio:.2f}", rate, share])
        text += pages.table(("sparsity", "weights", "GB", "ms", "to onnxruntime", "GB/s", "read"), cells) + "\n"
    return text.rstrip("\n") + "\n" + _READING


def main() -> None:
    """Write the page."""
    PAGE.write_text(page([pages.read(path) for path in sorted(RESULTS.glob("*.json"))]), encoding="utf-8")


if __name__ == "__main__":
    main()
