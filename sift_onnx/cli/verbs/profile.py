"""``sift-onnx profile``: which node of a model runs where, why there, and how well it uses the machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sift_onnx.cli.candidates import files
from sift_onnx.cli.options import (
    FilePath,
    WrittenPath,
    backend_option,
    count_option,
    file_option,
    force_option,
    input_shapes_option,
    model_argument,
    output_options,
    seed_option,
)
from sift_onnx.cli.output import deliver, notes, status_line
from sift_onnx.cli.verb import Verb
from sift_onnx.errors import OutputError, UnsupportedError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sift_onnx.records.profile import ProfileReport


@click.command(cls=Verb)
@model_argument("path", type=FilePath())
@backend_option()
@count_option("--batch", help="Batch size.  [default: the model's own, or 1]")
@count_option("--threads", help="Threads.  [default: cores this process may use]")
@file_option(
    "--trace",
    completes=files(".json"),
    type=WrittenPath(path_type=Path),
    help="Write one run as a Chrome trace (back end cpu).",
)
@click.option("--reasons", is_flag=True, help="Also say why each node is where it is.")
@input_shapes_option
@seed_option
@force_option
@output_options
def profile(
    path: str,
    backend: str,
    batch: int | None,
    threads: int | None,
    trace: Path | None,
    reasons: bool,
    input_shapes: dict[str, tuple[int, ...]],
    seed: int,
    force: bool,
    json_path: str | None,
    verbosity: int,
) -> None:
    """Time each node of MODEL, and say which kernel ran it.

    GFLOP/s count multiplications and additions of active weights; the peak is what the same threads reach if they do
    nothing else. Inputs are random.

    Examples:
        sift-onnx profile wide.onnx --batch 64 --reasons
    """
    from sift_onnx.analysis.active_zeros import active_zero_warnings, active_zeros
    from sift_onnx.analysis.graph_analysis import fitting_inputs
    from sift_onnx.backends.base import CompileOptions, get_backend
    from sift_onnx.backends.measure import host
    from sift_onnx.model import Model
    from sift_onnx.model_files.paths import check_input, check_output
    from sift_onnx.records.profile import ProfileReport
    from sift_onnx.reports.active_zeros import zeros_line
    from sift_onnx.reports.profile import nodes_table, placement_lines, summary_line
    from sift_onnx.shapes.input_binding import batch_of
    from sift_onnx.shapes.random_inputs import random_feeds
    from sift_onnx.shapes.tensor_specs import graph_inputs

    check_input(Path(path))
    if trace is not None:
        check_output(trace, force)
    with status_line(f"profiling {path}", verbosity):
        model = Model.load(path)
        zeros = active_zeros(model)
        inputs = graph_inputs(model.origin)
        bound = fitting_inputs(model, input_shapes, batch, inputs)
        feeds = random_feeds(inputs, batch, bound.shapes, seed)
        shapes = bound.shapes if bound.assumed else input_shapes
        program = get_backend(backend).compile(path, CompileOptions(threads, batch, shapes))
        measured = program.profile(feeds)
    result = ProfileReport(
        host=host(),
        model=path,
        backend=backend,
        batch=batch_of(inputs, bound.shapes),
        threads=program.threads,
        nominal=bound.nominal,
        assumed=bound.remarks,
        peak_gflops=getattr(program, "peak_gflops", None),
        active_weights=sum(weight.active for weight in zeros),
        active_zeros=sum(weight.zeros for weight in zeros),
        warnings=tuple(active_zero_warnings(zeros)),
        runs=measured.runs,
        total_ms=measured.total_ms,
        nodes=measured.nodes,
        placements=program.placements,
    )
    if trace is not None:
        _write_trace(program, feeds, trace, backend)

    def in_words(result: ProfileReport) -> Iterator[RenderableType]:
        yield nodes_table(result)
        if reasons:
            yield from placement_lines(result)
        yield from zeros_line(path, result.active_weights, result.active_zeros)
        yield summary_line(result)

    deliver(result, json_path, in_words)
    notes(verbosity, bound.said, result.warnings)


def _write_trace(program: Any, feeds: Any, path: Path, backend: str) -> None:
    from sift_onnx.backends.cpu.run.program import CpuProgram
    from sift_onnx.backends.cpu.run.trace import trace_events

    if not isinstance(program, CpuProgram):
        raise UnsupportedError(f"--trace needs --backend cpu; {backend!r} records no times per node")
    _, times = program.run_timed(feeds)
    try:
        path.write_text(json.dumps(trace_events(times)), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write the trace to {str(path)!r} (--trace): {error.strerror}") from error
