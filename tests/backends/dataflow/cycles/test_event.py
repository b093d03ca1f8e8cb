"""The event-driven model: exact where it must equal the fast one, and how far apart they are elsewhere."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from dataflow_cases import grid, machines, masks, product, random_cases
from hypothesis import given
from hypothesis import strategies as st

from sift_onnx.backends.dataflow.cycles.event import simulate_product_by_events
from sift_onnx.backends.dataflow.cycles.fast import axpy_cycles, simulate_product
from sift_onnx.backends.dataflow.cycles.mapping import map_product
from sift_onnx.errors import UnsupportedError

CASES = 240


def bounds_hold(task, machine, layer):
    mapping = map_product(task, machine)
    axpy, _ = axpy_cycles(machine, mapping.tokens_per_core, sparse=True)
    rows, columns = task.pattern.map.rows, mapping.columns_used
    _, column = task.pattern.map.locate(task.pattern.indices)
    compute = np.bincount(mapping.shard[column], minlength=columns).max() * axpy + rows * machine.row_overhead
    assert layer.cycles >= compute
    assert layer.cycles >= 4 * task.pattern.nnz / machine.edge_bytes_per_cycle
    if mapping.reduced:
        owned = np.bincount(np.arange(rows) * columns // rows, minlength=columns)
        words = math.ceil(mapping.tokens_per_core * machine.partial_sum_bytes / machine.link_bytes)
        assert layer.cycles >= (rows - owned.min()) * words


@given(masks(), st.integers(1, 40), machines(columns=1, rows=1))
def test_one_core_takes_what_the_fast_model_says(mask, tokens, machine):
    machine = replace(machine, edge_bytes_per_cycle=136.0)  # one link carries no more than that
    task = product(mask, tokens)
    assert simulate_product_by_events(task, machine).cycles == simulate_product(task, machine).cycles


@given(masks(), st.integers(1, 40), machines(), st.sampled_from(["forward", "weight_gradient"]))
def test_no_bound_is_broken(mask, tokens, machine, step):
    task = product(mask, tokens, step=step)
    layer = simulate_product_by_events(task, machine)
    bounds_hold(task, machine, layer)
    assert layer.stall_cycles >= 0
    assert 0 <= layer.utilization <= 1


def test_the_fast_model_is_near_the_event_driven_one_on_random_cases():
    errors = []
    for task, machine in random_cases(CASES):
        fast, event = simulate_product(task, machine), simulate_product_by_events(task, machine)
        bounds_hold(task, machine, event)
        if machine.cores == 1:
            assert event.cycles == fast.cycles
        else:
            errors.append(event.cycles / fast.cycles - 1)
    low, median, high = np.percentile(errors, (5, 50, 95))
    assert len(errors) >= 200
    assert -0.25 < low < median < high < 0.15
    assert abs(median) < 0.08


def test_a_full_queue_holds_back_the_whole_column():
    # Of two cores one above the other, both get every wavelet; a queue never holds more than its depth.
    task = product(np.ones((4, 8)), 16)
    layer = simulate_product_by_events(task, grid(1, 2, queue_words=2))
    assert set(layer.events.queue_peaks) == {(0, 0), (0, 1)}
    assert max(layer.events.queue_peaks.values()) == 2


def test_busy_time_in_the_log_is_the_reported_one():
    task = product(np.random.default_rng(1).random((12, 20)) < 0.4, 30)
    layer = simulate_product_by_events(task, grid(4, 3, row_overhead=2.0))
    per_core = {}
    for x, y, begin, end in layer.events.busy:
        per_core[x, y] = per_core.get((x, y), 0) + end - begin
    assert per_core == layer.events.busy_cycles
    assert max(per_core.values()) == layer.busy_cycles
    assert sum(per_core.values()) == pytest.approx(layer.mean_busy_cycles * 12)


def test_runs_of_a_core_do_not_overlap():
    task = product(np.random.default_rng(2).random((10, 10)) < 0.5, 20)
    log = simulate_product_by_events(task, grid(2, 2)).events
    for core in log.busy_cycles:
        runs = sorted((begin, end) for x, y, begin, end in log.busy if (x, y) == core)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(runs))


def test_the_log_counts_what_it_drops():
    task = product(np.ones((4, 8)), 4)
    log = simulate_product_by_events(task, grid(2, 2)).events
    capped = type(log)(limit=1)
    for x, y, begin, end in log.busy:
        capped.add_busy((x, y), begin, end)
    assert len(capped.busy) == 1
    assert capped.dropped == len(log.busy) - 1
    assert capped.busy_cycles == log.busy_cycles


def test_a_large_grid_is_refused():
    with pytest.raises(UnsupportedError, match="up to 16x16"):
        simulate_product_by_events(product(np.ones((2, 2)), 2), grid(17, 2))


def test_a_large_layer_is_refused():
    with pytest.raises(UnsupportedError, match="choose fast"):
        simulate_product_by_events(product(np.ones((1000, 100)), 100_000), grid(2, 2, sram_bytes=1e12))
