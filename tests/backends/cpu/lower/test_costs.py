"""Estimates: what they grow with, and what a request's sizes do to them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from sparse_nets import SparseNet

from sift_onnx.backends.cpu.lower import costs
from sift_onnx.backends.cpu.lower.costs import Estimate, plan_estimate, region_estimate, step_work
from sift_onnx.backends.cpu.lower.profitability import Setting, is_certain, sizes_to_expect, why_not_profitable
from sift_onnx.backends.cpu.lower.rates import Entry, Grid, Rates
from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.rules import Step
from sift_onnx.backends.lowering.specs import Attention, Conv, Elementwise, Geometry, Matmul, Recurrent, Reshaped
from sift_onnx.backends.lowering.weights import Reading, WeightMatrix
from sift_onnx.model import Model

KINDS = ("product", "small product", "attention", "pointwise", "window", "window in lanes")


def side(gflops, gigabytes, step=0.0, call=0.0, turn=0.0):
    flops = {kind: Grid((1.0,), (1.0,), ((gflops,),)) for kind in KINDS}
    nbytes = {kind: Grid((1.0,), (1.0,), ((gigabytes,),)) for kind in ("elementwise", "activation", "border", "memory")}
    return Entry("avx512", 1, 100.0, flops, nbytes, step, call, turn)


RATES = Rates(side(50.0, 10.0), side(100.0, 10.0))


def weights(rows, columns, density):
    constant = gs.Constant("w", np.zeros((1,), np.float32))
    return WeightMatrix(constant, rows, columns, reading=Reading(round(density * rows * columns)))


def product(density, source="x", result="y", rows=100, columns=100):
    return Step(Matmul(weights(rows, columns, density), None), (source,), result, "rows", "rows", (0,))


def convolution(density, kernel=3):
    geometry = Geometry((kernel, kernel), pads=(kernel // 2,) * 4)
    spec = Conv(weights(10, 10 * kernel * kernel, density), None, geometry)
    return Step(spec, ("x",), "y", "image", "image", (0,))


def test_kernels_skip_zeros_and_onnxruntime_does_not():
    found = region_estimate([product(0.1)], {"x": (5, 100)}, ["y"], RATES)
    flops = 2 * 100 * 100 * 5
    assert found.kernels == pytest.approx(0.1 * flops / 50e9)
    assert found.onnxruntime == pytest.approx(flops / 100e9)


def test_weights_that_are_nearly_dense_are_multiplied_with_their_zeros():
    found = region_estimate([product(0.9)], {"x": (5, 100)}, ["y"], RATES)
    assert found.kernels == pytest.approx(2 * found.onnxruntime)


@pytest.mark.parametrize(("cache", "kept"), [(120_000, 1.0), (80_000, 0.5), (60_000, 0.0), (30_000, 0.0)])
def test_steps_of_recurrent_layers_are_products_of_weights_that_a_cache_may_keep(monkeypatch, cache, kept):
    monkeypatch.setattr(costs, "_KEPT_BYTES", cache)
    spec = Recurrent(weights(600, 100, 0.1), None, "gru", (False, True))
    work = step_work(Step(spec, ("x",), "y", "rows", "rows", (0,)), (50, 4, 600), (50, 4, 200))
    # Of each step and sequence, all weights of both directions; a step has the rows of four sequences.
    assert (work.positions, work.density, work.flops) == (4, 0.1, 2 * 600 * 100 * 50 * 4)
    assert (work.steps, work.kept) == (50 * 2, kept)
    # Of two rates, one behind the other.
    small, large = replace(work, activated=0.0, kept=1.0), replace(work, activated=0.0, kept=0.0)
    seconds = [one.seconds(RATES.onnxruntime, 1.0) for one in (replace(work, activated=0.0), small, large)]
    assert seconds[0] == pytest.approx(kept * seconds[1] + (1 - kept) * seconds[2])


def test_few_sequences_look_their_states_up_where_that_was_measured():
    flops = {**RATES.kernels.flops, "lookup": Grid((1.0,), (1.0,), ((200.0,),))}
    rates = replace(RATES, kernels=replace(RATES.kernels, flops=flops))
    step = Step(Recurrent(weights(300, 100, 0.1), None, "gru", (False,)), ("x",), "y", "rows", "rows", (0,))
    gains = {
        rows: region_estimate([step], {"x": (50, rows, 300)}, ["y"], RATES).kernels
        - region_estimate([step], {"x": (50, rows, 300)}, ["y"], rates).kernels
        for rows in (1, 11, 12)
    }
    assert min(gains[1], gains[11]) > 0
    assert gains[12] == 0


def test_values_of_fewer_bits_have_rates_of_their_own_where_they_were_measured():
    step = product(0.1)
    narrow = replace(step, spec=replace(step.spec, weights=replace(step.spec.weights, values="int8")))
    flops = {**RATES.kernels.flops, "product int8": Grid((1.0,), (1.0,), ((200.0,),))}
    rates = replace(RATES, kernels=replace(RATES.kernels, flops=flops))
    plain, unmeasured, found = (
        region_estimate([own], {"x": (1, 100)}, ["y"], known)
        for own, known in ((step, rates), (narrow, RATES), (narrow, rates))
    )
    assert unmeasured == plain
    assert found.kernels == pytest.approx(plain.kernels / 4)
    assert found.onnxruntime == plain.onnxruntime


def test_weights_past_the_caches_take_as_long_as_memory_does():
    fast = replace(RATES, onnxruntime=side(1e9, 10.0), kernels=side(1e9, 10.0))
    step = product(0.1, rows=2000, columns=2000)
    found = region_estimate([step], {"x": (1, 2000)}, ["y"], fast)
    assert found.onnxruntime == pytest.approx(4 * 2000 * 2000 / 10e9)
    assert found.kernels == pytest.approx((1 / 8 + 4 * 0.1) * 2000 * 2000 / 10e9)
    cached = region_estimate([step], {"x": (1, 2000)}, ["y"], fast, cached=4 * 2000 * 2000)
    assert cached.onnxruntime < 1e-2 * found.onnxruntime


def test_onnxruntime_gains_from_int8_weights_that_the_file_has():
    step = product(0.1)
    stored = replace(step.spec.weights, values="int8", is_stored=True)
    found = region_estimate([replace(step, spec=replace(step.spec, weights=stored))], {"x": (1, 100)}, ["y"], RATES)
    plain = region_estimate([step], {"x": (1, 100)}, ["y"], RATES)
    assert (found.kernels, found.onnxruntime) == (plain.kernels, plain.onnxruntime / 4)


@pytest.mark.parametrize(("images", "kind"), [(1, "window"), (11, "window"), (12, "window in lanes")])
def test_positions_are_pixels_of_an_image_whatever_the_batch(images, kind):
    work = step_work(convolution(0.1), (images, 10, 7, 6), (images, 10, 7, 6))
    assert (work.kind, work.positions) == (kind, 42)
    assert work.flops == 2 * 10 * 90 * 42 * images


def test_a_border_costs_where_rows_are_in_lanes():
    alone, lanes = (region_estimate([product(0.1)], {"x": (n, 100)}, ["y"], RATES).kernels for n in (11, 12))
    assert lanes - alone * 12 / 11 == pytest.approx(4 * 2 * 12 * 100 / 10e9)


def test_an_activation_that_is_no_comparison_costs_its_bytes():
    plain, step = product(0.1), product(0.1)
    clipped = replace(step, spec=replace(step.spec, activation=("clip", 0.0, 6.0)))
    gelu = replace(step, spec=replace(step.spec, activation=("gelu", 0.0, 0.0)))
    times = [region_estimate([one], {"x": (5, 100)}, ["y"], RATES) for one in (plain, clipped, gelu)]
    assert times[0] == times[1]
    assert times[2].kernels - times[0].kernels == pytest.approx(2 * 4 * 500 / 10e9)


def test_products_of_large_weights_have_rates_of_their_own():
    kinds = [step_work(product(0.1, rows=rows), (1, 100), (1, rows)).kind for rows in (1310, 1311)]
    assert kinds == ["small product", "product"]


def test_other_operators_cost_what_they_read_and_write():
    steps = [
        Step(Reshaped((-1, 10)), ("x",), "r", "rows", "rows", (0,)),
        Step(Elementwise("add"), ("r", "r"), "y", "rows", "rows", (1,)),
    ]
    found = region_estimate(steps, {"x": (2, 5, 10)}, ["y"], RATES)
    assert found.onnxruntime == pytest.approx(3 * 4 * 100 / 10e9)


def test_attention_grows_with_the_square_of_its_tokens():
    spec = Attention(2, 8, 8, (0, 0, 0), None, 1.0)
    step = Step(spec, ("x", "k", "x"), "y", "rows", "rows", (0,))
    short, long, crossed = (
        region_estimate([step], {"x": (1, n, 16), "k": (1, 16, keys)}, ["y"], RATES).kernels
        for n, keys in ((4, 4), (8, 8), (4, 8))
    )
    assert long == pytest.approx(4 * short)
    assert crossed == pytest.approx(2 * short)


def test_a_plan_in_parts_pays_for_its_turns():
    rates = Rates(side(1, 1, call=1.0, turn=10.0), side(1, 1, call=2.0, turn=20.0))
    steps = Estimate(100.0, 200.0)
    assert plan_estimate(steps, 1, 0, rates) == Estimate(101.0, 202.0)
    assert plan_estimate(steps, 2, 3, rates) == Estimate(180.0, 202.0)


def test_certain_is_what_stays_faster_when_the_estimate_is_off():
    assert is_certain(Estimate(0.9, 2.0))
    assert not is_certain(Estimate(1.1, 2.0))
    assert is_certain(Estimate(0.9, 2.0), measured=2.0)
    assert not is_certain(Estimate(0.9, 2.0), measured=2.1)


class TestRegions:
    def weighed(self, density, sizes=({},), slack=1.0, is_alone=True, dims=("n", 100), rates=RATES):
        setting = Setting(rates, sizes, slack)
        return why_not_profitable([product(density)], {"x": dims}, ["x"], ["y"], setting, is_alone)

    def test_a_region_pays_if_it_takes_less_time(self):
        assert self.weighed(0.4, dims=(10, 100)) == ""
        assert "would take 0.0024 ms in the kernels against 0.002 ms" in self.weighed(0.6, dims=(10, 100))

    def test_a_region_that_may_pay_has_the_slack_that_is_asked_for(self):
        assert self.weighed(0.6, slack=2.0) == ""

    def test_a_region_between_sessions_costs_turns(self):
        rates = Rates(side(50.0, 10.0, turn=1e-6), side(100.0, 10.0, turn=1e-5))
        assert self.weighed(0.1, rates=rates) == ""
        assert "would take" in self.weighed(0.1, is_alone=False, rates=rates)

    def test_a_region_must_pay_for_one_of_the_requests_to_expect(self):
        rates = Rates(side(50.0, 10.0, call=1e-6), side(100.0, 10.0))
        assert "would take" in self.weighed(0.1, ({"n": 1},), rates=rates)
        assert self.weighed(0.1, ({"n": 1}, {"n": 16}), rates=rates) == ""


def test_requests_to_expect_are_of_one_image_and_of_sixteen():
    net = SparseNet()
    net.output(net.conv(net.input("x", 2, 4, 8, 8, declared=["n", 4, "h", 8]), 4, 6, 3))
    graph = GraphView(Model.load(net.model()))
    assert sizes_to_expect(graph) == ({"n": 1}, {"n": 16})
    assert sizes_to_expect(graph, 3) == ({"n": 3},)
    assert sizes_to_expect(graph, None, {"x": (2, 4, 30, 8)}) == ({"n": 2, "h": 30},)
    assert sizes_to_expect(graph, 3, {"other": (1,)}) == ({"n": 3},)
