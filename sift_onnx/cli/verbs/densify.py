"""``sift-onnx densify``: masks are dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sift_onnx.cli.options import (
    dry_run_option,
    force_option,
    in_out_arguments,
    input_shapes_option,
    json_option,
    verbosity_options,
)
from sift_onnx.cli.rewrite_verb import run
from sift_onnx.cli.verb import Verb


@click.command(cls=Verb)
@in_out_arguments
@input_shapes_option
@dry_run_option
@force_option
@json_option
@verbosity_options
def densify(
    source: Path, target: Path, input_shapes: Any, json_path: str | None, verbosity: int, dry_run: bool, force: bool
) -> None:
    """Drop the masks of the model IN, for dense fine-tuning, and write it to OUT. No value changes.

    Examples:
        sift-onnx densify wide.onnx dense.onnx
    """
    from sift_onnx.passes import Densify
    from sift_onnx.report.masks import mask_tables

    run(
        Densify(input_shapes=input_shapes),
        source,
        target,
        doing="densifying",
        tables=lambda report: mask_tables(report, "Masks dropped"),
        outcome=lambda _: f"{target} has no masks: weights that were pruned are zeros that training may change.",
        storage="dense",
        dry_run=dry_run,
        force=force,
        json_path=json_path,
        verbosity=verbosity,
    )
