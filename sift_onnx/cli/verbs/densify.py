"""``sift-onnx densify``: masks are dropped."""

from __future__ import annotations

from typing import Any

import click

from sift_onnx.cli.options import (
    dry_run_option,
    force_option,
    full_option,
    in_out_arguments,
    input_shapes_option,
    output_options,
)
from sift_onnx.cli.rewrite_verb import Rewriting, run
from sift_onnx.cli.verb import Verb


@click.command(cls=Verb)
@in_out_arguments
@input_shapes_option
@full_option
@dry_run_option
@force_option
@output_options
def densify(**options: Any) -> None:
    """Drop the masks of the model IN, for dense fine-tuning, and write it to OUT. No value changes.

    Examples:
        sift-onnx densify wide.onnx dense.onnx
    """
    from sift_onnx.passes import Densify
    from sift_onnx.reports.masks import mask_tables

    call = Rewriting.taken_from(options | {"storage": "dense"})
    run(
        Densify(input_shapes=options["input_shapes"]),
        call,
        doing="densifying",
        tables=lambda report, full: mask_tables(report, "Masks dropped", full),
        outcome=lambda _: f"{call.target} has no masks: weights that were pruned are zeros that training may change.",
    )
