"""``sift-onnx prune``: masks on a model as it is."""

from __future__ import annotations

from typing import Any

import click

from sift_onnx.cli.options import (
    choice_option,
    dry_run_option,
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


@click.command(cls=Verb)
@in_out_arguments
@click.option("--sparsity", metavar="S", required=True, help="Share of the weights to leave out, 0 <= S < 1.")
@choice_option("--method", "magnitude", "random", help="Which weights stay: the largest of each layer, or random ones.")
@mask_options
@selection_options
@storage_option
@input_shapes_option
@full_option
@dry_run_option
@seed_option
@force_option
@output_options
def prune(**options: Any) -> None:
    """Mask a share of the weights of the model IN, without widening it, and write it to OUT.

    The first and the last layers and embeddings stay dense. If the model has masks, the new masks are within them.

    Examples:
        sift-onnx prune resnet18.onnx sparse.onnx --sparsity 0.9
        sift-onnx prune resnet18.onnx sparse.onnx --sparsity 0.5 --pattern 2:4
    """
    from sift_onnx.passes import Prune
    from sift_onnx.reports.masks import mask_tables

    call = Rewriting.taken_from(options)
    pass_ = Prune(options.pop("sparsity"), **options)
    title = f"Pruned to a sparsity of {float(pass_.sparsity):g} ({pass_.method}, {pass_.masking.pattern})"
    run(
        pass_,
        call,
        doing="pruning",
        tables=lambda report, full: mask_tables(report, title, full),
        outcome=lambda _: (
            f"{call.target} has lost the weights outside of its masks and wants fine-tuning. "
            f"Next: sift-onnx inspect {call.target}"
        ),
    )
