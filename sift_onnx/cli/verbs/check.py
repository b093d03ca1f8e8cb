"""``sift-onnx check``: whether a model is sound, and computes what a reference computes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sift_onnx.cli.options import (
    FilePath,
    Number,
    input_shapes_option,
    model_argument,
    number_option,
    output_options,
    seed_option,
)
from sift_onnx.cli.output import deliver, note, notes, status_line
from sift_onnx.cli.verb import Verb
from sift_onnx.errors import CheckError

if TYPE_CHECKING:
    from sift_onnx.backends.base import Program


@click.command(cls=Verb)
@model_argument("model", type=FilePath())
@model_argument("reference", type=FilePath(), metavar="[REFERENCE]", required=False)
@number_option("--atol", Number(min=0), "Outputs may differ by ATOL + RTOL * |reference|.", default=1e-4)
@number_option("--rtol", Number(min=0), "See --atol.", default=1e-3)
@input_shapes_option
@seed_option
@output_options
def check(model: str, reference: str | None, json_path: str | None, verbosity: int, **options: Any) -> None:
    """Check that MODEL is valid ONNX, passes strict shape inference, and runs in onnxruntime with finite outputs.

    MODEL must be for inference: no node is in training mode or draws random numbers, and each sample gives the same
    outputs alone and in a batch.

    With REFERENCE, both models must have the same inputs and outputs, with values that agree within --atol and --rtol
    on the same random inputs.

    Examples:
        sift-onnx check wide.onnx
        sift-onnx check trained.onnx trained-optimized.onnx --atol 1e-3
    """
    from msgspec.structs import replace

    from sift_onnx.backends.base import get_backend
    from sift_onnx.reports.check import checks_table
    from sift_onnx.verify.checks import check_model

    backend = get_backend("onnxruntime")

    def compile_model(path: Path) -> Program:
        if verbosity > 0:
            note(f"loading {path} in onnxruntime")
        return backend.compile(path)

    with status_line(f"checking {model}", verbosity):
        result = check_model(model, reference, compile_model=compile_model, **options)
    result = replace(result, model=model, reference=reference)
    deliver(result, json_path, lambda shown: [checks_table(shown)])
    notes(verbosity, result.assumed)
    if not result.ok:
        failed = [entry for entry in result.checks if not entry.ok]
        raise CheckError(f"{model}: check {failed[0].name!r} failed: {failed[0].detail}")
