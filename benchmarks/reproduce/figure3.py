"""Figure 3 of the paper: what unstructured sparsity saves in time, between the ideal and dense execution."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from outcome import Claim, Experiment, Outcome

import sift_onnx
from sift_onnx.backends.base import CompileOptions, get_backend
from sift_onnx.backends.dataflow.machines.preset_files import load_machine
from sift_onnx.backends.dataflow.simulation.simulator import Settings, simulate_workload
from sift_onnx.backends.dataflow.workloads.decoder import decoder_workload, load_decoder
from sift_onnx.backends.measure import interleave, paired_ratio, summarize
from sift_onnx.models.export import export
from sift_onnx.shapes.random_inputs import random_feeds

__all__ = ["TRAINING", "inference"]

SPARSITIES = ("0.5", "0.75", "0.9")
PAPER_INFERENCE = 5.2  # at 90 %, over dense execution
SECONDS = 4.0


def inference(batch: int) -> Experiment:
    """ResNet-18 on the CPU back end, its weights executed sparse, and by onnxruntime, which executes them dense."""
    return Experiment(partial(_run, batch), partial(_tell_inference, batch))


def _run(batch: int) -> dict[str, Any]:
    values = {}
    with tempfile.TemporaryDirectory() as folder:
        original = Path(folder) / "resnet18.onnx"
        # As trained weights are: no residual branch of zeros.
        export("resnet18", original, batch="dynamic", keep_batch_norm=False, zero_init_residual=False)
        for sparsity in SPARSITIES:
            wide = Path(folder) / f"wide-{sparsity}.onnx"
            sift_onnx.transform(str(original), wide=sparsity).save(wide)
            programs = [
                get_backend(backend).compile(path, CompileOptions())
                for path, backend in ((wide, "cpu"), (wide, "onnxruntime"), (original, "onnxruntime"))
            ]
            feeds = random_feeds(programs[0].inputs, batch)
            timings = interleave([partial(program.run, feeds) for program in programs], seconds=SECONDS)
            own, dense, first = (summarize(timing).median_ms for timing in timings)
            speedup = 1 / paired_ratio(timings[0], timings[1]).median
            over_ideal = paired_ratio(timings[0], timings[2]).median
            values[sparsity] = {
                "ideal_ms": first,
                "ms": own,
                "dense_ms": dense,
                "speedup": speedup,
                "over_ideal": over_ideal,
            }
            wide.unlink()
    return values


def _tell_inference(batch: int, values: dict[str, Any]) -> Outcome:
    rows = []
    for sparsity, own in values.items():
        times = (f"{own[key]:.0f}" for key in ("ideal_ms", "ms", "dense_ms"))
        ratios = (f"{own[key]:.2f}x" for key in ("speedup", "over_ideal"))
        rows.append([f"{float(sparsity):.0%}", *times, *ratios])
    claims = [
        Claim(
            "The time of the sparse models lies between the ideal and dense execution.",
            all(values[s]["speedup"] > 1 and values[s]["over_ideal"] > 1 for s in SPARSITIES),
            "See the table.",
        ),
        _grows(values),
        Claim(
            f"It is {PAPER_INFERENCE}x at 90 %, with DeepSparse on a cloud machine (held to nine tenths).",
            values["0.9"]["speedup"] >= 0.9 * PAPER_INFERENCE,
            f"Here it is {values['0.9']['speedup']:.2f}x, with this project's own runtime.",
            "A sparse product loads an operand for each multiply-add, a dense one uses it for many; how far apart "
            "these are differs between processors and with what else uses the machine.",
        ),
    ]
    what = (
        f"ResNet-18 Sparse Wide, batch {batch}, all cores; medians in ms of programs that take turns. Ideal is the "
        "dense original of as many multiply-accumulates on onnxruntime, dense execution is onnxruntime on the sparse "
        "file."
    )
    header = ("sparsity", "ideal", "CPU back end", "dense execution", "over dense execution", "over ideal")
    ours_ms, dense_ms = ({s: own[key] for s, own in values.items()} for key in ("ms", "dense_ms"))
    # The original takes turns with each sparse model: the line is what it took beside the last.
    draw = _lines(values[SPARSITIES[-1]]["ideal_ms"], ours_ms, dense_ms, "time of a batch, ms")
    return Outcome("figure3-inference", "Figure 3, left: inference on a CPU", what, header, rows, claims, draw)


def _simulate() -> dict[str, Any]:
    decoder, machine = load_decoder("gpt3-1.3b"), load_machine("wse2")
    published = {p.wide: p.speedup for p in decoder.published if p.preset == machine.name}
    values: dict[str, Any] = {}
    for sparsity in SPARSITIES:
        simulation = simulate_workload(decoder_workload(decoder, float(sparsity)), machine, Settings(training=True))
        found = simulation.vs_dense_wide
        assert found is not None
        values[sparsity] = {
            "speedup": found.value,
            "low": found.low,
            "high": found.high,
            "paper": published.get(float(sparsity)),
            "seconds": simulation.seconds,
        }
    original = simulate_workload(decoder_workload(decoder, 0.0), machine, Settings(training=True))
    return values | {"original_seconds": original.seconds}


def _tell_training(values: dict[str, Any]) -> Outcome:
    rows = []
    for sparsity in SPARSITIES:
        own = values[sparsity]
        paper = f"{own['paper']:g}x" if own["paper"] else "in the figure only"
        band = f"{own['low']:.2f}x to {own['high']:.2f}x"
        rows.append([f"{float(sparsity):.0%}", f"{own['speedup']:.2f}x", band, paper])
    at_90 = values["0.9"]
    claims = [
        _grows(values),
        Claim(
            f"It is {at_90['paper']}x at 90 %.",
            None,
            f"{at_90['speedup']:.2f}x, in a band from {at_90['low']:.2f}x to {at_90['high']:.2f}x.",
            "A parameter of the machine that is not published was fitted to this very figure, so that the two agree "
            "says nothing; the band runs over such parameters.",
        ),
    ]
    what = (
        "GPT-3 1.3B Sparse Wide, sequence 256, batch 528, a training step on the simulator's preset `wse2` over the "
        "same model without zeros; the band runs over parameters of the machine that are not published."
    )
    header = ("sparsity", "simulated", "band", "paper")
    times = {s: values[s]["seconds"] for s in SPARSITIES}
    dense = {s: times[s] * values[s]["speedup"] for s in SPARSITIES}
    draw = _lines(values["original_seconds"], times, dense, "seconds of a step")
    return Outcome("figure3-training", "Figure 3, right: training on hardware", what, header, rows, claims, draw)


# Training steps of GPT-3 1.3B on the simulated machine.
TRAINING = Experiment(_simulate, _tell_training)


def _grows(values: Mapping[str, Mapping[str, Any]]) -> Claim:
    speedups = [values[s]["speedup"] for s in SPARSITIES]
    evidence = ", ".join(f"{value:.2f}x" for value in speedups) + "."
    return Claim("The speed-up over dense execution grows with sparsity.", speedups == sorted(speedups), evidence)


def _lines(ideal: float, ours: Mapping[str, float], dense: Mapping[str, float], unit: str) -> Callable[[Any], None]:
    """The paper's three lines."""

    def draw(figure: Any) -> None:
        axis = figure.subplots()
        x: Sequence[float] = [100 * float(s) for s in ours]
        axis.axhline(ideal, color="black", linestyle=":", label="ideal: the dense original")
        axis.plot(x, list(dense.values()), "o-", color="C0", label="sparse model, executed dense")
        axis.plot(x, list(ours.values()), "o-", color="C2", label="sparse model, executed sparse")
        axis.set_xticks(x, [f"{value:.0f}%" for value in x])
        axis.set_xlabel("sparsity")
        axis.set_ylabel(unit)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.legend()

    return draw
