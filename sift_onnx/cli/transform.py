"""``sift-onnx transform``: a bigger, sparser model at the same FLOPs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from sift_onnx.cli.options import (
    dry_run_option,
    force_option,
    input_shapes_option,
    json_option,
    mask_options,
    seed_option,
    selection_options,
    storage_option,
    verbosity_options,
)
from sift_onnx.cli.output import byte_progress, note, print_all, status_line, write_json
from sift_onnx.errors import UsageError

if TYPE_CHECKING:
    from sift_onnx.model import Model
    from sift_onnx.passes.base import PassResult

FAMILIES = ("wide", "parallel", "factorized", "doped")
# Options that some families do not have.
_ONLY_WIDE = ("budget", "attention", "resize_output", "round_to", "strict", "distribution")
_ONLY_LOCAL = ("activation",)
_NOT_RECIPE = ("init", "pattern", "seed", "only", "keep_dense")


@click.command()
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--wide", metavar="S", help="Sparse Wide at sparsity S: features times sqrt(1 / (1 - S)).")
@click.option("--parallel", metavar="S", help="Sparse Parallel: 1 / (1 - S) sparse branches for each layer, summed.")
@click.option("--factorized", metavar="S", help="Sparse Factorized: two sparse factors for each layer.")
@click.option("--doped", metavar="S", help="Sparse Doped: a sparse matrix plus a dense low-rank pair for each layer.")
@click.option(
    "--recipe",
    "recipe_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Several passes with their settings, in YAML.",
)
@click.option(
    "--budget",
    type=click.Choice(["model", "layer", "total"]),
    default="model",
    show_default=True,
    help="What keeps its MACs: the model, with dense first and last layers repaid by the others; each layer by "
    "itself; or the total, with attention products repaid too.",
)
@click.option(
    "--init",
    type=click.Choice(["random", "embed", "svd"]),
    default="random",
    show_default=True,
    help="How new weights start: at random; with IN in them, so that OUT computes what IN computes (--wide, where "
    "normalizations are per channel, with exactly IN's non-zeros whatever --budget says; --parallel without "
    "activation); or from a truncated singular value decomposition (--factorized, --doped).",
)
@click.option(
    "--activation",
    type=click.Choice(["auto", "none", "bn-relu", "relu", "gelu"]),
    default="auto",
    show_default=True,
    help="Non-linearity in Parallel, Factorized and Doped; auto is BatchNorm and ReLU for convolutions and the model's "
    "own function for linear layers.",
)
@click.option(
    "--attention",
    type=click.Choice(["head-dim", "heads", "keep"]),
    default="head-dim",
    show_default=True,
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
@click.option(
    "--round-to",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Prefer widths that are multiples of N.",
)
@storage_option
@input_shapes_option
@click.option("--strict", is_flag=True, help="Refuse a model with an operator that no rule covers.")
@dry_run_option
@seed_option
@force_option
@json_option
@verbosity_options
def transform(
    source: Path,
    target: Path,
    recipe_file: Path | None,
    json_path: str | None,
    verbosity: int,
    dry_run: bool,
    force: bool,
    **options: Any,
) -> None:
    """Make the model IN bigger and sparser at the same FLOPs, and write it to OUT.

    \b
    sift-onnx transform resnet18.onnx wide.onnx --wide 0.9
    """
    from sift_onnx.files.storage import check_output
    from sift_onnx.model import Model
    from sift_onnx.report.transform import transform_tables
    from sift_onnx.shapes import parse_input_shapes

    storage = options.pop("storage")
    shapes = parse_input_shapes(options.pop("input_shapes"))
    apply = _chosen(click.get_current_context(), recipe_file, shapes, options)
    if not dry_run:
        check_output(target, force)

    start = time.perf_counter()
    with status_line(f"reading {source}", verbosity):
        model = Model.load(source)
    with status_line(f"transforming {source}", verbosity):
        result = apply(model)
    if not dry_run:
        with byte_progress(f"writing {target}", verbosity) as progress:
            result.model.save(target, storage=storage, force=force, progress=progress)
    names = {"model": str(source), "out": None if dry_run else str(target)}
    document = {**result.report, **names, "seconds": time.perf_counter() - start}
    if json_path is not None:
        write_json(document, json_path)
    if json_path != "-":
        if result.changed:
            print_all(transform_tables(document))
        click.echo(_what_it_is(source, target, dry_run, result.changed, document))
    for warning in result.report["warnings"]:
        note(f"warning: {warning}", verbosity)
    for node in result.report["unknown"]:
        note(f"warning: no rule covers {node}; what it touches was left as it is", verbosity)


def _chosen(
    context: click.Context, recipe_file: Path | None, shapes: dict[str, tuple[int, ...]], options: dict[str, Any]
) -> Callable[[Model], PassResult]:
    """What the options ask for; the options of other families are refused if they were given."""
    from sift_onnx.passes.pipeline import make_pass, run_recipe
    from sift_onnx.recipe import Recipe, Step

    sparsities = {family: options.pop(family) for family in FAMILIES}
    named = {family: sparsity for family, sparsity in sparsities.items() if sparsity is not None}
    if len(named) + (recipe_file is not None) != 1:
        flags = ", ".join(f"--{f} S" for f in FAMILIES)
        raise UsageError(f"name exactly one transform and its sparsity: {flags}, or --recipe FILE")
    if recipe_file is not None:
        _refuse(context, (*_ONLY_WIDE, *_ONLY_LOCAL, *_NOT_RECIPE), "belongs into the recipe")
        recipe = Recipe.load(recipe_file)
        return lambda model: run_recipe(model, recipe, shapes)
    (family, sparsity), *_ = named.items()
    foreign = _ONLY_LOCAL if family == "wide" else _ONLY_WIDE
    reason = (
        "is for --parallel, --factorized and --doped"
        if family == "wide"
        else f"is for --wide; --{family} replaces each layer at its own cost"
    )
    _refuse(context, foreign, reason)
    settings = {key: value for key, value in options.items() if key not in foreign}
    return make_pass(Step(family, {"sparsity": sparsity, "input_shapes": shapes, **settings}))


def _refuse(context: click.Context, names: Sequence[str], reason: str) -> None:
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"--{name.replace('_', '-')} {reason}")


def _what_it_is(source: Path, target: Path, dry_run: bool, changed: bool, document: dict[str, Any]) -> str:
    """What the result is, and what to do with it."""
    if dry_run:
        return f"Dry run: nothing was written to {target}."
    if not changed:
        reasons = dict.fromkeys(layer["reason"] for layer in document["layers"])
        return f"{target} is {source} as it was: {', '.join(list(reasons)[:3]) or 'it has no weight layer'}."
    steps = [step for step in document.get("steps", [document]) if _draws(step)]
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
