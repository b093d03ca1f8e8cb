"""``transform``: makes passes from settings or a recipe, applies them, and returns the same kind of model."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, overload

import onnx_graphsurgeon as gs

from sift_onnx.errors import MaskWarning, SiftError, UsageError
from sift_onnx.model import Model, ModelLike, OtherModel, as_kind_of
from sift_onnx.passes.base import Pass, PassResult, came_of, get_pass, history
from sift_onnx.passes.declared_settings import declared_settings, make
from sift_onnx.passes.prepare.inference_mode import on_inference_graph
from sift_onnx.passes.wide import Wide
from sift_onnx.passes.widening.report import dropped_masks
from sift_onnx.recipe import Recipe, Step

__all__ = ["make_pass", "recipe_of", "run_recipe", "transform"]

# Totals of a recipe that are those of its first pass.
_BEFORE = ("weight_macs_before", "attention_macs_before", "nnz_before")
# Keys of a report about sizes that were assumed, since they were not given.
_ASSUMED = ("nominal", "assumed")


@overload
def transform(
    model: str | Path | Model,
    *,
    wide: float | str | None = None,
    parallel: float | str | None = None,
    factorized: float | str | None = None,
    doped: float | str | None = None,
    recipe: Recipe | Mapping[str, Any] | str | Path | None = None,
    **options: Any,
) -> Model: ...
@overload
def transform(
    model: OtherModel,
    *,
    wide: float | str | None = None,
    parallel: float | str | None = None,
    factorized: float | str | None = None,
    doped: float | str | None = None,
    recipe: Recipe | Mapping[str, Any] | str | Path | None = None,
    **options: Any,
) -> OtherModel: ...
@overload
def transform(
    model: gs.Graph,
    *,
    wide: float | str | None = None,
    parallel: float | str | None = None,
    factorized: float | str | None = None,
    doped: float | str | None = None,
    recipe: Recipe | Mapping[str, Any] | str | Path | None = None,
    **options: Any,
) -> gs.Graph: ...
def transform(
    model: ModelLike,
    *,
    wide: float | str | None = None,
    parallel: float | str | None = None,
    factorized: float | str | None = None,
    doped: float | str | None = None,
    recipe: Recipe | Mapping[str, Any] | str | Path | None = None,
    **options: Any,
) -> Any:
    """Make a model bigger and sparser at the same FLOPs.

    Args:
        model: a path, a Model, an ``onnx.ModelProto``, an ``onnx_graphsurgeon.Graph`` or an ``onnx_ir.Model``; it is
            not changed.
        wide: sparsity of a Sparse Wide transform.
        parallel: sparsity of a Sparse Parallel transform.
        factorized: sparsity of a Sparse Factorized transform.
        doped: sparsity of a Sparse Doped transform.
        recipe: several passes, as a :class:`~sift_onnx.recipe.Recipe`, a mapping with its keys, or the path of one.
            One of these is given.
        **options: of the pass, see its class in :mod:`sift_onnx.passes`; a recipe has them in itself, but for
            ``input_shapes``.

    Returns:
        The same kind as ``model``; a :class:`~sift_onnx.model.Model` for a path. It is for inference, whatever the
        model was exported for (:class:`~sift_onnx.passes.InferenceMode`).

    Raises:
        UsageError: not exactly one transform was named, or an option is unknown or out of its range.
        SiftError: see the pass.
    """
    named = {"wide": wide, "parallel": parallel, "factorized": factorized, "doped": doped, "recipe": recipe}
    given = {name: value for name, value in named.items() if value is not None}
    if len(given) != 1:
        raise UsageError("name exactly one transform and its sparsity, e.g. transform(model, wide=0.9)")
    (name, value), *_ = given.items()
    loaded = Model.load(model)
    if name != "recipe":
        result = make_pass(Step(name, {"sparsity": value, **options}))(loaded)
    else:
        shapes = options.pop("input_shapes", None)
        if options:
            raise UsageError(f"transform: a recipe has its options in itself; drop {', '.join(options)}")
        result = run_recipe(loaded, _recipe(value), shapes)
    for text in dropped_masks(result.report.get("masks_dropped", [])):
        warnings.warn(text, MaskWarning, stacklevel=2)
    return as_kind_of(model, result.model)


def _recipe(given: Any) -> Recipe:
    if isinstance(given, Recipe):
        return given
    return Recipe.of(given) if isinstance(given, Mapping) else Recipe.load(str(given))


def make_pass(step: Step) -> Pass:
    """The pass of a step.

    Raises:
        UsageError: there is no such pass, or a setting is unknown, missing, of the wrong type or out of its range.
    """
    return make(get_pass(step.name), step.settings)


def run_recipe(model: Model, recipe: Recipe, input_shapes: Mapping[str, Sequence[int]] | None = None) -> PassResult:
    """Apply the passes of a recipe, first to last.

    A recipe is idempotent as a pass is: on its own output, passes that are recorded in the model are skipped.

    Args:
        model: the input of the first pass, which gets it in inference mode.
        recipe: the passes.
        input_shapes: sizes of dynamic axes, for every pass with that setting, in place of its own.

    Returns:
        The output of the last pass, and a report with one entry for each pass under ``steps``. Its ``totals`` compare
        the input of the first pass with the output of the last one. Its ``layers`` are those that a pass changed, or
        all layers if no pass changed one.

    Raises:
        SiftError: what a pass raises, with its place in the recipe.
    """
    return on_inference_graph(lambda ready: _run(ready, recipe, input_shapes), model)


def _run(model: Model, recipe: Recipe, input_shapes: Mapping[str, Sequence[int]] | None) -> PassResult:
    start = time.perf_counter()
    if not recipe.steps and recipe.training is not None:
        raise UsageError(f"{recipe.source} has settings of a training and no 'passes'; it is for sift-onnx train")
    passes: list[tuple[str, Pass]] = []
    for i, step in enumerate(recipe.steps, 1):
        where = f"{recipe.source}, pass {i}, {step.name}"
        with _placed(where):
            takes_shapes = "input_shapes" in declared_settings(get_pass(step.name))
            given = {"input_shapes": dict(input_shapes)} if input_shapes and takes_shapes else {}
            passes.append((where, make_pass(Step(step.name, {**step.settings, **given}))))
    # Passes cannot decide one by one whether they were applied: a later one may have undone or replaced what an earlier
    # one did. A pass that records nothing is always applied. If it changes the model, all passes after it are applied
    # too, since they have not seen that model.
    noted = [settings for _, p in passes if (settings := p.settings()) is not None]
    done = len(passes) > 1 and came_of(model, noted)
    reports: list[dict[str, Any]] = []
    current, changed = model, False
    for where, pass_ in passes:
        if done and pass_.settings() is not None:
            continue
        with _placed(where):
            result = pass_(current)
        current, changed, done = result.model, changed or result.changed, done and not result.changed
        reports.append(dict(result.report))
    if not any("totals" in report for report in reports):
        reports.append(_untouched(current, input_shapes))
    return PassResult(current, changed, _combined(reports, time.perf_counter() - start))


@contextmanager
def _placed(where: str) -> Iterator[None]:
    """Prefix errors with the place in the recipe."""
    try:
        yield
    except SiftError as error:
        raise type(error)(f"{where}: {error}") from error


def _untouched(model: Model, input_shapes: Mapping[str, Sequence[int]] | None) -> dict[str, Any]:
    """A report of all layers as they are, for recipes whose passes count nothing."""
    report = dict(Wide(0, input_shapes=input_shapes)(model).report)
    return report | {"layers": [layer | {"reason": "the recipe changes no weight of it"} for layer in report["layers"]]}


def recipe_of(model: ModelLike) -> Recipe:
    """The recipe that repeats what was done to ``model``, empty if nothing was."""
    return Recipe.of_history(history(Model.load(model)))


def _combined(reports: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """The reports of all passes as one document of ``sift-onnx transform``."""
    counting = [report for report in reports if "totals" in report]
    totals: dict[str, Any] = {}
    for report in counting:
        known = {key: totals[key] for key in _BEFORE if key in totals}
        totals |= report["totals"] | known
    if totals["weight_macs_before"]:
        totals["weight_macs_ratio"] = totals["weight_macs_after"] / totals["weight_macs_before"]
    layers = [layer for report in counting for layer in report["layers"] if layer["status"] != "unchanged"]
    layers = layers or counting[-1]["layers"]
    return {
        "schema": 1,
        "pass": "recipe",
        "sparsity": max((report.get("sparsity", 0.0) for report in counting), default=0.0),
        "width_factor": max((report.get("width_factor", 1.0) for report in counting), default=1.0),
        "layers": layers,
        "totals": totals,
        "pinned": [entry for report in counting for entry in report.get("pinned", [])],
        "masks_dropped": list(dict.fromkeys(n for report in counting for n in report.get("masks_dropped", []))),
        "left_out": next((report["left_out"] for report in counting if "left_out" in report), []),
        "warnings": list(dict.fromkeys(text for report in counting for text in report.get("warnings", []))),
        **next(({key: report[key] for key in _ASSUMED} for report in counting if _ASSUMED[0] in report), {}),
        "unknown": next((report["unknown"] for report in counting if "unknown" in report), []),
        "steps": reports,
        "seconds": seconds,
    }
