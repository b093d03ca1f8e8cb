"""``sift-onnx convert``: masked weights as dense or as sparse tensors, in the model file or in a file next to it."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sift_onnx.cli.options import (
    STORAGE_HELP,
    STORAGES,
    choice_option,
    force_option,
    in_out_arguments,
    output_options,
)
from sift_onnx.cli.output import byte_progress, deliver, notes, status_line
from sift_onnx.cli.verb import Verb
from sift_onnx.errors import UsageError

if TYPE_CHECKING:
    from sift_onnx.model import Storage

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_SIZE = re.compile(r"(?P<number>\d+)\s*(?P<unit>[kmg]i?)?b?", re.IGNORECASE)


class ByteSize(click.ParamType[Any]):
    """``4096``, ``64KiB``, ``1MB``."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(value.strip())
        if match is None or not int(match["number"]):
            self.fail(f"{value!r} is not a size in bytes, like 4096, 64KiB or 1MB", param, ctx)
        return int(match["number"]) * _UNITS[(match["unit"] or "").lower()]


@click.command(cls=Verb)
@in_out_arguments
@choice_option("--storage", *STORAGES, help=STORAGE_HELP, required=True)
@click.option(
    "--external-data",
    "external_from",
    type=ByteSize(),
    help="Weights of SIZE bytes and more go to a data file beside OUT.  [default: only where one file would pass 2 GB]",
)
@force_option
@output_options
def convert(
    source: Path,
    target: Path,
    storage: Storage,
    external_from: int | None,
    force: bool,
    json_path: str | None,
    verbosity: int,
) -> None:
    """Store the model IN in another way in OUT: no value changes, no mask, and no node.

    Examples:
        sift-onnx convert wide.onnx small.onnx --storage sparse
    """
    from sift_onnx.analysis.training_mode import in_words, training_nodes
    from sift_onnx.graphs.constants import shape_of
    from sift_onnx.model import Model
    from sift_onnx.model_files.paths import check_input, check_output
    from sift_onnx.model_files.storage import is_stored_sparse
    from sift_onnx.records.convert import ConvertReport

    check_input(source)
    check_output(target, force)
    with status_line(f"reading {source}", verbosity):
        model = Model.load(source)
    masked = model.masked()
    if storage == "sparse" and not masked:
        raise UsageError(f"{source} has no masks, so nothing of it can be stored as sparse; use --storage dense")
    with byte_progress(f"writing {target}", verbosity) as progress:
        data = model.save(target, storage=storage, force=force, external_from=external_from, progress=progress)
    training = [entry.node for entry in training_nodes(model.graph)]
    report = ConvertReport(
        model=str(source),
        out=str(target),
        storage=storage,
        data=None if data is None else str(target.parent / data.name),
        bytes=sum(file.stat().st_size for file in (target, data) if file is not None),
        masked=len(masked),
        weights=sum(math.prod(shape_of(constant)) for constant in masked.values()),
        nnz=sum(constant.nnz for constant in masked.values()),
        warnings=(_not_for_inference(source, target, in_words(training)),) if training else (),
    )
    outputs = {tensor.name for tensor in model.graph.outputs}
    sparse = sum(is_stored_sparse(constant, storage, outputs) for constant in masked.values())
    stored = f"{len(masked)} masked weights as {storage} tensors"
    if storage == "sparse" and sparse < len(masked):
        stored = f"{sparse} masked weights as sparse tensors, {len(masked) - sparse} that are outputs as dense ones"
    files = target if data is None else f"{target} and {report.data}"
    summary = f"{files}: {report.bytes / 1e6:.1f} MB, {stored}, {report.nnz:,} of {report.weights:,} weights active"
    deliver(report, json_path, lambda _: [summary])
    notes(verbosity, warnings=report.warnings)


def _not_for_inference(source: Path, target: Path, nodes: str) -> str:
    return (
        f"{target} is no more for inference than {source}: in training mode, computing by the batch or by chance: "
        f"{nodes}; the pass 'inference-mode' in a recipe of sift-onnx transform changes that"
    )
