"""Cycles of a workload on a machine, layer by layer, and what they are compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from sift_onnx.backends.dataflow.cycles.event import simulate_product_by_events
from sift_onnx.backends.dataflow.cycles.fast import simulate_product
from sift_onnx.backends.dataflow.cycles.layer_result import Bound, LayerResult
from sift_onnx.backends.dataflow.cycles.weightless import simulate_weightless
from sift_onnx.backends.dataflow.cycles.without_grid import simulate_product_without_grid
from sift_onnx.backends.dataflow.execution.outputs import Arithmetic
from sift_onnx.backends.dataflow.machines.machine import PICOJOULE, GridMachine, Machine
from sift_onnx.backends.dataflow.simulation.band import Speedup, band_of, corners
from sift_onnx.backends.dataflow.simulation.result import Simulation
from sift_onnx.backends.dataflow.workloads.pattern import CountMemory, FullPattern, identity_of
from sift_onnx.backends.dataflow.workloads.training_step import (
    MaskUpdates,
    backward_weightless,
    dense_gradient,
    gradient_products,
    mask_update_bytes,
)
from sift_onnx.backends.dataflow.workloads.workload import SparseProduct, Workload, subject_of
from sift_onnx.errors import UnsupportedError, UsageError

__all__ = ["Fidelity", "Settings", "Weights", "run", "simulate_workload", "weight_bytes"]

Fidelity = Literal["functional", "fast", "event"]
Weights = Literal["streamed", "resident"]
ProductModel = Callable[[SparseProduct], LayerResult]


@dataclass(frozen=True)
class Settings:
    """How a workload is run.

    Attributes:
        training: add the backward pass and mask updates.
        weights: ``streamed`` over the wafer's edge at every use, or ``resident`` in SRAM.
        fidelity: whose cycles: ``event`` follows every wavelet, on grids up to 16x16; ``fast`` counts windows of rows,
            and ``functional`` does so too.
        mask_updates: of training.
        arithmetic: of ``functional``: ``float32``, or ``float16`` in the order of arrival.

    Raises:
        UsageError: an unknown value, or values that contradict each other.
    """

    training: bool = False
    weights: Weights = "streamed"
    fidelity: Fidelity = "fast"
    mask_updates: MaskUpdates = field(default_factory=MaskUpdates)
    arithmetic: Arithmetic = "float32"

    def __post_init__(self) -> None:
        if self.weights not in ("streamed", "resident"):
            raise UsageError(f"weights cannot be {self.weights!r}; choose streamed or resident")
        if self.fidelity not in ("functional", "fast", "event"):
            raise UsageError(f"no fidelity {self.fidelity!r}; choose functional, fast or event")
        if self.arithmetic not in ("float32", "float16"):
            raise UsageError(f"no arithmetic {self.arithmetic!r}; choose float32 or float16")
        if self.arithmetic != "float32" and self.fidelity != "functional":
            raise UsageError(f"fidelity {self.fidelity!r} computes no outputs; choose functional for {self.arithmetic}")
        if self.training and self.fidelity == "functional":
            raise UsageError("fidelity 'functional' runs the forward pass; leave training out")


def simulate_workload(
    workload: Workload, machine: Machine, settings: Settings | None = None, original: Workload | None = None
) -> Simulation:
    """Cycles of ``workload``, and its speed-ups over the same model with no zeros and over ``original``.

    Raises:
        UnsupportedError: a layer does not fit on the machine, or the fidelity not to it.
    """
    settings = settings or Settings()
    count = CountMemory()
    layers = run(workload, machine, settings, count)
    notes = list(workload.assumptions)
    if settings.training:
        notes.append(
            "activations of the forward pass are taken to be at hand in the backward pass, at no cost: "
            f"{activation_bytes(workload, machine) / 1e9:.3g} GB of them"
        )
    if settings.fidelity == "event":
        notes.append("speed-ups are those of the fast model")
    return Simulation(
        model=workload.name,
        machine=machine,
        batch=workload.batch,
        training=settings.training,
        weights=settings.weights,
        fidelity=settings.fidelity,
        layers=layers,
        uncosted=workload.uncosted,
        notes=tuple(notes),
        vs_dense_wide=speedup(workload, as_dense(workload), machine, settings, count),
        vs_dense_original=None if original is None else speedup(workload, original, machine, settings, count),
    )


def speedup(
    workload: Workload, other: Workload, machine: Machine, settings: Settings, count: CountMemory
) -> Speedup | None:
    """How much faster ``workload`` is than ``other``, with a band over what is unknown of the machine.

    Both are run by the fast model: this is about the machine, not about one run of it. None if one of them takes no
    time.
    """
    fast = as_fast(settings)
    return ratio_of([
        (_cycles(workload, at, fast, count), _cycles(other, at, fast, count)) for at in (machine, *corners(machine))
    ])  # fmt: skip


def as_fast(settings: Settings) -> Settings:
    """The same by the fast model."""
    return replace(settings, fidelity="fast", arithmetic="float32")


def ratio_of(cycles: Sequence[tuple[int, int]]) -> Speedup | None:
    """The speed-up from cycles of a model and of another one, of the machine and of its corners."""
    if not all(all(pair) for pair in cycles):  # a model without work
        return None
    ratio, *band = [others / own for own, others in cycles]
    return band_of(ratio, band)


def as_dense(workload: Workload) -> Workload:
    """The same model with no zeros, every weight streamed in order."""
    return replace(workload, products=tuple(replace(p, pattern=FullPattern(p.pattern.map)) for p in workload.products))


def activation_bytes(workload: Workload, machine: Machine) -> int:
    """What the inputs of all weighted layers take, which the gradients of the weights need."""
    return sum(p.pattern.map.columns * p.tokens * p.sequential * machine.value_bytes for p in workload.products)


def _cycles(workload: Workload, machine: Machine, settings: Settings, count: CountMemory) -> int:
    return sum(layer.cycles for layer in run(workload, machine, settings, count))


def run(
    workload: Workload, machine: Machine, settings: Settings, count: CountMemory | None = None
) -> tuple[LayerResult, ...]:
    """All layers in the order in which they are executed.

    Args:
        workload: what is run.
        machine: what it runs on.
        settings: how.
        count: keeps counts for further runs of the same workload on grids of the same width.

    Raises:
        UnsupportedError: a layer does not fit.
    """
    model = _once_each(_product_model(workload, machine, settings, count or CountMemory()))
    layers = [model(product) for product in workload.products]
    layers += [simulate_weightless(op, machine) for op in workload.weightless]
    if settings.training:
        layers += list(_backward(workload, machine, settings, model))
    return tuple(layers)


def _once_each(model: ProductModel) -> ProductModel:
    """Products that differ in name only are simulated once."""
    known: dict[tuple[object, ...], LayerResult] = {}

    def simulated(product: SparseProduct) -> LayerResult:
        key = (*identity_of(product.pattern), product.step, product.tokens, product.sequential)
        if key not in known:
            known[key] = model(product)
        return replace(known[key], name=product.name, node=product.node, op=product.op, kind=product.kind)

    return simulated


def _product_model(workload: Workload, machine: Machine, settings: Settings, count: CountMemory) -> ProductModel:
    if not isinstance(machine, GridMachine):
        if settings.fidelity == "event":
            raise UnsupportedError(f"{machine.name} has no grid, which fidelity 'event' needs; choose fast")
        return partial(simulate_product_without_grid, machine=machine)
    resident = settings.weights == "resident"
    held = _held_bytes(workload, machine, resident)
    if settings.fidelity == "event":
        return partial(simulate_product_by_events, machine=machine, resident=resident, resident_bytes=held)
    return partial(simulate_product, machine=machine, resident=resident, resident_bytes=held, count=count)


def weight_bytes(product: SparseProduct, machine: Machine) -> float:
    """What the weights of a product take, with their indices."""
    if isinstance(machine, GridMachine):
        index, value = machine.edge_index_bytes, machine.edge_value_bytes
    else:
        index = value = float(machine.value_bytes)
    return product.pattern.nnz * (value + (index if product.is_sparse else 0.0))


def _held_bytes(workload: Workload, machine: GridMachine, resident: bool) -> float:
    """What stays in each core while the model runs, spread evenly: a cache, and weights if they are resident."""
    products = {product.name: product for product in reversed(workload.products)}
    weights = sum(weight_bytes(product, machine) for product in products.values()) if resident else 0.0
    cache = float(workload.cache_elements * machine.value_bytes)
    per_core = (weights + cache) / machine.cores
    room = machine.sram_bytes - machine.sram_reserved_bytes
    if per_core and per_core >= room:
        taken = [f"{what} of {size / 1e9:.3g} GB" for what, size in (("weights", weights), ("a cache", cache)) if size]
        ways = ["stream the weights (`weights='streamed'`)"] if weights else []
        ways += ["generate fewer sequences or tokens"] if cache else []
        raise UnsupportedError(
            f"{' and '.join(taken)} of {workload.name} stay in SRAM and take {per_core:.0f} bytes in each of "
            f"{machine.cores} cores, which have {room:.0f}; {' or '.join(ways)}"
        )
    return per_core


def _backward(workload: Workload, machine: Machine, settings: Settings, model: ProductModel) -> Iterator[LayerResult]:
    updates = settings.mask_updates
    for product in reversed(workload.products):
        for gradient in gradient_products(product):
            yield model(gradient)
        if product.is_sparse and isinstance(machine, GridMachine):
            update = _mask_update(product, machine, updates, model)
            if update is not None:
                yield update
    for op in backward_weightless(workload):
        yield simulate_weightless(op, machine)


def _mask_update(
    product: SparseProduct, machine: GridMachine, updates: MaskUpdates, model: ProductModel
) -> LayerResult | None:
    """What mask updates add to one step, on average over the steps between two of them; None if that is nothing."""
    index_bytes, value_bytes = machine.edge_index_bytes, machine.edge_value_bytes
    moved = mask_update_bytes(product, updates, index_bytes, value_bytes)
    cycles = moved / machine.edge_bytes_per_cycle
    shares: Mapping[Bound, float] = {"stream": 1.0}
    if updates.grow == "gradient":
        # The whole gradient takes the place of that at the mask.
        whole, masked = model(dense_gradient(product)), model(replace(product, step="weight_gradient"))
        cycles += max(0, whole.cycles - masked.cycles) / updates.every
        moved += (whole.edge_value_bytes - masked.edge_value_bytes) / updates.every
        shares = whole.limits
    if not moved:
        return None
    whole_cycles = max(1, math.ceil(cycles))
    split, total = index_bytes / (index_bytes + value_bytes), sum(shares.values())
    idle = machine.cores * machine.core_cycle_pj * machine.idle_fraction * PICOJOULE
    return LayerResult(
        **subject_of(replace(product, step="mask_update", tokens=0)),
        cycles=whole_cycles,
        limits={name: value / total * whole_cycles for name, value in shares.items()},
        busy_cycles=0.0,
        mean_busy_cycles=0.0,
        # Of the cycles that it is given, which are whole ones; where the edge is free, of nothing to speak of.
        utilization=cycles / whole_cycles if cycles else 1.0 / machine.cores,
        edge_index_bytes=moved * split,
        edge_value_bytes=moved * (1 - split),
        idle_energy_j=whole_cycles * idle,
        edge_energy_j=moved * machine.edge_byte_pj * PICOJOULE,
        notes=(f"mean over {updates.every} steps, {updates.drop_fraction:.0%} dropped and grown ({updates.grow})",),
    )
