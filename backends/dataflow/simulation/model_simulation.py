"""Simulate a model on a machine, at one of three fidelities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sift_onnx.backends.dataflow.execution.outputs import Arithmetic
from sift_onnx.backends.dataflow.machines.machine import Machine
from sift_onnx.backends.dataflow.machines.preset_files import load_machine
from sift_onnx.backends.dataflow.simulation.decoding import check_of_steps, simulate_decoding
from sift_onnx.backends.dataflow.simulation.result import Simulation
from sift_onnx.backends.dataflow.simulation.simulator import Fidelity, Settings, Weights, simulate_workload
from sift_onnx.backends.dataflow.workloads.decoding import DecodeWorkload, lower_decoding
from sift_onnx.backends.dataflow.workloads.lowering import lower
from sift_onnx.backends.dataflow.workloads.training_step import MaskUpdates
from sift_onnx.backends.dataflow.workloads.workload import Workload
from sift_onnx.errors import UsageError
from sift_onnx.model import ModelLike

__all__ = ["simulate", "simulate_lowered"]


def simulate(
    model: ModelLike | Workload | DecodeWorkload,
    preset: str | Path | Machine = "wse2",
    batch: int | None = None,
    training: bool = False,
    fidelity: Fidelity = "fast",
    *,
    weights: Weights = "streamed",
    baseline: ModelLike | Workload | DecodeWorkload | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    mask_updates: MaskUpdates | None = None,
    arithmetic: Arithmetic = "float32",
    seed: int = 0,
    decode: tuple[int, int] | None = None,
) -> Simulation:
    """How long a machine takes for a model, and why.

    Args:
        model: anything that :meth:`Model.load` takes, or a workload.
        preset: a machine, its name, or a TOML file of one.
        batch: items that are processed together; the model's own, or 1, by default.
        training: simulate a training step instead of inference.
        fidelity: ``fast`` counts windows of rows; ``event`` follows every wavelet, on grids up to 16x16; ``functional``
            is ``fast``, and also runs the model on random inputs.
        weights: ``streamed`` over the wafer's edge at every use, or ``resident`` in SRAM.
        baseline: the original model, to compare with; at the same batch on the same machine.
        input_shapes: sizes of dynamic axes.
        mask_updates: of training; SET every 100 steps by default.
        arithmetic: of ``functional``: ``float32``, or ``float16``, which rounds in the order of arrival.
        seed: of the inputs of ``functional``.
        decode: of a decoder with a cache among its inputs: tokens of a prompt, and new ones. The run on the prompt
            gives the first; each of the others takes a step, whose attention grows with the cache.

    Raises:
        UsageError: a bad machine, batch, input shape or number of tokens; ``functional`` with training, or with a
            workload, which has no weights; or ``decode`` with one of these.
        BackendError: ``functional``, and onnxruntime cannot run the model.
        ModelReadError: the model cannot be read.
        UnsupportedError: a layer does not fit on the machine, or the fidelity not to it.
    """
    machine = load_machine(preset) if isinstance(preset, (str, Path)) else preset
    if not isinstance(machine, Machine):
        raise UsageError(f"{preset!r} is no machine; pass one, its name, or a .toml file")
    settings = Settings(training, weights, fidelity, mask_updates or MaskUpdates(), arithmetic)
    executed = None
    workload: Workload | DecodeWorkload
    if isinstance(model, (Workload, DecodeWorkload)):
        workload = model
        if fidelity == "functional":
            raise UsageError(f"fidelity 'functional' needs a model; of {workload.name} only the sizes are known")
        if decode is not None:
            raise UsageError(f"of {workload.name} only sizes are known; leave `decode` out, or pass a model")
    elif decode is not None:
        check_of_steps(settings)
        workload = lower_decoding(model, decode, batch, input_shapes)
    else:
        workload = lower(model, batch, input_shapes)
        if fidelity == "functional":
            # onnxruntime is loaded where something is going to run.
            from sift_onnx.backends.dataflow.execution.comparison import execute

            executed = execute(model, machine, batch, input_shapes, seed=seed, arithmetic=arithmetic)
    original: Workload | DecodeWorkload | None = None
    if isinstance(baseline, (Workload, DecodeWorkload)):
        original = baseline
    elif baseline is not None and isinstance(workload, DecodeWorkload):
        original = lower_decoding(baseline, (workload.prompt, workload.tokens), workload.batch, input_shapes)
    elif baseline is not None:
        original = lower(baseline, workload.batch, input_shapes)
    return replace(simulate_lowered(workload, machine, settings, original), executed=executed)


def simulate_lowered(
    workload: Workload | DecodeWorkload,
    machine: Machine,
    settings: Settings,
    original: Workload | DecodeWorkload | None = None,
) -> Simulation:
    """As :func:`simulate`, of a model that was lowered, and of the original beside it.

    Raises:
        UsageError: one of both generates tokens, and the other does not.
    """
    if isinstance(workload, DecodeWorkload):
        if isinstance(original, Workload):
            raise UsageError(f"{workload.name} generates tokens, and the baseline {original.name} does not")
        return simulate_decoding(workload, machine, settings, original)
    if isinstance(original, DecodeWorkload):
        raise UsageError(f"the baseline {original.name} generates tokens, and {workload.name} does not")
    return simulate_workload(workload, machine, settings, original)
