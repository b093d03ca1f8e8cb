"""Runs models on data and says how good their outputs are."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

import numpy as np
import numpy.typing as npt
import onnx

from sift_onnx.backends.base import Backend, CompileOptions, Program, get_backend
from sift_onnx.datasets.parts import DataLike, read_part
from sift_onnx.errors import CheckError, UsageError
from sift_onnx.evaluation.metrics import METRICS, Metric, default_metrics, make_metric
from sift_onnx.evaluation.task import Task, task_of
from sift_onnx.model import Model
from sift_onnx.records.evaluation import EvaluationReport, EvaluationRun, MetricDifference
from sift_onnx.shapes.tensor_specs import TensorSpec, graph_inputs

__all__ = ["Evaluated", "evaluate"]

Evaluated = Union[str, "os.PathLike[str]", onnx.ModelProto, Model]
Progress = Callable[[int, "int | None"], None]


@dataclass
class _Entry:
    """A model on a back end, and its figures so far."""

    name: str
    is_baseline: bool
    backend: str
    program: Program
    metrics: dict[str, Metric]


def evaluate(
    model: Evaluated | Sequence[Evaluated] | Mapping[str, Evaluated],
    data: DataLike,
    *,
    backend: str | Sequence[str] = "cpu",
    metric: str | Sequence[str] = (),
    baseline: Evaluated | None = None,
    batch: int | None = None,
    threads: int | None = None,
    samples: int | None = None,
    normalize: str | None = None,
    seed: int = 0,
    progress: Progress = lambda done, total: None,
) -> EvaluationReport:
    """How good the outputs of a model are on data: accuracy, loss, perplexity, or a metric of your own.

    All models see the same examples, in one pass over the data. What is held out is evaluated on, and everything where
    nothing is.

    Args:
        model: a path, a ModelProto or a Model; or several, or a mapping from names to them.
        data: what ``sift-onnx train --data`` takes: ``FILE.npz``, a folder of images, ``hf:NAME`` or
            ``FILE.py:FUNCTION``; or an iterable of ``(inputs..., target)``.
        backend: ``cpu``, ``onnxruntime``, or ``FILE.py:CLASS``; or several.
        metric: of ``top1``, ``top5``, ``loss``, ``perplexity``, ``mse``, ``mae`` and ``FILE.py:NAME``
            (:func:`~sift_onnx.evaluation.metrics.make_metric`); those that suit the model if there are none.
        baseline: a model to compare with.
        batch: examples per run; the model's own, or a loader's, or 64, if it is None.
        threads: of the back ends; None for as many as the process may use.
        samples: at most as many examples.
        normalize: of images: ``imagenet``, or ``MEAN/STD``.
        seed: offered to a function that makes the data.
        progress: is called with the examples done, and how many there are where that is known.

    Raises:
        UsageError: data, metric and model do not fit each other.
        CheckError: an output has NaN, or a figure is not finite.
        BackendError: a back end refuses a model.
    """
    start = time.perf_counter()
    models = _named(model)
    backends = [backend] if isinstance(backend, str) else list(backend)
    names = [metric] if isinstance(metric, str) else list(metric)
    for name in names:
        if ".py:" not in name and name not in METRICS:
            make_metric(name, None)  # says which there are
    everything = [(name, own, False) for name, own in models]
    everything += [(*named, True) for named in _named(baseline)] if baseline is not None else []
    chosen: dict[str, Backend] = {name: get_backend(name) for name in dict.fromkeys(backends)}
    specs = _common_inputs([(name, own) for name, own, _ in everything])
    size = _run_size(specs, batch)
    part = read_part(data, specs, "validation", batch=size, samples=samples, normalize=normalize, seed=seed)
    entries: list[_Entry] = []
    task: Task | None = None
    examples = 0
    for own in part.batches:
        if not entries:
            size = size or own.size
            entries = _compiled(everything, chosen, CompileOptions(threads, size))
        run_size = max(size or 1, own.size)
        feeds = {spec.name: _filled(array, run_size) for spec, array in zip(specs, own.inputs, strict=True)}
        for entry in entries:
            outputs = _outputs(entry, feeds, own.size, run_size)
            if not entry.metrics:
                if task is None and not (names and all(".py:" in name for name in names)):
                    task = task_of(outputs[0], own)
                entry.metrics = _metrics(names, task, outputs[0])
            for each in entry.metrics.values():
                each.update(outputs, own)
        examples += own.size
        progress(examples, part.count)
    if not examples:
        raise UsageError(f"{part.label} has no examples")
    runs = tuple(
        EvaluationRun(
            model=entry.name,
            baseline=entry.is_baseline,
            backend=entry.backend,
            threads=entry.program.threads,
            metrics=_figures(entry),
        )
        for entry in entries
    )
    return EvaluationReport(
        data=part.label,
        task=task or "custom",
        examples=examples,
        batch=size or 1,
        runs=runs,
        differences=_differences(runs),
        seconds=time.perf_counter() - start,
    )


def _named(model: Evaluated | Sequence[Evaluated] | Mapping[str, Evaluated]) -> list[tuple[str, Evaluated]]:
    if isinstance(model, Mapping):
        return list(model.items())
    models = [model] if isinstance(model, (str, os.PathLike, onnx.ModelProto, Model)) else list(model)
    return [(_name_of(own), own) for own in models]


def _common_inputs(models: Sequence[tuple[str, Evaluated]]) -> tuple[TensorSpec, ...]:
    """The inputs of the first model; the others must take the same names, sizes and types."""
    first, *others = [graph_inputs(Model.load(model).origin) for _, model in models]
    if not first:
        raise UsageError("the model has no input; there is nothing to evaluate it on")
    for (name, _), specs in zip(models[1:], others, strict=True):
        if [(s.name, s.dtype) for s in specs] != [(s.name, s.dtype) for s in first]:
            listed = [", ".join(f"{s.name} ({s.dtype})" for s in each) for each in (first, specs)]
            raise UsageError(f"{models[0][0]} takes {listed[0]}, and {name} takes {listed[1]}")
    # A model that fixes the batch decides for all.
    fixed = next((specs for specs in (first, *others) if _fixed_batch(specs) is not None), None)
    return fixed or first


def _fixed_batch(specs: Sequence[TensorSpec]) -> int | None:
    extents = specs[0].extents
    return extents[0] if extents and isinstance(extents[0], int) else None


def _run_size(specs: Sequence[TensorSpec], batch: int | None) -> int | None:
    fixed = _fixed_batch(specs)
    if batch is not None and fixed is not None and batch != fixed:
        raise UsageError(f"the model fixes a batch of {fixed}; drop `batch={batch}`")
    return fixed or batch


def _compiled(
    models: Sequence[tuple[str, Evaluated, bool]], backends: Mapping[str, Backend], options: CompileOptions
) -> list[_Entry]:
    return [
        _Entry(label, is_baseline, name, backend.compile(_source(model), options), {})
        for label, model, is_baseline in models
        for name, backend in backends.items()
    ]


def _source(model: Evaluated) -> str | onnx.ModelProto:
    if isinstance(model, Model):
        return model.to_proto()
    return model if isinstance(model, onnx.ModelProto) else os.fspath(model)


def _name_of(model: Evaluated) -> str:
    if isinstance(model, (Model, onnx.ModelProto)):
        path = model.path if isinstance(model, Model) else None
        return str(path or "the model")
    return str(Path(model))


def _metrics(names: Sequence[str], task: Task | None, output: npt.NDArray[Any]) -> dict[str, Metric]:
    if not names and task is not None:
        names = default_metrics(task, output.shape[1] if output.ndim > 1 else 1)
    return {name: make_metric(name, task) for name in names}


def _filled(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """A batch of ``size`` examples, the last one repeated where there are fewer: programs are made for one size."""
    missing = size - len(array)
    return array if missing <= 0 else np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])


def _outputs(entry: _Entry, feeds: Mapping[str, npt.NDArray[Any]], examples: int, size: int) -> list[npt.NDArray[Any]]:
    """The outputs for the examples of a batch, without those that fill it up."""
    found = entry.program.run(feeds)
    outputs = []
    for name, array in found.items():
        own = array[:examples] if array.ndim and len(array) == size else array
        if own.dtype.kind == "f" and np.isnan(own).any():
            raise CheckError(f"{entry.name} on {entry.backend}: output {name!r} has NaN; see sift-onnx check")
        outputs.append(own)
    return outputs


def _figures(entry: _Entry) -> dict[str, float]:
    figures = {name: each.compute() for name, each in entry.metrics.items()}
    for name, value in figures.items():
        if not math.isfinite(value):
            raise CheckError(f"{entry.name} on {entry.backend}: {name} is {value}; see sift-onnx check")
    return figures


def _differences(runs: Sequence[EvaluationRun]) -> tuple[MetricDifference, ...]:
    return tuple(
        MetricDifference(
            model=run.model,
            baseline=base.model,
            backend=run.backend,
            metric=name,
            difference=value - base.metrics[name],
        )
        for run in runs
        for base in runs
        if base.baseline and not run.baseline and base.backend == run.backend
        for name, value in run.metrics.items()
    )
