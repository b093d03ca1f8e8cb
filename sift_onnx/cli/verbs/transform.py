"""``sift-onnx transform``: a bigger, sparser model at the same FLOPs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from sift_onnx.cli.candidates import files
from sift_onnx.cli.options import (
    choice_option,
    count_option,
    dry_run_option,
    file_option,
    force_option,
    full_option,
    in_out_arguments,
    input_shapes_option,
    mask_options,
    output_options,
    seed_option,
    selection_options,
    storage_option,
)
from sift_onnx.cli.rewrite_verb import Rewriting, run
from sift_onnx.cli.verb import Verb
from sift_onnx.errors import UsageError

if TYPE_CHECKING:
    from sift_onnx.model import Model
    from sift_onnx.passes.base import PassResult
    from sift_onnx.records.transform import TransformReport

FAMILIES = ("wide", "parallel", "factorized", "doped")
_AT_ITS_OWN_COST = "; --{} replaces each layer at its own cost"


@click.command(cls=Verb)
@in_out_arguments
@click.option("--wide", metavar="S", help="Sparse Wide at sparsity S: features times sqrt(1 / (1 - S)).")
@click.option("--parallel", metavar="S", help="Sparse Parallel: 1 / (1 - S) sparse branches for each layer, summed.")
@click.option("--factorized", metavar="S", help="Sparse Factorized: two sparse factors for each layer.")
@click.option("--doped", metavar="S", help="Sparse Doped: a sparse matrix plus a dense low-rank pair for each layer.")
@file_option(
    "--recipe",
    "recipe_file",
    completes=files(".yaml", ".yml"),
    help="Several passes with their settings, in YAML.",
)
@choice_option(
    "--budget",
    "model",
    "layer",
    "total",
    help="What keeps its MACs: the model, with dense first and last layers repaid by the others; each layer by "
    "itself; or the total, with attention products repaid too.",
)
@choice_option(
    "--init",
    "random",
    "embed",
    "svd",
    help="How new weights start: at random; with IN in them, so that OUT computes what IN computes (--wide, where "
    "normalizations are per channel, with exactly IN's non-zeros whatever --budget says; --parallel without "
    "activation); or from a truncated singular value decomposition (--factorized, --doped).",
)
@choice_option(
    "--activation",
    "auto",
    "none",
    "bn-relu",
    "relu",
    "gelu",
    help="Non-linearity in Parallel, Factorized and Doped; auto is BatchNorm and ReLU for convolutions and the model's "
    "own function for linear layers.",
)
@choice_option(
    "--attention",
    "head-dim",
    "heads",
    "keep",
    help="What grows in attention: the size of a head, the number of heads, or neither.",
)
@mask_options
@selection_options
@click.option(
    "--resize-output",
    metavar="GLOB",
    multiple=True,
    help="Outputs that may change their size (hidden states; repeatable).",
)
@count_option("--round-to", help="Prefer widths that are multiples of N.", default=1, show_default=True)
@click.option("--strict", is_flag=True, help="Refuse a model with an operator that no rule covers.")
@storage_option
@input_shapes_option
@full_option
@dry_run_option
@seed_option
@force_option
@output_options
def transform(recipe_file: Path | None, **options: Any) -> None:
    """Make the model IN bigger and sparser at the same FLOPs, and write it to OUT.

    Examples:
        sift-onnx transform resnet18.onnx wide.onnx --wide 0.9
        sift-onnx transform resnet18.onnx wide.onnx --wide 0.75 --only 'layer3.*' --dry-run
        sift-onnx transform trained.onnx svd.onnx --factorized 0.75 --init svd
        sift-onnx transform resnet18.onnx mixed.onnx --recipe mixed.yaml
    """
    from sift_onnx.reports.transform import transform_tables

    call = Rewriting.taken_from(options)
    run(
        _chosen(click.get_current_context(), recipe_file, options.pop("input_shapes"), options),
        call,
        doing="transforming",
        tables=transform_tables,
        outcome=lambda report: _what_it_is(call.source, call.target, report),
    )


def _chosen(
    context: click.Context, recipe_file: Path | None, shapes: dict[str, tuple[int, ...]], options: dict[str, Any]
) -> Callable[[Model], PassResult]:
    """What the options ask for; those that the chosen family has no setting for are refused if they were given."""
    from sift_onnx.passes.base import get_pass
    from sift_onnx.passes.declared_settings import declared_settings
    from sift_onnx.passes.pipeline import make_pass, run_recipe
    from sift_onnx.recipe import Recipe, Step

    sparsities = {family: options.pop(family) for family in FAMILIES}
    named = {family: sparsity for family, sparsity in sparsities.items() if sparsity is not None}
    if len(named) + (recipe_file is not None) != 1:
        flags = ", ".join(f"--{f} S" for f in FAMILIES)
        raise UsageError(f"name exactly one transform and its sparsity: {flags}, or --recipe FILE")
    if recipe_file is not None:
        for name in options:
            if _is_given(context, name):
                raise _refusal(name, "belongs into the recipe")
        recipe = Recipe.load(recipe_file)
        return lambda model: run_recipe(model, recipe, shapes)
    (family, sparsity), *_ = named.items()
    declared = declared_settings(get_pass(family))
    for name in options:
        if name not in declared and _is_given(context, name):
            *others, last = (f"--{other}" for other in FAMILIES if name in declared_settings(get_pass(other)))
            having = f"{', '.join(others)} and {last}" if others else last
            raise _refusal(name, f"is for {having}" + _AT_ITS_OWN_COST.format(family) * (family != "wide"))
    settings = {name: value for name, value in options.items() if name in declared}
    return make_pass(Step(family, {"sparsity": sparsity, "input_shapes": shapes, **settings}))


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _refusal(name: str, reason: str) -> UsageError:
    return UsageError(f"--{name.replace('_', '-')} {reason}")


def _what_it_is(source: Path, target: Path, report: TransformReport) -> str:
    """What the result is, and what to do with it."""
    from sift_onnx.records.record import json_of

    steps = [step for step in report.steps or [json_of(report)] if _draws(step)]
    starts = {step["init"] for step in steps}
    if "random" in starts:
        return (
            f"{target} holds an untrained model: its new weights are random draws, so it must be trained before its "
            f"outputs mean anything. Next: sift-onnx check {target}"
        )
    if any(step["init"] == "svd" and step["activation"] != "none" for step in steps):
        return (
            f"{target} starts from the weights of {source}, but its new non-linearities change what it computes (with "
            f"--activation none it approximates {source}), so it must be trained. Next: sift-onnx check {target}"
        )
    if "svd" in starts:
        return (
            f"{target} approximates {source} layer by layer, as far as its factors and non-zeros go; training brings "
            f"it nearer. Next: sift-onnx check {target}"
        )
    if starts:
        return (
            f"{target} computes what {source} computes: whatever was added is pruned, for training to grow into. "
            f"Next: sift-onnx check {target} {source}"
        )
    return f"{target} has the weights of {source}, as far as its masks let them through. Next: sift-onnx check {target}"


def _draws(report: dict[str, Any]) -> bool:
    """Whether the pass of a report made new weights."""
    return "init" in report and any(layer["status"] != "unchanged" for layer in report["layers"])
