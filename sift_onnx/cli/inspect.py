"""``sift-onnx inspect``: shape, non-zeros and MACs of each weight layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sift_onnx.cli.options import input_shapes_option, json_option, verbosity_options
from sift_onnx.cli.output import print_all, status_line, write_json


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@input_shapes_option
@json_option
@verbosity_options
def inspect(model: Path, input_shapes: Any, json_path: str | None, verbosity: int) -> None:
    """Per weight layer of MODEL: shape, non-zeros, sparsity, multiply-accumulates (batch 1 unless given).

    \b
    sift-onnx inspect wide.onnx
    """
    from sift_onnx.cost import inspect as inspect_model
    from sift_onnx.report.inspect import inspect_tables
    from sift_onnx.shapes import parse_input_shapes

    shapes = parse_input_shapes(input_shapes)
    with status_line(f"reading {model}", verbosity):
        document = inspect_model(model, shapes).to_dict()
    if json_path is not None:
        write_json(document, json_path)
    if json_path != "-":
        print_all(inspect_tables(document, str(model)))
