"""Functions that look at models: check, benchmark, profile and inspect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral

from msgspec.structs import replace

from sift_onnx.analysis.cost import inspect
from sift_onnx.api.verb_call import call_verb, files_of, names_of
from sift_onnx.backends.dataflow.simulation.model_simulation import simulate
from sift_onnx.errors import UsageError
from sift_onnx.evaluation.evaluate import evaluate
from sift_onnx.model import ModelLike
from sift_onnx.records.benchmark import BenchmarkReport
from sift_onnx.records.check import CheckReport
from sift_onnx.records.profile import ProfileReport

__all__ = ["benchmark", "check", "evaluate", "inspect", "profile", "simulate"]

Shapes = Mapping[str, Sequence[int]]


def check(
    model: ModelLike,
    reference: ModelLike | None = None,
    *,
    atol: float = 1e-4,
    rtol: float = 1e-3,
    input_shapes: Shapes | None = None,
    seed: int = 0,
) -> CheckReport:
    """Whether a model is sound, and computes what another does.

    Args:
        model: a path, or anything that :func:`sift_onnx.load` takes.
        reference: a model whose outputs should be the same on the same random inputs.
        atol: outputs may differ by ``atol + rtol * abs(reference)``.
        rtol: see ``atol``.
        input_shapes: shapes of inputs with dynamic axes.
        seed: of the inputs.

    Returns:
        ``ok``, and what each check found. A check that fails is not an error.

    Raises:
        UsageError: a file cannot be read, or a shape is missing.
    """
    options = {"atol": atol, "rtol": rtol, "input_shapes": input_shapes, "seed": seed}
    models = [model] if reference is None else [model, reference]
    with files_of(models) as paths:
        found = call_verb("check", CheckReport, paths, options)
    name, *other = names_of(models, paths).values()
    return replace(found, model=name, reference=other[0] if other else None)


def benchmark(
    models: ModelLike | Sequence[ModelLike],
    *,
    backend: str | Sequence[str] = ("cpu", "onnxruntime"),
    baseline: ModelLike | None = None,
    batch: int | Sequence[int] | None = None,
    threads: int | None = None,
    seconds: float = 3.0,
    warmup: float = 0.5,
    input_shapes: Shapes | None = None,
    seed: int = 0,
) -> BenchmarkReport:
    """How fast models run on back ends, in turns, and how they compare with a baseline.

    Args:
        models: a model, or several.
        backend: ``cpu``, ``onnxruntime``, ``dataflow[:PRESET]`` (simulated), or ``FILE.py:CLASS``; or several.
        baseline: a model to compare with, on the same back ends.
        batch: sizes of the batch; the models' own, or 1, if it is None.
        threads: None for as many as this process may use.
        seconds: to measure each run for.
        warmup: seconds to run each for before.
        input_shapes: shapes of inputs with dynamic axes.
        seed: of the random inputs.

    Returns:
        Times in milliseconds, and ratios of paired slices; above 1 the first of a ratio is the slower one.

    Raises:
        UsageError: a batch or a shape does not fit a model.
        BackendError: a back end is not installed, or refuses a model.
    """
    batches = None if batch is None else [batch] if isinstance(batch, Integral) else batch
    if isinstance(batches, (str, bytes)) or not (batches is None or isinstance(batches, Iterable)):
        raise UsageError(f"batch is {batch!r}; pass a whole number, or several in a list")
    single = isinstance(models, (bytes, str)) or not isinstance(models, Sequence)
    given: list[ModelLike] = [models] if single else list(models)  # type: ignore[arg-type]
    options = {
        "backend": backend,
        "batch": None if batches is None else ",".join(map(str, batches)),
        "threads": threads,
        "seconds": seconds,
        "warmup": warmup,
        "input_shapes": input_shapes,
        "seed": seed,
    }
    models_read = given if baseline is None else [*given, baseline]
    with files_of(models_read) as paths:
        compared = {} if baseline is None else {"baseline": paths[-1]}
        found = call_verb("benchmark", BenchmarkReport, paths[: len(given)], options | compared)
    names = names_of(models_read, paths)
    return replace(found, runs=tuple(replace(run, model=names[run.model]) for run in found.runs))


def profile(
    model: ModelLike,
    *,
    backend: str = "cpu",
    batch: int | None = None,
    threads: int | None = None,
    input_shapes: Shapes | None = None,
    seed: int = 0,
) -> ProfileReport:
    """How long each node of a model takes, which kernel runs it, and why it is there.

    Args:
        model: a path, or anything that :func:`sift_onnx.load` takes.
        backend: ``cpu``, ``onnxruntime``, or ``FILE.py:CLASS``.
        batch: size of the batch; the model's own, or 1, if it is None.
        threads: None for as many as this process may use.
        input_shapes: shapes of inputs with dynamic axes.
        seed: of the random inputs.

    Returns:
        ``nodes`` with their times in milliseconds, and ``placements`` with reasons.

    Raises:
        UsageError: a batch or a shape does not fit the model.
        BackendError: the back end is not installed, or refuses the model.
    """
    options = {"backend": backend, "batch": batch, "threads": threads, "input_shapes": input_shapes, "seed": seed}
    with files_of([model]) as paths:
        found = call_verb("profile", ProfileReport, paths, options)
    return replace(found, model=names_of([model], paths)[found.model])
