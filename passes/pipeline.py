"""``transform``: from settings to passes, and back to the kind of model that came in."""

from __future__ import annotations

import time
from inspect import signature
from pathlib import Path
from typing import Any

from sift_onnx.errors import UsageError
from sift_onnx.model import Model, ModelLike, as_kind_of
from sift_onnx.passes.base import Pass, PassResult, get_pass, history
from sift_onnx.passes.doped import Doped
from sift_onnx.passes.factorized import Factorized
from sift_onnx.passes.parallel import Parallel
from sift_onnx.passes.wide import Wide
from sift_onnx.recipe import Recipe, Step

__all__ = ["FAMILIES", "recipe_of", "run_recipe", "transform"]

FAMILIES: dict[str, type[Pass]] = {"wide": Wide, "parallel": Parallel, "factorized": Factorized, "doped": Doped}


def transform(
    model: ModelLike,
    *,
    wide: float | str | None = None,
    parallel: float | str | None = None,
    factorized: float | str | None = None,
    doped: float | str | None = None,
    recipe: Recipe | str | Path | None = None,
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
        recipe: several passes, as a :class:`~sift_onnx.recipe.Recipe` or the path of one. One of these is given.
        **options: of the pass, see its class in :mod:`sift_onnx.passes`; a recipe has them in itself.

    Returns:
        The same kind as ``model``; a :class:`~sift_onnx.model.Model` for a path.

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
        result = make_pass(Step(name, {"sparsity": value, **options}), "transform")(loaded)
    elif options:
        raise UsageError(f"transform: a recipe has its options in itself; drop {', '.join(options)}")
    else:
        result = run_recipe(loaded, value if isinstance(value, Recipe) else Recipe.load(str(value)))
    return as_kind_of(model, result.model)


def make_pass(step: Step, where: str, **more: Any) -> Pass:
    """The pass of a step.

    Args:
        step: name and settings.
        where: what error messages say of its place.
        **more: arguments besides the settings.

    Raises:
        UsageError: there is no such pass, or a setting is unknown, missing or out of its range.
    """
    pass_class = get_pass(step.name)
    try:
        return pass_class(**step.settings, **more)
    except TypeError as error:
        reason = str(error).partition("__init__() ")[2] or str(error)
        raise UsageError(f"{where}, {step.name}: {reason}") from error


def run_recipe(model: Model, recipe: Recipe, input_shapes: dict[str, tuple[int, ...]] | None = None) -> PassResult:
    """Apply the passes of a recipe, first to last.

    Args:
        model: what the first pass gets.
        recipe: the passes.
        input_shapes: sizes of dynamic axes, for every pass that counts or infers.

    Returns:
        The last model, and a report with one entry for each pass under ``steps``; its ``totals`` go from the first
        pass's input to the last one's output, and its ``layers`` are those that a pass changed.
    """
    start = time.perf_counter()
    passes: list[Pass] = []
    for i, step in enumerate(recipe.steps, 1):
        takes_shapes = "input_shapes" in signature(get_pass(step.name).__init__).parameters
        more = {"input_shapes": input_shapes} if input_shapes and takes_shapes else {}
        passes.append(make_pass(step, f"pass {i} of the recipe", **more))
    reports: list[dict[str, Any]] = []
    current, changed = model, False
    for pass_ in passes:
        result = pass_(current)
        current, changed = result.model, changed or result.changed
        reports.append(dict(result.report))
    return PassResult(current, changed, _combined(reports, time.perf_counter() - start))


def recipe_of(model: ModelLike) -> Recipe:
    """The recipe that repeats what was done to ``model``, empty if nothing was."""
    return Recipe.of_history(history(Model.load(model)))


def _combined(reports: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """One document of several, in the form of ``sift-onnx transform``."""
    counting = [report for report in reports if "totals" in report]
    totals = dict(counting[-1]["totals"]) if counting else {}
    for key in ("weight_macs_before", "attention_macs_before", "nnz_before"):
        if counting and key in counting[0]["totals"]:
            totals[key] = counting[0]["totals"][key]
    if totals.get("weight_macs_before"):
        totals["weight_macs_ratio"] = totals["weight_macs_after"] / totals["weight_macs_before"]
    totals["search_space"] = sum(report["totals"].get("search_space", 0) for report in counting)
    layers = [layer for report in counting for layer in report["layers"] if layer["status"] != "unchanged"]
    return {
        "schema": 1,
        "pass": "recipe",
        "sparsity": max((report.get("sparsity", 0.0) for report in counting), default=0.0),
        "width_factor": max((report.get("width_factor", 1.0) for report in counting), default=1.0),
        "layers": layers,
        "totals": totals,
        "pinned": [entry for report in counting for entry in report.get("pinned", [])],
        "warnings": [text for report in counting for text in report.get("warnings", [])],
        "unknown": counting[0].get("unknown", []) if counting else [],
        "steps": reports,
        "seconds": seconds,
    }
