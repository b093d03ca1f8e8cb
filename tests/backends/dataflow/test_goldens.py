"""Cycle counts of other simulators and of fitted kernels."""

import numpy as np
import pytest
from dataflow_cases import linear, product
from hypothesis import given
from hypothesis import strategies as st

from sift_onnx.backends.dataflow import simulate
from sift_onnx.backends.dataflow.cycles.fast import simulate_product
from sift_onnx.backends.dataflow.machines.machine import with_grid
from sift_onnx.backends.dataflow.machines.preset_files import load_machine


def mask_of(rows, columns, nnz, seed=0):
    mask = np.zeros(rows * columns, np.float32)
    mask[np.random.default_rng(seed).choice(rows * columns, nnz, replace=False)] = 1
    return mask.reshape(rows, columns)


def test_stonne_takes_3113_cycles_for_337_non_zeros_of_16x100_times_8_columns():
    simulation = simulate(linear(mask_of(16, 100, 337)), "stonne-1ms", batch=8)
    (layer,) = simulation.layers
    assert (layer.nnz, layer.rows, layer.columns, layer.tokens) == (337, 16, 100, 8)
    assert layer.cycles == 3113


@given(st.integers(1, 20), st.integers(1, 30), st.integers(1, 40), st.data())
def test_stonne_counts_are_met_exactly(rows, columns, tokens, data):
    nnz = data.draw(st.integers(0, rows * columns))
    layer = simulate_product(product(mask_of(rows, columns, nnz), tokens), load_machine("stonne-1ms"))
    assert layer.cycles == nnz * (tokens + 1) + 5 * rows


@pytest.mark.parametrize(("kept", "of", "cycles"), [(10, 10, 7039), (5, 10, 3959), (1, 4, 1759), (1, 10, 879)])
def test_scale_sim_counts_of_structured_sparsity_are_met(kept, of, cycles):
    # SCALE-Sim drops the same input features for every output feature.
    weight = np.ones((64, 256), np.float32) * (np.arange(256) % of < kept)
    simulation = simulate(linear(weight), "systolic-16", batch=64)
    assert simulation.cycles == cycles


@pytest.mark.parametrize("tokens", [4, 16, 32, 100, 256])
@pytest.mark.parametrize(("rows", "nnz"), [(8, 40), (16, 200), (16, 16)])
def test_sdk_kernels_are_met_within_two_percent(tokens, rows, nnz):
    machine = with_grid(load_machine("wse2-sdk"), 1, 1)
    layer = simulate_product(product(mask_of(rows, 16, nnz), tokens), machine)
    fitted = nnz * (33 + 1.27 * tokens) + 65 * rows  # CSR kernels of SpMM_Cerebras
    assert layer.cycles == pytest.approx(fitted, rel=0.02)


def test_ideal_hardware_takes_time_in_proportion_to_non_zeros():
    machine = load_machine("ideal")
    dense, sparse = (simulate(linear(mask_of(512, 512, nnz)), machine, batch=2**14) for nnz in (2**18, 2**16))
    assert dense.cycles / sparse.cycles == pytest.approx(4, rel=0.01)
