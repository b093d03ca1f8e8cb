"""Simulate the generation of tokens: the run on the prompt, and every step after it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from sift_onnx.backends.dataflow.cycles.layer_result import LayerResult
from sift_onnx.backends.dataflow.cycles.layer_sum import summed
from sift_onnx.backends.dataflow.cycles.weightless import simulate_weightless
from sift_onnx.backends.dataflow.machines.machine import Machine
from sift_onnx.backends.dataflow.simulation.band import Speedup, corners
from sift_onnx.backends.dataflow.simulation.phases import Decoded, Phase
from sift_onnx.backends.dataflow.simulation.result import Simulation
from sift_onnx.backends.dataflow.simulation.simulator import (
    Settings,
    as_dense,
    as_fast,
    ratio_of,
    run,
    weight_bytes,
)
from sift_onnx.backends.dataflow.workloads.decoding import DecodeWorkload, GrowingOp
from sift_onnx.backends.dataflow.workloads.pattern import CountMemory
from sift_onnx.errors import UsageError

__all__ = ["check_of_steps", "simulate_decoding"]

Layers = tuple[LayerResult, ...]
# Of the run on the prompt, of all steps, and of both.
_Ratios = tuple[Speedup | None, Speedup | None, Speedup | None]


def simulate_decoding(
    workload: DecodeWorkload, machine: Machine, settings: Settings | None = None, original: DecodeWorkload | None = None
) -> Simulation:
    """Cycles of a prompt and of every step after it, and speed-ups as :func:`simulate_workload` has them.

    Raises:
        UsageError: see :func:`check_of_steps`.
        UnsupportedError: a layer or the cache does not fit on the machine, or the fidelity not to it.
    """
    settings = settings or Settings()
    check_of_steps(settings)
    count = CountMemory()
    prefill, steps = _layers(workload, machine, settings, count)
    whole = _together(prefill, steps)
    dense = replace(workload, prefill=as_dense(workload.prefill), first=as_dense(workload.first))
    vs_dense = _ratios(workload, dense, machine, settings, count)
    vs_original: _Ratios = (None, None, None)
    if original is not None:
        vs_original = _ratios(workload, original, machine, settings, count)
    weights = [
        times * sum(weight_bytes(product, machine) for product in each.products)
        for each, times in ((workload.prefill, 1), (workload.first, workload.steps))
    ]
    token, prompt = workload.cache_per_token, workload.prompt * workload.cache_per_token
    read, written = (prompt, workload.cache_read_elements), (prompt, workload.steps * token)
    notes = [*workload.prefill.assumptions, *_notes(workload, machine, settings)]
    return Simulation(
        model=workload.name,
        machine=machine,
        batch=workload.batch,
        training=False,
        weights=settings.weights,
        fidelity=settings.fidelity,
        layers=whole,
        uncosted=tuple(dict.fromkeys((*workload.prefill.uncosted, *workload.first.uncosted))),
        notes=tuple(notes),
        vs_dense_wide=vs_dense[2],
        vs_dense_original=vs_original[2],
        decoded=Decoded(
            prompt=workload.prompt,
            tokens=workload.tokens,
            cache_elements=workload.cache_elements,
            prefill=Phase(prefill, weights[0], read[0], written[0], vs_dense[0], vs_original[0]),
            steps=Phase(steps, weights[1], read[1], written[1], vs_dense[1], vs_original[1]),
            whole=Phase(whole, sum(weights), sum(read), sum(written), vs_dense[2], vs_original[2]),
        ),
    )


def check_of_steps(settings: Settings) -> None:
    """Check what steps are simulated with.

    Raises:
        UsageError: a training step, or outputs, are asked for.
    """
    if settings.training:
        raise UsageError("a decoder generates after it was trained; leave `training` or `decode` out")
    if settings.fidelity == "functional":
        raise UsageError("fidelity 'functional' runs a model once; leave `decode` out, or use fidelity 'fast'")


def _notes(workload: DecodeWorkload, machine: Machine, settings: Settings) -> Sequence[str]:
    notes = [
        "keys and values stay in the cores and are spread evenly over them: "
        f"{workload.cache_elements * machine.value_bytes / 1e9:.3g} GB in the end, and room for them from the beginning"
    ]
    if settings.fidelity == "event":
        notes.append("speed-ups are those of the fast model")
    return notes


def _layers(
    workload: DecodeWorkload, machine: Machine, settings: Settings, count: CountMemory
) -> tuple[Layers, Layers]:
    """Of the run on the prompt, and sums over all steps."""
    prefill = run(workload.prefill, machine, settings, count)
    products = run(replace(workload.first, weightless=()), machine, settings, count)
    known: dict[tuple[object, ...], LayerResult] = {}
    growing = (_over_steps(op, machine, known) for op in workload.growing)
    return prefill, (*(summed([(layer, workload.steps)]) for layer in products), *growing)


def _over_steps(growing: GrowingOp, machine: Machine, known: dict[tuple[object, ...], LayerResult]) -> LayerResult:
    """The sum over all steps; operators that differ in name only are simulated once."""
    op = growing.op
    key = (op.op, op.kind, op.ring_passes, op.table_elements, id(growing.counts))
    if key not in known:
        steps = range(len(growing.counts))
        known[key] = summed([(simulate_weightless(growing.at(step), machine), 1) for step in steps])
    return replace(known[key], name=op.node, node=op.node)


def _together(prefill: Layers, steps: Layers) -> Layers:
    """Each layer in both phases as one, in the order of the first; what one of them lacks is as in the other."""
    runs: dict[tuple[str, str, str, int], list[tuple[LayerResult, int]]] = {}
    for phase in (prefill, steps):
        seen: dict[tuple[str, str, str], int] = defaultdict(int)
        for layer in phase:
            key = (layer.name, layer.node, layer.op)
            runs.setdefault((*key, seen[key]), []).append((layer, 1))
            seen[key] += 1
    return tuple(map(summed, runs.values()))


def _ratios(
    workload: DecodeWorkload, other: DecodeWorkload, machine: Machine, settings: Settings, count: CountMemory
) -> _Ratios:
    """How much faster ``workload`` is than ``other``, by the fast model, with bands."""
    fast = as_fast(settings)
    prompts, steps = [], []
    for at in (machine, *corners(machine)):
        own, others = (_cycles(each, at, fast, count) for each in (workload, other))
        prompts.append((own[0], others[0]))
        steps.append((own[1], others[1]))
    both = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(prompts, steps, strict=True)]
    return ratio_of(prompts), ratio_of(steps), ratio_of(both)


def _cycles(workload: DecodeWorkload, machine: Machine, settings: Settings, count: CountMemory) -> tuple[int, int]:
    prefill, steps = _layers(workload, machine, settings, count)
    return sum(layer.cycles for layer in prefill), sum(layer.cycles for layer in steps)
