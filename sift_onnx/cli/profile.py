"""``sift-onnx profile``: which node of a model runs where, why there, and how well it uses the machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from sift_onnx.backends.base import CompileOptions, get_backend
from sift_onnx.backends.measure import host
from sift_onnx.cli.options import input_shapes_option, json_option, seed_option, verbosity_options
from sift_onnx.cli.output import status_line, stdout_console, write_json
from sift_onnx.errors import OutputError, UnsupportedError
from sift_onnx.feeds import batch_of, graph_inputs, random_feeds, resolve_shapes
from sift_onnx.model import Model
from sift_onnx.report.profile import nodes_table, placement_lines, summary_line
from sift_onnx.shapes import parse_input_shapes


@click.command()
@click.argument("path", metavar="MODEL")
@click.option(
    "--backend",
    metavar="NAME",
    default="cpu",
    show_default=True,
    help="Back end: cpu, onnxruntime, or FILE.py:CLASS for your own.",
)
@click.option("--batch", type=click.IntRange(min=1), help="Batch size.  [default: the model's own, or 1]")
@click.option("--threads", type=click.IntRange(min=1), help="Threads.  [default: cores this process may use]")
@click.option("--trace", metavar="FILE", help="Write one run as a Chrome trace (back end cpu).")
@click.option("--reasons", is_flag=True, help="Also say why each node is where it is.")
@input_shapes_option
@seed_option
@json_option
@verbosity_options
def profile(
    path: str,
    backend: str,
    batch: int | None,
    threads: int | None,
    trace: str | None,
    reasons: bool,
    input_shapes: tuple[tuple[str, tuple[int, ...]], ...],
    seed: int,
    json_path: str | None,
    verbosity: int,
) -> None:
    """Time each node of MODEL, and say which kernel ran it.

    GFLOP/s count multiplications and additions of non-zero weights; the peak is what the same threads reach if they do
    nothing else. Inputs are random.

    \b
    sift-onnx profile wide.onnx --batch 64 --reasons
    """
    shapes = parse_input_shapes(input_shapes)
    inputs = graph_inputs(Model.load(path).origin)
    concrete = resolve_shapes(inputs, batch, shapes)
    feeds = random_feeds(inputs, batch, shapes, seed)
    with status_line(f"profiling {path}", verbosity):
        program = get_backend(backend).compile(path, CompileOptions(threads, batch, shapes))
        measured = program.profile(feeds)
    result: dict[str, Any] = {
        "schema": 1,
        "host": host(),
        "model": path,
        "backend": backend,
        "batch": batch_of(inputs, concrete),
        "threads": program.threads,
        "peak_gflops": getattr(program, "peak_gflops", None),
        **measured.to_dict(),
        "placements": [asdict(placement) for placement in program.placements],
    }
    if trace is not None:
        _write_trace(program, feeds, trace, backend)
    if json_path is not None:
        write_json(result, json_path)
    if json_path != "-":
        console = stdout_console()
        console.print(nodes_table(result))
        if reasons:
            for line in placement_lines(result):
                console.print(line, markup=False, soft_wrap=True)
        console.print(summary_line(result), markup=False, soft_wrap=True)


def _write_trace(program: Any, feeds: Any, path: str, backend: str) -> None:
    from sift_onnx.backends.cpu.program import CpuProgram
    from sift_onnx.backends.cpu.trace import trace_events

    if not isinstance(program, CpuProgram):
        raise UnsupportedError(f"--trace needs --backend cpu; {backend!r} records no times per node")
    _, times = program.run_timed(feeds)
    try:
        Path(path).write_text(json.dumps(trace_events(program, times)), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write the trace to {path!r} (--trace): {error.strerror}") from error
