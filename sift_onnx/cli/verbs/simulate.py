"""``sift-onnx simulate``: how long a machine that skips every zero would take for a model, and why."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sift_onnx.cli.candidates import decoders, files, presets
from sift_onnx.cli.options import (
    FilePath,
    Number,
    PromptAndTokens,
    WrittenPath,
    choice_option,
    count_option,
    file_option,
    force_option,
    full_option,
    input_shapes_option,
    model_argument,
    number_option,
    output_options,
    seed_option,
)
from sift_onnx.cli.output import deliver, note, notes, status_line
from sift_onnx.cli.verb import Verb
from sift_onnx.errors import UsageError

if TYPE_CHECKING:
    from sift_onnx.backends.dataflow.machines.machine import Machine
    from sift_onnx.backends.dataflow.workloads.decoder import Decoder
    from sift_onnx.backends.dataflow.workloads.decoding import DecodeWorkload
    from sift_onnx.backends.dataflow.workloads.workload import Workload


class Grid(click.ParamType[Any]):
    """``16x16``."""

    name = "CxR"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d+)x(\d+)", value)
        if match is None:
            self.fail(f"{value!r} is not of the form 16x16 (columns x rows)", param, ctx)
        return int(match[1]), int(match[2])


@click.command(cls=Verb)
@model_argument("model", type=FilePath(), shell_complete=files(".onnx", ".toml", names=decoders))
@click.option(
    "--preset",
    metavar="NAME|FILE.toml",
    default="wse2",
    show_default=True,
    shell_complete=files(".toml", names=presets),
    help="Machine: a preset, or a TOML file of your own.",
)
@click.option(
    "--grid", type=Grid(), metavar="CxR", help="Another number of cores, columns x rows, all else as in the preset."
)
@count_option("--batch", help="Items processed together.  [default: the model's own, or 1]")
@click.option(
    "--decode",
    type=PromptAndTokens(),
    help="Of a decoder with a cache: a prompt, and then TOKENS new ones, of which each after the first takes a step.",
)
@click.option("--training", is_flag=True, help="A training step: forward, both gradients, mask updates.")
@choice_option(
    "--grow", "random", "gradient", help="How masks grow in training: at random (SET), or by gradient (RigL)."
)
@choice_option(
    "--weights", "streamed", "resident", help="Weights cross the wafer's edge at every use, or stay in SRAM."
)
@choice_option(
    "--fidelity",
    "fast",
    "event",
    "functional",
    help="Cycles from windows of rows, or from every wavelet (grids up to 16x16); functional is fast, and also runs "
    "the model on random inputs and says how far its outputs are from onnxruntime's.",
)
@choice_option(
    "--arithmetic",
    "float32",
    "float16",
    help="Of --fidelity functional; float16 rounds in the order in which weights and partial sums arrive.",
)
@file_option(
    "--baseline",
    completes=files(".onnx"),
    type=FilePath(),
    metavar="MODEL",
    help="The original model, to compare with.",
)
@number_option(
    "--wide",
    Number(min=0, max=1, max_open=True),
    "Of a decoder that is given by its sizes: the sparsity of Sparse Wide, masks sampled.",
    metavar="S",
)
@file_option(
    "--trace", completes=files(".json"), type=WrittenPath(), help="Write a trace for chrome://tracing or Perfetto."
)
@count_option("--max-events", help="Events in the trace at most.", default=200_000, show_default=True)
@file_option("--html", completes=files(".html"), type=WrittenPath(), help="Write a report as one self-contained page.")
@input_shapes_option
@full_option
@seed_option
@force_option
@output_options
def simulate(
    model: str,
    preset: str,
    grid: tuple[int, int] | None,
    batch: int | None,
    decode: tuple[int, int] | None,
    training: bool,
    grow: Any,
    weights: Any,
    fidelity: Any,
    arithmetic: Any,
    baseline: str | None,
    wide: float | None,
    trace: str | None,
    max_events: int,
    html: str | None,
    input_shapes: Any,
    full: bool,
    seed: int,
    force: bool,
    json_path: str | None,
    verbosity: int,
) -> None:
    """Cycles, traffic and energy of MODEL on a dataflow machine that skips every zero weight.

    MODEL is an ONNX file, or a decoder by its sizes: gpt3-1.3b, or a TOML file. All figures are computed by a model of
    the machine and not measured on it; docs/simulator.md has its sources.

    Examples:
        sift-onnx simulate wide.onnx --batch 64 --baseline resnet18.onnx
        sift-onnx simulate wide.onnx --training --html report.html
        sift-onnx simulate gpt3-1.3b --wide 0.9 --preset wse3
        sift-onnx simulate decoder.onnx --decode 512,128
    """
    from msgspec.structs import replace

    from sift_onnx.backends.dataflow.simulation.decoding import check_of_steps
    from sift_onnx.backends.dataflow.simulation.heat import heat_maps
    from sift_onnx.backends.dataflow.simulation.model_simulation import simulate_lowered
    from sift_onnx.backends.dataflow.simulation.simulator import Settings
    from sift_onnx.backends.dataflow.workloads.decoding import DecodeWorkload
    from sift_onnx.backends.dataflow.workloads.training_step import MaskUpdates
    from sift_onnx.model_files.paths import check_input, check_output
    from sift_onnx.records.simulate import PublishedSpeedup
    from sift_onnx.reports.charts.canvas import require_charts
    from sift_onnx.reports.simulate import simulate_tables

    for given in filter(None, (model, baseline)):
        if given.endswith(".onnx") or Path(given).is_dir():
            check_input(Path(given))
    for output in filter(None, (trace, html)):
        check_output(Path(output), force)
    if html is not None:
        require_charts()
    machine = _machine(preset, grid)
    settings = Settings(training, weights, fidelity, MaskUpdates(grow=grow), arithmetic)
    if decode is not None:
        check_of_steps(settings)
        if trace is not None:
            raise UsageError("--trace follows one run, node by node; leave --decode out")
    with status_line(f"simulating {model}", verbosity):
        workload, decoder = _workload(model, batch, wide, input_shapes, seed, decode)
        if decoder is not None and fidelity == "functional":
            raise UsageError(f"--fidelity functional runs a model; of {model} only the sizes are known")
        original = None
        if baseline is not None:
            original = _workload(baseline, workload.batch, None, input_shapes, seed, decode)[0]
        elif decoder is not None and wide:
            original = _workload(model, workload.batch, 0.0, input_shapes, seed, decode)[0]
        simulation = simulate_lowered(workload, machine, settings, original)
        if fidelity == "functional":
            from sift_onnx.backends.dataflow.execution.comparison import execute

            executed = execute(model, machine, batch, input_shapes, seed=seed, arithmetic=arithmetic)
            simulation = dataclasses.replace(simulation, executed=executed)
        report = replace(
            simulation.report(),
            maps=tuple(grid_map.report() for grid_map in heat_maps(simulation)),
            nominal=workload.inputs.nominal,
            assumed=workload.inputs.remarks,
        )
        if decoder is not None and training:
            published = [p for p in decoder.published if (p.wide, p.preset) == (wide, machine.name)]
            report = replace(report, published=tuple(PublishedSpeedup(**vars(p)) for p in published))
    if trace is not None:
        from sift_onnx.backends.dataflow.simulation.trace import write_trace

        written = write_trace(trace, simulation, max_events)
        report = replace(report, trace={"events": written.events, "dropped": written.dropped})
        if written.dropped:
            note(f"{trace}: {written.dropped} events dropped beyond --max-events {max_events}", verbosity)
    if html is not None:
        from sift_onnx.backends.dataflow.simulation.sweep import sparsity_sweep
        from sift_onnx.reports.page.frame import write_page
        from sift_onnx.reports.simulate_page import simulate_page

        if not isinstance(workload, DecodeWorkload):
            with status_line("sweeping sparsities", verbosity):
                sweep = sparsity_sweep(workload, machine, training=training, seed=seed)
            report = replace(report, sweep=sweep)
        write_page(html, simulate_page(report))
    deliver(report, json_path, lambda shown: simulate_tables(shown, full))
    notes(verbosity, workload.inputs.said)


def _machine(preset: str, grid: tuple[int, int] | None) -> Machine:
    from sift_onnx.backends.dataflow.machines.machine import GridMachine, with_grid
    from sift_onnx.backends.dataflow.machines.preset_files import load_machine

    machine = load_machine(preset)
    if grid is None:
        return machine
    if not isinstance(machine, GridMachine):
        raise UsageError(f"{machine.name} has no grid; leave --grid out")
    return with_grid(machine, *grid)


def _workload(
    model: str, batch: int | None, wide: float | None, shapes: Any, seed: int, decode: tuple[int, int] | None
) -> tuple[Workload | DecodeWorkload, Decoder | None]:
    """What the machine is given; the second part is set if it is a decoder that is given by its sizes."""
    from sift_onnx.backends.dataflow.workloads.decoder import (
        available_decoders,
        decoder_steps,
        decoder_workload,
        load_decoder,
    )
    from sift_onnx.backends.dataflow.workloads.decoding import lower_decoding
    from sift_onnx.backends.dataflow.workloads.lowering import lower

    known = available_decoders()
    if model not in known and not model.endswith((".onnx", ".toml")) and not Path(model).exists():
        raise UsageError(f"there is neither a file nor a decoder {model!r}; known decoders: {', '.join(known)}")
    if model.endswith(".toml") or (model in known and not Path(model).exists()):
        if shapes:
            raise UsageError(f"{model} is given by its sizes, which --input-shapes cannot change; use --batch")
        decoder = load_decoder(model)
        if decode is not None:
            return decoder_steps(decoder, decode, wide or 0.0, batch, seed=seed), decoder
        return decoder_workload(decoder, wide or 0.0, batch, seed=seed), decoder
    if wide is not None:
        raise UsageError(f"--wide is for decoders that are given by their sizes; transform {model} --wide first")
    if decode is not None:
        return lower_decoding(model, decode, batch, shapes), None
    return lower(model, batch, shapes), None
