"""The table of measured rates: interpolation, the nearest machine, and what the file must hold."""

from __future__ import annotations

import math

import pytest

from sift_onnx.backends.cpu.isa import ISAS
from sift_onnx.backends.cpu.lower import rates
from sift_onnx.backends.cpu.lower.rates import Entry, Grid, Table, rates_of

GRID = Grid((4.0, 16.0, 64.0), (0.1, 0.4), ((10.0, 20.0), (30.0, 40.0), (50.0, 60.0)))


@pytest.mark.parametrize(
    ("positions", "density", "wanted"),
    [
        (16, 0.4, 40),
        (16, 0.2, 35),  # half of the way from 0.1 to 0.4, in logarithms
        (8, 0.1, 20),
        (32, 0.2, 45),
        (1, 0.01, 10),
        (1000, 1.0, 60),
    ],
)
def test_rates_between_points_are_linear_in_logarithms(positions, density, wanted):
    assert math.isclose(GRID.at(positions, density), wanted)


def test_a_grid_of_one_density_has_it_for_all():
    assert math.isclose(Grid((4.0, 16.0), (1.0,), ((10.0,), (30.0,))).at(8, 0.3), 20)


def entry(isa, threads, rate):
    grid = Grid((1.0,), (1.0,), ((rate,),))
    return Entry(
        isa,
        threads,
        2 * rate,
        {"product": grid},
        {"border": grid},
        step_seconds=1e-6,
        call_seconds=1e-5,
        turn_seconds=2e-5,
    )


@pytest.fixture
def table(monkeypatch):
    entries = (entry("avx512", 1, 100.0), entry("avx512", 2, 180.0), entry("avx2", 1, 40.0), entry("avx2", 2, 80.0))
    made = Table("a processor", "1.0", "2026-01-01", entries, (entry("avx512", 1, 120.0), entry("avx512", 2, 240.0)))
    monkeypatch.setattr(rates, "read_table", lambda: made)
    rates_of.cache_clear()
    yield
    rates_of.cache_clear()


def product_rate(side):
    return side.flops["product"].at(1, 1)


@pytest.mark.usefixtures("table")
class TestNearest:
    def test_an_entry_is_taken_as_it_is(self):
        found = rates_of("avx512", 2, "avx512")
        assert (product_rate(found.kernels), product_rate(found.onnxruntime)) == (180.0, 240.0)

    def test_more_threads_do_as_much_more(self):
        found = rates_of("avx512", 8, "avx512")
        assert (found.kernels.threads, product_rate(found.kernels)) == (8, 720.0)
        assert found.kernels.bytes["border"].at(1) == 720.0
        assert found.kernels.step_seconds == 1e-6

    def test_an_instruction_set_that_is_not_there_has_the_nearest(self):
        assert product_rate(rates_of("neon", 1, "avx512").kernels) == 40.0

    def test_onnxruntime_keeps_its_share_of_the_peak_on_other_processors(self):
        assert math.isclose(product_rate(rates_of("avx2", 1, "avx2").onnxruntime), 120.0 * 80.0 / 240.0)

    def test_kernels_of_fewer_lanes_do_not_slow_onnxruntime(self):
        assert product_rate(rates_of("avx2", 1, "avx512").onnxruntime) == 120.0


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 2, 64])
def test_the_table_has_all_that_estimates_ask_for(isa, threads):
    rates_of.cache_clear()
    found = rates_of(isa, threads, isa)
    kinds = ("pointwise", "window", "depthwise")
    layers = {"product", "small product", "attention", *kinds, *(f"{kind} in lanes" for kind in kinds)}
    assert "memory" in found.kernels.bytes
    # Values of fewer bits, and lookups in registers, have rates of their own where they were measured.
    some = {f"product {values}" for values in ("bfloat16", "float16", "int8")} | {"lookup"}
    for side in (found.kernels, found.onnxruntime):
        assert set(side.flops) - some == layers
        assert {"elementwise", "activation", "normalization", "pool"} <= set(side.bytes)
        for grid in (*side.flops.values(), *side.bytes.values()):
            assert all(rate > 0 for row in grid.rates for rate in row)
            assert {len(row) for row in grid.rates} == {len(grid.densities)}
            assert len(grid.rates) == len(grid.sizes)
            assert list(grid.sizes) == sorted(set(grid.sizes))
            assert list(grid.densities) == sorted(set(grid.densities))
        assert 0 < side.step_seconds < side.call_seconds <= side.turn_seconds < 1e-3
    assert "border" in found.kernels.bytes
