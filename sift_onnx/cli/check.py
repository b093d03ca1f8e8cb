"""``sift-onnx check``: whether a model is sound, and computes what a reference computes."""

from __future__ import annotations

from pathlib import Path

import click

from sift_onnx.backends.base import Program, get_backend
from sift_onnx.checking import check_model
from sift_onnx.cli.options import input_shapes_option, json_option, seed_option, verbosity_options
from sift_onnx.cli.output import note, stdout_console, write_json
from sift_onnx.errors import CheckError
from sift_onnx.report.check import checks_table


@click.command()
@click.argument("model")
@click.argument("reference", required=False)
@click.option(
    "--atol",
    type=click.FloatRange(min=0),
    default=1e-4,
    show_default=True,
    help="Outputs may differ by ATOL + RTOL * |reference|.",
)
@click.option("--rtol", type=click.FloatRange(min=0), default=1e-3, show_default=True, help="See --atol.")
@input_shapes_option
@seed_option
@json_option
@verbosity_options
def check(
    model: str,
    reference: str | None,
    atol: float,
    rtol: float,
    input_shapes: tuple[tuple[str, tuple[int, ...]], ...],
    seed: int,
    json_path: str | None,
    verbosity: int,
) -> None:
    """Check MODEL: valid ONNX, strict shape inference, runs in onnxruntime, outputs are finite.

    With REFERENCE, its outputs must be the same ones, and equal within --atol and --rtol on the same random inputs.

    \b
    sift-onnx check wide.onnx resnet18.onnx
    """
    backend = get_backend("onnxruntime")

    def compile_model(path: Path) -> Program:
        if verbosity > 0:
            note(f"loading {path} in onnxruntime")
        return backend.compile(path)

    result = check_model(
        model,
        reference,
        compile_model=compile_model,
        input_shapes=dict(input_shapes),
        seed=seed,
        atol=atol,
        rtol=rtol,
    )
    if json_path is not None:
        names = {"model": str(model), "reference": None if reference is None else str(reference)}
        write_json({**result.to_dict(), **names}, json_path)
    if json_path != "-":
        stdout_console().print(checks_table(result.to_dict()))
    if not result.ok:
        failed = [entry for entry in result.checks if not entry.ok]
        raise CheckError(f"{model}: check {failed[0].name!r} failed: {failed[0].detail}")
