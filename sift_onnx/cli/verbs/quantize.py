"""``sift-onnx quantize``: weights and activations to bytes, with masks kept and accuracy before and after."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sift_onnx.cli.options import (
    backend_option,
    choice_option,
    count_option,
    data_option,
    force_option,
    in_out_arguments,
    input_shapes_option,
    output_options,
    seed_option,
)
from sift_onnx.cli.output import deliver, notes, status_line
from sift_onnx.cli.verb import Verb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from sift_onnx.records.quantization import QuantizationReport


@click.command(cls=Verb)
@in_out_arguments
@data_option(
    "What train takes: its examples to train on find the ranges of activations, and its held-out ones the accuracy.",
    required=False,
)
@choice_option("--format", "qdq", "qoperator", help="QuantizeLinear and DequantizeLinear, or QLinearConv and its kin.")
@click.option("--dynamic", is_flag=True, help="Find ranges of activations at run time; needs no data.")
@click.option(
    "--per-channel/--per-tensor", default=True, show_default=True, help="A scale for each output feature, or one."
)
@choice_option(
    "--activations", "uint8", "int8", help="Bytes of activations: unsigned, or signed with zero points of 0."
)
@choice_option(
    "--calibration",
    "minmax",
    "entropy",
    "percentile",
    help="Ranges of activations: all values, those of least entropy, or all but the outermost.",
)
@count_option("--samples", help="Examples to calibrate with.", default=256, show_default=True)
@click.option(
    "--reduce-range",
    is_flag=True,
    help="Weights of 7 bits, for processors with AVX2 or AVX-512 but without VNNI, whose sums would overflow.",
)
@click.option(
    "--keep-float",
    metavar="GLOB",
    multiple=True,
    help="Weights that stay in floating point, by initializer name (repeatable).",
)
@click.option("--no-evaluate", is_flag=True, help="Do not measure the accuracy.")
@backend_option("Back end to measure the accuracy on.")
@count_option("--threads", help="Threads of that back end.  [default: cores this process may use]")
@input_shapes_option
@seed_option
@force_option
@output_options
def quantize(
    source: Path,
    target: Path,
    data: str | None,
    no_evaluate: bool,
    force: bool,
    json_path: str | None,
    verbosity: int,
    **options: Any,
) -> None:
    """Quantize the model IN by onnxruntime's quantizer, with its masks, and write it to OUT.

    Weights are signed bytes with zero point 0, so pruned weights are exactly zero, and masks of any pattern stay the
    same. A quad is four weights along the input features. int8 kernels skip quads of zeros; with `prune --pattern
    block:1x4`, either all weights of a quad are active or none.

    Examples:
        sift-onnx quantize trained.onnx int8.onnx --data digits.npz
        sift-onnx quantize trained.onnx int8.onnx --data digits.npz --format qoperator --calibration entropy
        sift-onnx quantize bert.onnx int8.onnx --dynamic
    """
    from msgspec.structs import replace

    from sift_onnx.model_files.paths import check_input, check_output
    from sift_onnx.quantization.quantize import quantize_model
    from sift_onnx.reports.quantization import quantization_words

    check_input(source)
    check_output(target, force)
    with status_line(f"quantizing {source}", verbosity):
        found = quantize_model(source, data, measure=not no_evaluate, label=str(target), **options)
        found.model.save(target, force=force)
    totals = replace(found.report.totals, bytes_before=source.stat().st_size, bytes_after=target.stat().st_size)
    report = replace(found.report, model=str(source), out=str(target), totals=totals)

    def in_words(report: QuantizationReport) -> Iterator[RenderableType]:
        yield from quantization_words(report)
        yield f"Next: sift-onnx benchmark {target} --baseline {source} --backend cpu --backend onnxruntime"

    deliver(report, json_path, in_words)
    notes(verbosity, None, report.warnings)
