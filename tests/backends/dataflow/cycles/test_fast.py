"""What must hold of the fast cycle model whatever the machine and the mask."""

import math
from dataclasses import replace

import numpy as np
import pytest
from dataflow_cases import grid, machines, masks, product
from hypothesis import assume, given
from hypothesis import strategies as st

from sift_onnx.backends.dataflow.cycles.fast import RowCosts, axpy_cycles, simulate_product, window_limits
from sift_onnx.backends.dataflow.cycles.mapping import map_product
from sift_onnx.backends.dataflow.workloads.pattern import FullPattern, ShardCounts
from sift_onnx.errors import UnsupportedError

tokens_of = st.integers(1, 40)


def cycles(mask, tokens, machine):
    return simulate_product(product(mask, tokens), machine).cycles


@given(masks(), tokens_of, st.sampled_from([1, 4, 8]))
def test_one_core_without_overheads_takes_its_vector_steps(mask, tokens, lanes):
    # Wider units at the same ports would be bound by SRAM.
    machine = grid(1, 1, simd_lanes=lanes, edge_bytes_per_cycle=math.inf, sram_port_bytes=math.inf)
    assert cycles(mask, tokens, machine) == max(1, np.count_nonzero(mask) * -(-tokens // lanes))


@given(masks(), tokens_of, machines(), st.integers(0, 100))
def test_multiply_accumulates_do_not_depend_on_grid_window_or_order(mask, tokens, machine, seed):
    shuffled = np.random.default_rng(seed).permutation(mask.reshape(-1)).reshape(mask.shape)
    for some in (mask, shuffled):
        assert simulate_product(product(some, tokens), machine).macs == np.count_nonzero(mask) * tokens


@given(masks(), tokens_of, machines())
def test_cycles_reach_each_bound_and_nothing_is_impossible(mask, tokens, machine):
    task = product(mask, tokens)
    mapping = map_product(task, machine)
    layer = simulate_product(task, machine)
    axpy, _ = axpy_cycles(machine, mapping.tokens_per_core, sparse=True)
    per_column = np.bincount(mapping.shard[np.nonzero(mask)[1]], minlength=mapping.columns_used)
    reduce = math.ceil(mapping.tokens_per_core * 2 / 4) * mask.shape[0] if mapping.reduced else 0
    stream = 4 * np.count_nonzero(mask) / machine.edge_bytes_per_cycle
    compute = per_column.max() * axpy + mask.shape[0] * machine.row_overhead
    assert layer.cycles >= max(compute, reduce, stream) - 1e-6
    assert 0 <= layer.utilization <= 1
    assert layer.utilization > 0 or not mask.any()
    assert layer.stall_cycles >= 0
    assert layer.imbalance >= 1
    assert sum(layer.limits.values()) == pytest.approx(layer.cycles)
    assert layer.mean_busy_cycles <= layer.busy_cycles + 1e-6
    assert min(layer.fabric_bytes, layer.sram_bytes, layer.edge_bytes, layer.energy_j) >= 0


@given(masks(), tokens_of, machines(), st.data())
def test_another_non_zero_never_takes_less(mask, tokens, machine, data):
    free = np.flatnonzero(~mask.reshape(-1))
    assume(len(free))
    more = mask.copy().reshape(-1)
    more[data.draw(st.sampled_from(free.tolist()))] = True
    assert cycles(more.reshape(mask.shape), tokens, machine) >= cycles(mask, tokens, machine)


@given(masks(), tokens_of, machines(), st.integers(1, 20))
def test_a_longer_start_up_never_takes_less(mask, tokens, machine, longer):
    slower = replace(machine, axpy_startup=machine.axpy_startup + longer)
    assert cycles(mask, tokens, slower) >= cycles(mask, tokens, machine)


@given(masks(), tokens_of, machines(), st.sampled_from(["edge_bytes_per_cycle", "link_bytes", "sram_port_bytes"]))
def test_less_bandwidth_never_takes_less(mask, tokens, machine, what):
    narrower = replace(machine, **{what: getattr(machine, what) / 2})
    assert cycles(mask, tokens, narrower) >= cycles(mask, tokens, machine)


@given(masks(rows=32), tokens_of, machines(), st.sampled_from([1.0, 2.0, 4.0, 8.0, 16.0]))
def test_a_window_twice_as_wide_never_takes_more(mask, tokens, machine, window):
    narrow, wide = (replace(machine, window_rows=w) for w in (window, 2 * window))
    assert cycles(mask, tokens, wide) <= cycles(mask, tokens, narrow)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 61), st.integers(0, 99))
def test_windows_are_sums_of_their_rows(rows, shards, window, seed):
    counts = np.random.default_rng(seed).integers(0, 2**31, (rows, shards), dtype=np.int32)
    free = RowCosts(1.0, 0.0, 0.0, 0.0, 0.0, 0.0, sram_limited=False)
    limits = window_limits(ShardCounts(counts), free, window, 1.0)
    pieces = [counts[at : at + window].astype(object) for at in range(0, rows, window)]
    assert limits == {"compute": sum(max(sum(piece)) for piece in pieces), "reduce": 0, "stream": 0, "sram": 0}


@given(st.integers(1, 20), st.integers(1, 20), tokens_of, machines())
def test_a_full_csr_weight_equals_a_dense_one_where_their_costs_do(rows, columns, tokens, machine):
    machine = replace(machine, dense_startup=machine.axpy_startup, edge_index_bytes=0.0)
    sparse = product(np.ones((rows, columns)), tokens)
    dense = replace(sparse, pattern=FullPattern(sparse.pattern.map))
    one, other = simulate_product(sparse, machine), simulate_product(dense, machine)
    assert (one.storage, other.storage) == ("csr", "dense")
    assert one.cycles == other.cycles
    assert one.limits == pytest.approx(other.limits)


def test_empty_rows_and_an_empty_matrix_are_fine():
    mask = np.zeros((6, 8))
    assert simulate_product(product(mask, 5), grid(3, 2)).nnz == 0
    mask[2, 3] = 1
    assert simulate_product(product(mask, 5), grid(3, 2)).macs == 5


def test_fewer_features_than_columns_leave_columns_idle():
    layer = simulate_product(product(np.ones((4, 3)), 8), grid(10, 2))
    assert len(layer.column_busy) == 3
    assert layer.utilization < 0.31


def test_fewer_tokens_than_lanes_still_take_a_step():
    assert cycles(np.ones((1, 7)), 1, grid(1, 1)) == 7


def test_an_index_that_is_too_narrow_splits_the_matrix_and_says_so():
    mask = np.ones((4, 32))
    mask[0, 0] = 0
    whole = simulate_product(product(mask, 4), grid(2, 1))
    split = simulate_product(product(mask, 4), grid(2, 1, index_bits=2))
    assert not whole.notes
    assert "streamed in 4 parts" in split.notes[0]
    assert "16 features" in split.notes[0]
    assert split.macs == whole.macs
    assert split.cycles > whole.cycles


def test_tokens_that_do_not_fit_in_sram_take_more_passes_and_say_so():
    task = product(np.eye(64), 4096)
    wide, narrow = grid(2, 2), grid(2, 2, sram_bytes=24_000.0)
    one, many = simulate_product(task, wide), simulate_product(task, narrow)
    assert "weights streamed" in many.notes[0]
    assert many.edge_bytes > one.edge_bytes
    assert many.macs == one.macs
    assert many.utilization <= 1


def test_a_layer_that_does_not_fit_at_all_is_named():
    with pytest.raises(UnsupportedError, match=r"'w' \(node 'mm', forward\) does not fit in SRAM: one token needs"):
        simulate_product(product(np.eye(6000), 1), grid(1, 1, sram_bytes=16_384.0))


def test_narrow_ports_bind_and_are_named():
    fast, slow = (simulate_product(product(np.ones((4, 4)), 64), grid(1, 1, sram_port_bytes=b)) for b in (24.0, 12.0))
    assert (fast.bound, slow.bound) == ("compute", "sram")
    assert slow.cycles == 2 * fast.cycles


def test_the_gradient_of_weights_takes_the_macs_of_the_forward_pass():
    task = product(np.random.default_rng(0).random((12, 12)) < 0.3, 20)
    forward = simulate_product(task, grid(3, 4))
    gradient = simulate_product(replace(task, step="weight_gradient"), grid(3, 4))
    assert gradient.macs == forward.macs
    assert gradient.edge_index_bytes == forward.edge_index_bytes
