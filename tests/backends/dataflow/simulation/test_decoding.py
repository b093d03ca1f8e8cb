"""Generation on a machine: sums of steps, phases, and what is compared with what."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import onnx
import pytest
from dataflow_cases import grid
from decoder_nets import DEPTH, HEADS, KV_HEADS, LAYERS, decoder

import sift_onnx
from sift_onnx.backends.dataflow.machines.preset_files import load_machine
from sift_onnx.backends.dataflow.simulation.heat import heat_maps
from sift_onnx.backends.dataflow.simulation.simulator import Settings, run
from sift_onnx.backends.dataflow.workloads.decoding import DecodeWorkload, lower_decoding
from sift_onnx.errors import UnsupportedError, UsageError

PROMPT, TOKENS = 5, 6
STEPS = TOKENS - 1


@cache
def workload() -> DecodeWorkload:
    return lower_decoding(decoder("llama"), (PROMPT, TOKENS))


# One operation a cycle: cycles are counts.
COUNTING = replace(load_machine("ideal"), macs_per_cycle=1.0)


def test_steps_add_up_to_a_closed_form() -> None:
    decoded = sift_onnx.simulate(workload(), COUNTING).decoded
    weights = sum(product.pattern.nnz for product in workload().first.products)
    keys = sum(PROMPT + step + 1 for step in range(STEPS))
    by_kind = {kind: sum(la.cycles for la in decoded.steps.layers if la.kind == kind) for kind in ("matmul", "product")}
    assert by_kind["matmul"] == STEPS * weights
    assert by_kind["product"] == LAYERS * 2 * HEADS * DEPTH * keys
    products = sum(layer.cycles for layer in decoded.prefill.layers if layer.kind == "matmul")
    assert products == PROMPT * weights


@pytest.mark.parametrize("machine", [load_machine("wse2"), grid(4, 4), load_machine("systolic-16")])
def test_steps_are_the_sum_of_runs_at_each_length(machine) -> None:
    simulation = sift_onnx.simulate(workload(), machine)
    steps = simulation.decoded.steps
    runs = [
        run(replace(workload().first, weightless=tuple(g.at(step) for g in workload().growing)), machine, Settings())
        for step in range(STEPS)
    ]
    assert steps.cycles == sum(layer.cycles for layers in runs for layer in layers)
    for place, layer in enumerate(steps.layers):
        alone = [layers[place] for layers in runs]
        assert layer.node == alone[0].node
        assert layer.cycles == sum(one.cycles for one in alone)
        assert layer.macs == sum(one.macs for one in alone)
        assert layer.energy_j == pytest.approx(sum(one.energy_j for one in alone))
        assert sum(layer.limits.values()) == pytest.approx(layer.cycles)
    assert simulation.cycles == simulation.decoded.prefill.cycles + steps.cycles


def test_phases_say_what_a_token_reads_and_writes() -> None:
    simulation = sift_onnx.simulate(workload(), "wse2")
    decode = simulation.to_dict()["decode"]
    prefill, step, whole = decode["phases"]
    machine = simulation.machine
    nnz = sum(product.pattern.nnz for product in workload().first.products)
    weights = nnz * (machine.edge_index_bytes + machine.edge_value_bytes)
    token = LAYERS * 2 * KV_HEADS * DEPTH * machine.value_bytes
    assert step["weight_bytes"] == prefill["weight_bytes"] == weights
    assert step["cache_written_bytes"] == token
    assert step["cache_read_bytes"] == token * np.mean([PROMPT + step + 1 for step in range(STEPS)])
    assert prefill["cache_read_bytes"] == prefill["cache_written_bytes"] == PROMPT * token
    assert decode["cache_bytes"] == (PROMPT + STEPS) * token
    assert decode["steps"] == STEPS
    assert decode["first_seconds"] == prefill["seconds"]
    assert decode["tokens_per_second"] == pytest.approx(1 / step["seconds"])
    for name in ("cycles", "energy_j", "weight_bytes", "cache_read_bytes", "cache_written_bytes"):
        assert whole[name] == pytest.approx(prefill[name] + STEPS * step[name])
    assert whole["cycles"] == simulation.to_dict()["totals"]["cycles"]


def filled(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same without a zero among its weights."""
    for tensor in model.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.ndim == 2:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.where(values, values, np.float32(0.5)), tensor.name))
    return model


def test_sparse_weights_make_steps_faster_and_dense_ones_none() -> None:
    sparse = sift_onnx.simulate(
        decoder("llama"), "stonne-1ms", decode=(PROMPT, TOKENS), baseline=filled(decoder("llama"))
    )
    dense = sift_onnx.simulate(filled(decoder("llama")), "stonne-1ms", decode=(PROMPT, TOKENS))
    assert dense.vs_dense_wide.value == dense.decoded.steps.vs_dense_wide.value == 1
    steps, whole = sparse.decoded.steps, sparse.decoded.whole
    assert steps.vs_dense_wide.value == dense.decoded.steps.cycles / steps.cycles > 1.5
    assert steps.vs_dense_original.value == steps.vs_dense_wide.value
    assert whole.vs_dense_wide == sparse.vs_dense_wide
    assert sparse.vs_dense_wide.value == dense.cycles / sparse.cycles


def test_maps_of_the_grid_add_up_to_the_busy_cycles() -> None:
    machine = grid(6, 4)
    simulation = sift_onnx.simulate(workload(), machine)
    busy, _ = heat_maps(simulation)
    assert busy.values.mean() * simulation.cycles == pytest.approx(sum(la.mean_busy_cycles for la in simulation.layers))


def test_a_cache_that_does_not_fit_is_refused() -> None:
    small = grid(2, 2, sram_bytes=1200.0, sram_reserved_bytes=200.0)
    with pytest.raises(UnsupportedError, match=r"a cache of .* GB of .* take .* in each of 4 cores.*fewer sequences"):
        sift_onnx.simulate(lower_decoding(decoder("llama"), (20, 20)), small)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"training": True}, "leave `training` or `decode` out"),
        ({"fidelity": "functional"}, "leave `decode` out"),
    ],
)
def test_what_is_not_about_steps_is_refused(settings, said) -> None:
    with pytest.raises(UsageError, match=said):
        sift_onnx.simulate(decoder("llama"), "wse2", decode=(4, 4), **settings)


def test_a_model_that_generates_is_compared_with_one_that_does() -> None:
    with pytest.raises(UsageError, match="generates tokens, and the baseline"):
        sift_onnx.simulate(workload(), "wse2", baseline=workload().first)
    with pytest.raises(UsageError, match="only sizes are known; leave `decode` out"):
        sift_onnx.simulate(workload(), "wse2", decode=(4, 4))
