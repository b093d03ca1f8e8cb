"""``sift-onnx densify``: masks are dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sift_onnx.cli.mask_verb import run
from sift_onnx.cli.options import dry_run_option, force_option, input_shapes_option, json_option, verbosity_options


@click.command()
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@input_shapes_option
@dry_run_option
@force_option
@json_option
@verbosity_options
def densify(
    source: Path, target: Path, input_shapes: Any, json_path: str | None, verbosity: int, dry_run: bool, force: bool
) -> None:
    """Drop the masks of the model IN, for dense fine-tuning, and write it to OUT. No value changes.

    \b
    sift-onnx densify wide.onnx dense.onnx
    """
    from sift_onnx.passes import Densify
    from sift_onnx.shapes import parse_input_shapes

    run(
        Densify(input_shapes=parse_input_shapes(input_shapes)),
        source,
        target,
        title="Masks dropped",
        doing="densifying",
        done="{target} has no masks: weights that were pruned are zeros that training may change.",
        storage="dense",
        dry_run=dry_run,
        force=force,
        json_path=json_path,
        verbosity=verbosity,
    )
