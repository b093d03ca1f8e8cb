"""``sift-onnx models``: the paper's architectures."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from sift_onnx.cli.candidates import architectures, words
from sift_onnx.cli.options import (
    FilePath,
    Number,
    choice_option,
    count_option,
    force_option,
    model_argument,
    number_option,
    output_options,
    seed_option,
)
from sift_onnx.cli.output import deliver, note, status_line
from sift_onnx.cli.verb import VerbGroup

if TYPE_CHECKING:
    from rich.table import Table

    from sift_onnx.models.export import Export
    from sift_onnx.models.exporters import Batch


class AxisSize(click.ParamType[Any]):
    """A positive number, or ``dynamic``."""

    name = "N|dynamic"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Batch:
        if value == "dynamic":
            return "dynamic"
        try:
            size = int(value)
        except ValueError:
            size = 0
        if size < 1:
            self.fail(f"{value!r} is neither a positive number nor 'dynamic'", param, ctx)
        return size

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem("dynamic")] if "dynamic".startswith(incomplete) else []


@click.group(cls=VerbGroup)
def models() -> None:
    """List the paper's architectures, or export one to ONNX.

    Examples:
        sift-onnx models list
        sift-onnx models export resnet18 resnet18.onnx
    """


@models.command("list")
@output_options
def list_models(json_path: str | None, verbosity: int) -> None:
    """List the architectures that can be exported.

    Examples:
        sift-onnx models list
        sift-onnx models list --json -
    """
    from sift_onnx.models.registry import ARCHITECTURES

    rows = [
        {
            "name": row.name,
            "description": row.description,
            "input_shape": list(row.input_shape),
            "num_classes": row.num_classes,
            "paper": row.paper,
            "options": list(row.options),
        }
        for row in ARCHITECTURES.values()
    ]
    deliver({"schema": 1, "models": rows}, json_path, lambda _: [_table()])


def _table() -> Table:
    from rich.table import Table

    from sift_onnx.models.registry import ARCHITECTURES

    table = Table(box=None, pad_edge=False)
    for column in ("name", "description", "input", "classes", "in the paper"):
        table.add_column(column, no_wrap=column in ("name", "input"))
    for row in ARCHITECTURES.values():
        shape = "x".join(str(size) for size in row.input_shape)
        table.add_row(row.name, row.description, shape, str(row.num_classes), row.paper)
    return table


@models.command("export")
@click.argument("name", shell_complete=words(architectures))
@model_argument("out", metavar="OUT", type=FilePath())
@number_option("--width", Number(), "Factor on the sizes of all layers.", default=1.0)
@count_option("--num-classes", help="Classes, or vocabulary.  [default: the architecture's own]")
@click.option(
    "--batch", type=AxisSize(), metavar="N|dynamic", default="1", show_default=True, help="Size of the batch axis."
)
@click.option(
    "--sequence",
    type=AxisSize(),
    metavar="N|dynamic",
    help="Tokens per item of a language model.  [default: the architecture's own]",
)
@count_option("--layers", help="Layers of a language model.  [default: the architecture's own]")
@click.option(
    "--keep-batch-norm/--fold-batch-norm",
    default=True,
    show_default=True,
    help="Keep BatchNormalization nodes, without which a model hardly trains, or fold them into convolutions.",
)
@choice_option("--exporter", "torchscript", "dynamo", help="Which of torch's exporters traces the model.")
@click.option(
    "--opset", type=int, metavar="N", help="Operator set version.  [default: 17 with torchscript, 20 with dynamo]"
)
@click.option(
    "--zero-init-residual/--no-zero-init-residual",
    default=None,
    help="Start residual branches at zero, as the paper does.  [default: unless --fold-batch-norm]",
)
@seed_option
@force_option
@output_options
def export_model(name: str, out: str, json_path: str | None, verbosity: int, **options: Any) -> None:
    """Export the architecture NAME, freshly initialized, to the ONNX file OUT.

    Examples:
        sift-onnx models export resnet18 resnet18.onnx
        sift-onnx models export resnet18 net.onnx --fold-batch-norm --batch dynamic
        sift-onnx models export gpt3-small gpt.onnx --layers 2 --sequence 64
    """
    from sift_onnx.models.export import export

    if options["zero_init_residual"] and not options["keep_batch_norm"]:
        note(
            "--zero-init-residual with --fold-batch-norm folds scales of 0 into convolutions: their weights are 0",
            verbosity,
        )
    note(f"building {name}, and tracing it with torch's {options['exporter']} exporter", verbosity - 1)
    with status_line(f"exporting {name}", verbosity):
        written = export(name, out, **options)
    deliver({"schema": 1, **asdict(written)}, json_path, lambda _: [_summary(written)])


def _summary(written: Export) -> str:
    files = written.file if written.data is None else f"{written.file} and {written.data}"
    return (
        f"{files}: {written.bytes / 1e6:.1f} MB, {written.parameters:,} parameters, "
        f"{written.nodes} nodes, opset {written.opset}"
    )
