"""Functions that make another model of a model: prune, densify and quantize."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from msgspec.structs import replace

from sift_onnx.datasets.parts import DataLike
from sift_onnx.model import Model, ModelLike, Storage
from sift_onnx.passes import Densify, Prune
from sift_onnx.passes.base import Pass
from sift_onnx.passes.prune import Method
from sift_onnx.quantization.quantize import Activations, Calibration, Format, quantize_model
from sift_onnx.records.quantization import QuantizationReport
from sift_onnx.records.reading import read_record
from sift_onnx.records.record import Record
from sift_onnx.records.transform import TransformReport
from sift_onnx.sparsity.budget import Distribution

__all__ = ["Rewritten", "densify", "prune", "quantize"]

Report = TypeVar("Report", bound=Record)


@dataclass(frozen=True)
class Rewritten(Generic[Report]):
    """A new model, and what was done. It prints as the table of the command line.

    Attributes:
        model: the new model; the one that was given is not changed.
        report: what the verb reports.
    """

    model: Model
    report: Report

    def save(self, path: str | Path, *, storage: Storage = "dense", force: bool = False) -> None:
        """Write the model; see :meth:`sift_onnx.Model.save`."""
        self.model.save(path, storage=storage, force=force)

    def __str__(self) -> str:
        return str(self.report)

    def __repr__(self) -> str:
        return f"Rewritten(model={self.model!r}, report={self.report!r})"

    def _repr_html_(self) -> str | None:
        return self.report._repr_html_()


def prune(
    model: ModelLike,
    sparsity: float | str,
    *,
    method: Method = "magnitude",
    pattern: str = "unstructured",
    distribution: Distribution = "uniform",
    only: Sequence[str] = (),
    keep_dense: Sequence[str] = (),
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
) -> Rewritten[TransformReport]:
    """Mask a share of the weights of a model as it is.

    Args:
        model: a path, or anything that :func:`sift_onnx.load` takes.
        sparsity: share of the weights to leave out, 0 <= sparsity < 1.
        method: which weights stay: the largest of each layer, or random ones.
        pattern: ``unstructured``, ``N:M``, ``N:M-transposable`` or ``block:RxC``: R outputs by C inputs.
        distribution: how layers share the non-zeros, ``uniform`` or ``erk``.
        only: globs over initializer names: only these weights become sparse.
        keep_dense: globs: weights that stay dense besides the first and the last layers.
        input_shapes: shapes of inputs with dynamic axes.
        seed: of random draws.

    Raises:
        UsageError: a setting is out of its range, or a glob matches nothing.
        UnsupportedError: there is nothing to prune.
    """
    made = Prune(
        sparsity,
        method=method,
        pattern=pattern,
        distribution=distribution,
        only=tuple(only),
        keep_dense=tuple(keep_dense),
        input_shapes=dict(input_shapes or {}),
        seed=seed,
    )
    return _applied(made, model)


def densify(model: ModelLike, *, input_shapes: Mapping[str, Sequence[int]] | None = None) -> Rewritten[TransformReport]:
    """Drop the masks of a model, for dense fine-tuning; no value changes.

    Args:
        model: a path, or anything that :func:`sift_onnx.load` takes.
        input_shapes: shapes of inputs with dynamic axes.
    """
    return _applied(Densify(input_shapes=dict(input_shapes or {})), model)


def _applied(made: Pass, model: ModelLike) -> Rewritten[TransformReport]:
    start = time.perf_counter()
    loaded = Model.load(model)
    result = made(loaded)
    report = read_record(dict(result.report), TransformReport, "the report of the pass")
    name = None if loaded.path is None else str(loaded.path)
    return Rewritten(result.model, replace(report, model=name, seconds=time.perf_counter() - start))


def quantize(
    model: ModelLike,
    data: DataLike | None = None,
    *,
    format: Format = "qdq",
    dynamic: bool = False,
    per_channel: bool = True,
    activations: Activations = "uint8",
    calibration: Calibration = "minmax",
    samples: int = 256,
    reduce_range: bool = False,
    keep_float: Sequence[str] = (),
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    normalize: str | None = None,
    evaluate: bool = True,
    backend: str = "cpu",
    threads: int | None = None,
    seed: int = 0,
) -> Rewritten[QuantizationReport]:
    """Quantize a model by onnxruntime's quantizers, with its masks; see :func:`~sift_onnx.quantization.quantize_model`.

    Args:
        model: a path, or anything that :func:`sift_onnx.load` takes.
        data: ``FILE.npz``, a folder of images, ``hf:NAME``, ``FILE.py:FUNCTION``, or an iterable of batches. Only
            ``dynamic`` does without.
        format: ``qdq`` or ``qoperator``.
        dynamic: ranges of activations are found at run time.
        per_channel: a scale for each output feature of a weight.
        activations: ``uint8``, or ``int8`` with zero points of 0.
        calibration: ``minmax``, ``entropy`` or ``percentile``.
        samples: examples to calibrate with.
        reduce_range: weights of 7 bits, for x86 processors without VNNI.
        keep_float: globs over the names of weights that stay in floating point.
        input_shapes: shapes of some inputs by name, where layers have no size without them.
        normalize: of images: ``imagenet``, or ``MEAN/STD``.
        evaluate: whether to measure the accuracy before and after, on held-out data.
        backend: to evaluate on.
        threads: of that back end.
        seed: of the draw of examples.

    Raises:
        SiftError: data and model do not fit each other, there is nothing to quantize, or the quantizer fails.
    """
    found = quantize_model(
        model,
        data,
        format=format,
        dynamic=dynamic,
        per_channel=per_channel,
        activations=activations,
        calibration=calibration,
        samples=samples,
        reduce_range=reduce_range,
        keep_float=keep_float,
        input_shapes=input_shapes,
        normalize=normalize,
        measure=evaluate,
        backend=backend,
        threads=threads,
        seed=seed,
    )
    return Rewritten(found.model, found.report)
