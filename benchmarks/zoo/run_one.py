"""Widen one exported file at several sparsities and check the results; ``run.py`` runs this in a process of its own.

One JSON document a line on the standard output: the first describes the file, the others one sparsity each.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from sift_onnx.analysis.cost import inspect
from sift_onnx.analysis.graph_analysis import analyze
from sift_onnx.model import Model
from sift_onnx.passes import Wide
from sift_onnx.shapes.random_inputs import Feeds, random_feeds
from sift_onnx.shapes.tensor_specs import graph_inputs

__all__ = ["main"]

# Weight MACs may differ from the original's by this share.
MAC_TOLERANCE = 1e-3
_STUB_FROM = 1024

Shapes = dict[str, tuple[int, ...]]


class CheckFailedError(Exception):
    """A result is not as it should be."""


def first_line(error: BaseException) -> str:
    """What went wrong; of a defect also where."""
    text = (str(error).strip() or "-").splitlines()[0]
    inside = [f for f in traceback.extract_tb(error.__traceback__) if "sift_onnx" in f.filename]
    where = f" ({Path(inside[-1].filename).name}:{inside[-1].lineno})" if inside else ""
    ours = type(error).__module__.startswith("sift_onnx") or isinstance(error, CheckFailedError)
    return f"{type(error).__name__}{'' if ours else where}: {text}"


def run(path: Path, feeds: Sequence[Feeds]) -> list[list[tuple[int, ...]]]:
    """Shapes of all outputs in onnxruntime, per set of inputs.

    Raises:
        CheckFailedError: a value is not finite.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    shapes: list[list[tuple[int, ...]]] = []
    for inputs in feeds:
        outputs = session.run(None, inputs)
        for value, array in zip(session.get_outputs(), outputs, strict=True):
            if not np.isfinite(array).all():
                raise CheckFailedError(f"output {value.name!r} is not finite")
        shapes.append([array.shape for array in outputs])
    return shapes


def infer_strictly(path: Path) -> None:
    """Strict shape inference; the data of large tensors, which it does not need, is left out for speed."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.ByteSize() >= _STUB_FROM:
            stub = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            stub.data_location = onnx.TensorProto.EXTERNAL
            stub.external_data.add(key="location", value="left-out")
            tensor.CopyFrom(stub)
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)


def describe(report: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a transform's report that the table needs."""
    totals, layers = report["totals"], report["layers"]
    sparse = sum(layer["macs_before"] for layer in layers if layer["status"] == "sparse")
    attention = totals["attention_macs_before"]
    return {
        "layers": dict(Counter(layer["status"] for layer in layers)),
        "sparse_share": sparse / totals["weight_macs_before"],
        "attention_ratio": totals["attention_macs_after"] / attention if attention else None,
        "pinned": [
            {key: entry[key] for key in ("size", "node", "op", "reason")} | {"layers": len(entry["layers"])}
            for entry in report["pinned"]
            if entry["op"] not in ("input", "output")
        ],
    }


def check(target: Path, original_macs: int, feeds: Sequence[Feeds], expected: Any, shapes: Shapes) -> dict[str, float]:
    """Check a transformed file.

    Returns:
        As multiples of the original's weight MACs, its own (``mac_ratio``), and those that it would have without masks
        (``growth``): 1 / (1 - s) where every layer widened on both sides.

    Raises:
        CheckFailedError: it is not as it should be; onnx and onnxruntime raise their own errors.
    """
    onnx.checker.check_model(str(target), full_check=True)
    infer_strictly(target)
    found = run(target, feeds)
    if found != expected:
        raise CheckFailedError(f"output shapes are {found}, in the original {expected}")
    layers = inspect(target, shapes).layers
    ratio = sum(layer.effective_macs for layer in layers) / original_macs
    if abs(ratio - 1) > MAC_TOLERANCE:
        raise CheckFailedError(f"weight MACs are {ratio:.5f} of the original's")
    return {"mac_ratio": ratio, "growth": sum(layer.macs for layer in layers) / original_macs}


def widen(model: Model, target: Path, sparsity: str, budget: Any, shapes: Shapes, verify: Any) -> dict[str, Any]:
    """Widen and check at one sparsity; the document on it."""
    document: dict[str, Any] = {"sparsity": sparsity, "budget": budget}
    stage = "transform"
    try:
        start = time.perf_counter()
        result = Wide(sparsity, budget=budget, input_shapes=shapes)(model)
        document |= {"transform_seconds": round(time.perf_counter() - start, 2)} | describe(result.report)
        stage = "save"
        result.model.save(target, force=True)
        del result
        stage = "check"
        document |= verify(target)
    except Exception as error:  # every failure is a finding
        return document | {"ok": False, "stage": stage, "error": first_line(error)}
    finally:
        target.unlink(missing_ok=True)
    return document | {"ok": True}


def main() -> None:
    """Widen one file and check the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("scratch", type=Path, help="folder for transformed files")
    parser.add_argument("shapes", type=json.loads, help="JSON: input name -> shapes to run with, the first to analyse")
    parser.add_argument("sparsity", nargs="+")
    parser.add_argument("--budget", default="model")
    given = parser.parse_args()
    logging.disable(logging.WARNING)

    model = Model.load(given.file)
    inputs = graph_inputs(model.origin)
    names = [spec.name for spec in inputs]
    runs = [dict(zip(names, shapes, strict=True)) for shapes in zip(*(given.shapes[n] for n in names), strict=True)]
    bound = {name: tuple(shape) for name, shape in runs[0].items()}
    document: dict[str, Any] = {"nodes": len(model.origin.graph.node)}
    try:
        feeds = [random_feeds(inputs, input_shapes=shapes) for shapes in runs]
        expected = run(given.file, feeds[:1])
        try:
            expected += run(given.file, feeds[1:])
        except Exception as error:  # an export that is not as dynamic as it says is no failure of the transform
            document["original_error"] = first_line(error)
            del feeds[1:]
        start = time.perf_counter()
        analysis = analyze(model, bound)
        document["analysis_seconds"] = round(time.perf_counter() - start, 2)
        document["unknown"] = dict(Counter(f"{n.domain}::{n.op}" if n.domain else n.op for n in analysis.unknown))
        macs = sum(layer.macs for layer in inspect(model, bound).layers)
    except Exception as error:  # every failure is a finding
        print(json.dumps(document | {"error": first_line(error)}), flush=True)
        return
    print(json.dumps(document), flush=True)

    def verify(target: Path) -> dict[str, float]:
        return check(target, macs, feeds, expected, bound)

    target = given.scratch / "wide.onnx"
    for sparsity in given.sparsity:
        print(json.dumps(widen(model, target, sparsity, given.budget, bound, verify)), flush=True)


if __name__ == "__main__":
    main()
