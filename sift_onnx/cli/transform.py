"""``sift-onnx transform``: a bigger, sparser model at the same FLOPs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

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
from sift_onnx.cli.output import note, print_all, status_line, write_json
from sift_onnx.errors import UsageError

FAMILIES = ("wide",)


@click.command()
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--wide", metavar="S", help="Sparse Wide at sparsity S: features times sqrt(1 / (1 - S)).")
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
    type=click.Choice(["random", "embed"]),
    default="random",
    show_default=True,
    help="How the wide model starts: from random weights, or with IN in it, so that it computes what IN computes with "
    "exactly its non-zeros (whatever --budget says); for models whose normalizations are per channel.",
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
    source: Path, target: Path, json_path: str | None, verbosity: int, dry_run: bool, force: bool, **options: Any
) -> None:
    """Make the model IN bigger and sparser at the same FLOPs, and write it to OUT.

    \b
    sift-onnx transform resnet18.onnx wide.onnx --wide 0.9
    """
    from sift_onnx.model import Model
    from sift_onnx.passes import Wide
    from sift_onnx.report.transform import transform_tables
    from sift_onnx.shapes import parse_input_shapes
    from sift_onnx.storage import check_output

    chosen = {family: options.pop(family) for family in FAMILIES}
    named = {family: sparsity for family, sparsity in chosen.items() if sparsity is not None}
    if len(named) != 1:
        raise UsageError("name exactly one transform and its sparsity: " + ", ".join(f"--{f} S" for f in FAMILIES))
    storage = options.pop("storage")
    shapes = parse_input_shapes(options.pop("input_shapes"))
    pass_ = Wide(named["wide"], input_shapes=shapes, **options)
    if not dry_run:
        check_output(target, force)

    start = time.perf_counter()
    with status_line(f"reading {source}", verbosity):
        model = Model.load(source)
    with status_line(f"transforming {source}", verbosity):
        result = pass_(model)
    if not dry_run:
        with status_line(f"writing {target}", verbosity):
            result.model.save(target, storage=storage, force=force)
    document = {**result.report, "seconds": time.perf_counter() - start}
    if json_path is not None:
        write_json(document, json_path)
    if json_path != "-":
        if result.changed:
            print_all(transform_tables(document))
        _say_what_it_is(source, target, dry_run, result.changed, options["init"], document)
    for warning in result.report["warnings"]:
        note(f"warning: {warning}", verbosity)
    for node in result.report["unknown"]:
        note(f"warning: no rule covers {node}; what it touches was left as it is", verbosity)


def _say_what_it_is(
    source: Path, target: Path, dry_run: bool, changed: bool, init: str, document: dict[str, Any]
) -> None:
    if dry_run:
        click.echo(f"Dry run: nothing was written to {target}.")
        return
    if not changed:
        reason = document["layers"][0]["reason"] if document["layers"] else "nothing to do"
        click.echo(f"{target} is {source} as it was: {reason}.")
        return
    if init == "embed":
        click.echo(
            f"{target} computes what {source} computes: what was added is pruned, for training to grow into. "
            f"Next: sift-onnx check {target}"
        )
        return
    click.echo(
        f"{target} holds an untrained model: its wider weights are new random draws, so it must be trained before its "
        f"outputs mean anything. Next: sift-onnx check {target}"
    )
