"""``sift-onnx prune``: masks on a model as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sift_onnx.cli.mask_verb import run
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


@click.command()
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--sparsity", metavar="S", required=True, help="Share of the weights to leave out, 0 <= S < 1.")
@click.option(
    "--method",
    type=click.Choice(["magnitude", "random"]),
    default="magnitude",
    show_default=True,
    help="Which weights stay: the largest of each layer, or random ones.",
)
@mask_options
@selection_options
@storage_option
@input_shapes_option
@dry_run_option
@seed_option
@force_option
@json_option
@verbosity_options
def prune(
    source: Path, target: Path, storage: Any, json_path: str | None, verbosity: int, dry_run: bool, force: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Mask a share of the weights of the model IN, without widening it, and write it to OUT.

    The first and the last layers and embeddings stay dense. A model that has masks gets sparser ones within them.

    \b
    sift-onnx prune resnet18.onnx sparse.onnx --sparsity 0.5 --pattern 2:4
    """
    from sift_onnx.passes import Prune
    from sift_onnx.shapes import parse_input_shapes

    shapes = parse_input_shapes(options.pop("input_shapes"))
    pass_ = Prune(options.pop("sparsity"), input_shapes=shapes, **options)
    run(
        pass_,
        source,
        target,
        title=f"Pruned to a sparsity of {float(pass_.sparsity):g} ({pass_.method}, {pass_.masking.pattern})",
        doing="pruning",
        done="{target} has lost the weights outside of its masks and wants fine-tuning. "
        "Next: sift-onnx inspect {target}",
        storage=storage,
        dry_run=dry_run,
        force=force,
        json_path=json_path,
        verbosity=verbosity,
    )
