"""``sift-onnx inspect``: shape, non-zeros and MACs of each weight layer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sift_onnx.cli.candidates import files
from sift_onnx.cli.options import (
    WrittenPath,
    file_option,
    force_option,
    full_option,
    input_shapes_option,
    model_argument,
    output_options,
)
from sift_onnx.cli.output import deliver, notes, status_line
from sift_onnx.cli.verb import Verb
from sift_onnx.errors import OutputError, UsageError

if TYPE_CHECKING:
    from sift_onnx.model import Model


@click.command(cls=Verb)
@model_argument("model")
@file_option(
    "--save-recipe",
    "recipe_path",
    completes=files(".yaml", ".yml"),
    type=WrittenPath(path_type=Path),
    help="Write the transforms that MODEL went through to FILE, for `transform --recipe`.",
)
@input_shapes_option
@full_option
@force_option
@output_options
def inspect(
    model: Path,
    input_shapes: Any,
    recipe_path: Path | None,
    full: bool,
    force: bool,
    json_path: str | None,
    verbosity: int,
) -> None:
    """List each weight layer of MODEL: shape, non-zeros, sparsity, multiply-accumulates (batch 1 unless given).

    Examples:
        sift-onnx inspect wide.onnx
        sift-onnx inspect wide.onnx --save-recipe wide.yaml
    """
    from msgspec.structs import replace

    from sift_onnx.analysis.cost import inspect as inspect_model
    from sift_onnx.model import Model
    from sift_onnx.model_files.paths import check_input, check_output
    from sift_onnx.reports.inspect import inspect_tables

    check_input(model)
    if recipe_path is not None:
        check_output(recipe_path, force)
    with status_line(f"reading {model}", verbosity):
        loaded = Model.load(model)
        costs = replace(inspect_model(loaded, input_shapes), model=str(model))
    if recipe_path is not None:
        _save_recipe(loaded, model, recipe_path)
    deliver(costs, json_path, lambda shown: inspect_tables(shown, str(model), full))
    notes(verbosity, costs.assumed, costs.warnings)


def _save_recipe(model: Model, name: Path, path: Path) -> None:
    from sift_onnx.passes.pipeline import recipe_of

    recipe = recipe_of(model)
    if not recipe.steps:
        raise UsageError(f"{name} has been through no transform, so there is no recipe to save; drop --save-recipe")
    try:
        path.write_text(recipe.dump(), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write the recipe to {path} (--save-recipe): {error.strerror}") from error
