"""The phases of a generation: the run on the prompt, and the steps after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sift_onnx.backends.dataflow.cycles.layer_result import BOUNDS, LayerResult
from sift_onnx.backends.dataflow.machines.machine import Machine
from sift_onnx.backends.dataflow.simulation.band import Speedup, speedups_of
from sift_onnx.records.simulate import DecodePhase, SimulatedDecode

__all__ = ["Decoded", "Phase", "utilization_of"]


def utilization_of(layers: Sequence[LayerResult], machine: Machine) -> float:
    """Of all SIMD lanes over all cycles; of what is moved, where nothing is computed."""
    cycles = max(sum(layer.cycles for layer in layers), 1)
    operations = sum(layer.macs for layer in layers)
    if not operations:
        return sum(layer.utilization * layer.cycles for layer in layers) / cycles
    return operations / (cycles * machine.peak_macs_per_cycle)


@dataclass(frozen=True)
class Phase:
    """Some runs of a decoder.

    Attributes:
        layers: sums over the runs.
        weight_bytes: of the weights that are multiplied by, with their indices.
        cache_read: elements of keys and values that are attended to.
        cache_written: elements of keys and values of new tokens.
        vs_dense_wide: as of :class:`~sift_onnx.backends.dataflow.simulation.result.Simulation`.
        vs_dense_original: likewise.
    """

    layers: tuple[LayerResult, ...]
    weight_bytes: float
    cache_read: int
    cache_written: int
    vs_dense_wide: Speedup | None = None
    vs_dense_original: Speedup | None = None

    @property
    def cycles(self) -> int:
        """Sum over the layers, which run one after another."""
        return sum(layer.cycles for layer in self.layers)

    def report(self, name: str, machine: Machine, runs: int = 1) -> DecodePhase:
        """One of ``phases`` of what is reported; the mean over ``runs``."""
        return DecodePhase(
            name=name,
            cycles=self.cycles / runs,
            seconds=self.cycles / runs / machine.clock_hz,
            utilization=utilization_of(self.layers, machine),
            energy_j=sum(layer.energy_j for layer in self.layers) / runs,
            weight_bytes=self.weight_bytes / runs,
            cache_read_bytes=self.cache_read * machine.value_bytes / runs,
            cache_written_bytes=self.cache_written * machine.value_bytes / runs,
            limits={name: sum(layer.limits.get(name, 0.0) for layer in self.layers) / runs for name in BOUNDS},
            speedup=speedups_of(self.vs_dense_wide, self.vs_dense_original),
        )


@dataclass(frozen=True)
class Decoded:
    """A generation of tokens on a machine.

    Attributes:
        prompt: tokens of each prompt.
        tokens: new ones of each sequence, the first of which the run on the prompt gives.
        cache_elements: keys and values in the end.
        prefill: the run on the prompt.
        steps: all runs after it.
        whole: both.
    """

    prompt: int
    tokens: int
    cache_elements: int
    prefill: Phase
    steps: Phase
    whole: Phase

    @property
    def layers(self) -> tuple[LayerResult, ...]:
        """Those of the prompt and those of the steps, which spread their tokens over the grid in other ways."""
        return (*self.prefill.layers, *self.steps.layers)

    def report(self, machine: Machine, batch: int) -> SimulatedDecode:
        """``decode`` of what ``simulate`` reports."""
        steps = self.tokens - 1
        phases = (
            self.prefill.report("prefill", machine),
            self.steps.report("step", machine, steps),
            self.whole.report("whole", machine),
        )
        return SimulatedDecode(
            prompt=self.prompt,
            tokens=self.tokens,
            steps=steps,
            first_seconds=phases[0].seconds,
            tokens_per_second=batch / phases[1].seconds,
            cache_bytes=float(self.cache_elements * machine.value_bytes),
            phases=phases,
        )
