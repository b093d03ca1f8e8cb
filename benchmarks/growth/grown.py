"""Grow one model file with the original in it, and compare the result with the original."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from verdicts import NOTABLE

from sift_onnx.analysis.cost import inspect
from sift_onnx.errors import UnsupportedError
from sift_onnx.model import Model
from sift_onnx.passes import Wide
from sift_onnx.shapes.random_inputs import Feeds

__all__ = ["Outputs", "grow", "run"]

Outputs = Sequence[npt.NDArray[Any]]
Shapes = Mapping[str, Sequence[int]]


def grow(path: Path, feeds: Sequence[Feeds], sparsity: str, scratch: Path) -> dict[str, Any]:
    """Grow a file and check what comes out.

    Args:
        path: the original.
        feeds: sets of inputs.
        sparsity: as of `--wide`.
        scratch: where the grown model is written.

    Returns:
        ``error``, the largest relative difference of an output in onnxruntime.
        ``moves``, the same between the original and itself on inputs that are moved by one element.
        ``rounding`` and ``rounding_grown``, where the error is notable: how far the outputs of the original, and of
        the grown model, are from those of the original in double precision.
        ``error64``, the error where both are in double precision.
        ``growth``, the multiply-accumulates without masks as a multiple of the original's.
        ``share`` of those of learned weights in layers that grew.
        ``kept``, what keeps its width and why. In place of all this ``refused`` or ``defect``, and why.
    """
    start = time.perf_counter()
    row: dict[str, Any] = {"sparsity": sparsity}
    shapes = {name: tuple(array.shape) for name, array in feeds[0].items()}
    try:
        original = Model.load(path)
        result = Wide(sparsity, init="embed", input_shapes=shapes)(original)
        result.model.save(scratch, force=True)
        row |= _costs(path, scratch, shapes, result.report)
        before, after = [run(path, f) for f in feeds], [run(scratch, f) for f in feeds]
        row["error"] = _largest(before, after)
        row["moves"] = _largest(before, [run(path, _moved(f)) for f in feeds])
        if not row["error"] <= NOTABLE:
            exact = [_run_double(path, f) for f in feeds]
            row["rounding"], row["rounding_grown"] = _largest(exact, before), _largest(exact, after)
            row["error64"] = _largest(exact, [_run_double(scratch, f) for f in feeds])
    except UnsupportedError as error:
        row["refused"] = (str(error).strip() or "-").splitlines()[0]
    except Exception as error:  # every other failure is a finding
        inside = traceback.extract_tb(error.__traceback__)[-1]
        row["defect"] = f"{type(error).__name__} ({Path(inside.filename).name}:{inside.lineno}): {str(error)[:300]}"
    return row | {"seconds": round(time.perf_counter() - start, 1)}


def run(path: Path, feeds: Feeds) -> Outputs:
    """All outputs in onnxruntime."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [np.asarray(output) for output in session.run(None, feeds)]


def _moved(feeds: Feeds) -> Feeds:
    """The inputs, moved by one element along the last axis that has several."""
    axes = {name: [i for i, n in enumerate(array.shape) if n > 1] for name, array in feeds.items()}
    return {name: np.roll(array, 1, axis=axes[name][-1]) if axes[name] else array for name, array in feeds.items()}


def _run_double(path: Path, feeds: Feeds) -> Outputs:
    """All outputs in double precision; onnxruntime has no convolution of that, torch does."""
    import torch

    from sift_onnx.training import to_torch

    module = to_torch(path).double().eval()
    inputs = {n: torch.from_numpy(a.astype(np.float64) if a.dtype.kind == "f" else a) for n, a in feeds.items()}
    with torch.no_grad():
        outputs = module(**inputs)
    return [output.numpy() for output in (outputs if isinstance(outputs, tuple | list) else [outputs])]


def _largest(expected: Sequence[Outputs], found: Sequence[Outputs]) -> float:
    return max(map(_difference, expected, found))


def _difference(expected: Outputs, found: Outputs) -> float:
    """The largest difference of an output, relative to its largest element; infinite where shapes differ."""
    worst = 0.0
    for a, b in zip(expected, found, strict=True):
        if a.shape != b.shape:
            return float("inf")
        if a.dtype.kind != "f":
            worst = max(worst, float((a != b).any()))
        elif a.size:
            difference = np.abs(a.astype(np.float64) - b.astype(np.float64))
            worst = max(worst, float(np.nan_to_num(difference.max(), nan=np.inf) / max(np.abs(a).max(), 1e-30)))
    return worst


def _costs(path: Path, grown: Path, shapes: Shapes, report: Mapping[str, Any]) -> dict[str, Any]:
    """Multiply-accumulates as the grown file itself has them, and what its report says of widths."""
    before, after = inspect(path, shapes).layers, inspect(grown, shapes).layers
    macs = sum(layer.macs for layer in before)
    learned = [layer for layer in report["layers"] if not layer["reason"].startswith("a fixed function")]
    grew = sum(layer["macs_before"] for layer in learned if layer["status"] == "sparse")
    kept = {
        f"{entry['node']} ({entry['op']}) {entry['reason'].split(': it ', 1)[-1]}"
        for entry in report["pinned"]
        if entry["reason"].startswith("with the original in it")
    }
    return {
        "macs": macs,
        # A weight that is zero and not masked costs as much as any other, as it did before.
        "macs_after": sum(layer.effective_macs if layer.search_space else layer.macs for layer in after),
        "growth": round(sum(layer.macs for layer in after) / macs, 3),
        "share": round(grew / max(1, sum(layer["macs_before"] for layer in learned)), 4),
        "centred": len(report["centred"] or ()),
        "kept": sorted(kept),
    }
