"""README.md of this folder, from results/networks/*.json and results/trained.json.

python benchmarks/quantized/page.py
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
TRAINED = Path(__file__).parent / "results" / "trained.json"
NETWORKS = Path(__file__).parent / "results" / "networks"
_OTHERS = ("ours, fp32", "same file", "dense int8", "dense fp32", "DeepSparse")
_WAYS = ("dense fp32", "dense int8", "wide fp32", "wide int8")
_NETWORKS = """\
# Sparse int8

## Networks of random weights

Networks are quantized by onnxruntime's static quantizer to QDQ per channel (`qdq`), by its dynamic quantizer
(`dynamic`), or in the form of Neural Magic's exporter, which DeepSparse runs (`integers`). "Ours" is the sparse int8
file. It is compared with our runtime on the same pruned weights as floats, and with onnxruntime on the same file, on
the dense int8 original and on the dense floats, in turns in one process; and with DeepSparse 1.8.0 in a process of its
own.

"""
_READING = """
Times are medians in milliseconds. In brackets: our time over that of the column, the median over turns; below 1 ours is
faster. With one thread, times are processor time. At 0 %, the file is the dense original, which runs in onnxruntime.

    python benchmarks/quantized/networks.py resnet50 --sparsity 0.85 --block --results RESULTS
    python benchmarks/quantized/networks.py yolov8n --sparsity 0.65 --results RESULTS
    python benchmarks/quantized/page.py

where RESULTS is `benchmarks/quantized/results/networks/PROCESSOR.json`.
"""
_TRAINED = """
## A trained network

ResNet-18 with the stem for small images, at {width:g} of its width, and its Sparse Wide form at the same
multiply-accumulates, with 75 % of the weights pruned in blocks of four input features. Both are trained on {images}
({length}, of 128 images), quantized and evaluated by the commands of
[docs/quantization.md](../../docs/quantization.md). In the wide model, {quads:.0%} of the quads are live. Dense models
run in onnxruntime, wide models in sift-onnx.

"""
_AGAIN = """
    python benchmarks/quantized/trained.py --data FOLDER --results benchmarks/quantized/results/trained.json
    python benchmarks/quantized/page.py
"""


def networks(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table of networks."""
    cells = []
    for row in rows:
        others = []
        for way in _OTHERS:
            known = way in row["ms"]
            others.append(f"{row['ms'][way][1]:.2f} ({row['ratio'][way]:.2f})" if known else "")
        named = [row["network"], row["pattern"], row["spelling"], str(row["batch"]), str(row["threads"])]
        cells.append([*named, f"{row['ms']['ours'][1]:.2f}", *others])
    return pages.table(("network", "pruned", "spelling", "batch", "threads", "ours", *_OTHERS), cells)


def trained(row: Mapping[str, Any]) -> str:
    """The tables of the trained network."""
    cells = []
    for way in _WAYS:
        figures = [f"{times['ms'][way][1]:.2f} ({times['ratio'][way]:.2f})" for times in row["times"]]
        cells.append([way, f"{row['accuracy'][way]:.2%}", *figures])
    heads = [f"ms, batch {times['batch']}" for times in row["times"]]
    text = _TRAINED.format(**row, quads=row["live_quads"]) + pages.table(("model", "top-1", *heads), cells)
    return text + "\nIn brackets: the time of the wide int8 model over that of the row.\n" + _AGAIN


def page(of_networks: Sequence[Mapping[str, Any]], of_training: Mapping[str, Any]) -> str:
    """The page."""
    measured = [f"{pages.measured_on(document)}\n\n{networks(document['rows'])}" for document in of_networks]
    text = _NETWORKS + "\n".join(measured) + _READING + trained(of_training["rows"][0])
    return text + "\n" + pages.measured_on(of_training) + "\n"


def main() -> None:
    """Write the page."""
    of_networks = [pages.read(path) for path in sorted(NETWORKS.glob("*.json"))]
    PAGE.write_text(page(of_networks, pages.read(TRAINED)), encoding="utf-8")


if __name__ == "__main__":
    main()
