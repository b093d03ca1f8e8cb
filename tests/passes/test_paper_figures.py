"""The figures that the paper gives for GPT-3, from our own graphs."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path

import pytest

from sift_onnx.analysis.cost import product_macs
from sift_onnx.model import Model
from sift_onnx.models import export
from sift_onnx.passes import Wide
from sift_onnx.passes.wide import WidePlan

# One export of a model serves them all.
pytestmark = [pytest.mark.xdist_group(__name__), pytest.mark.slow]

# Forward and backward as three times forward, two FLOPs a MAC (Table 15 counts FLOPs per sequence).
FLOPS_PER_MAC = 6


@pytest.fixture(scope="module")
def gpt3(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    folder = tmp_path_factory.mktemp("gpt3")

    def load(name: str) -> Model:
        path: Path = folder / f"{name}.onnx"
        if not path.exists():
            export(name, path)
        return Model.load(path)

    return load


def flops(plan: WidePlan, *, after: bool) -> int:
    evaluate = plan.solution.value if after else plan.analysis.system.original
    weights = sum((plan.after if after else plan.before).values())
    return FLOPS_PER_MAC * (weights + product_macs(plan.analysis, evaluate))


def test_gpt3_small_costs_what_table_15_says(gpt3: Callable[[str], Model]) -> None:
    plan = Wide("0.5", budget="layer").plan(gpt3("gpt3-small"))
    assert flops(plan, after=False) == pytest.approx(8.763e11, rel=0.005)
    assert flops(plan, after=True) == pytest.approx(1.029e12, rel=0.005)


@pytest.mark.parametrize(("sparsity", "width", "feed_forward"), [("0.5", 1092, 4344), ("0.75", 1536, 6144)])
def test_gpt3_small_gets_the_widths_of_table_14(
    gpt3: Callable[[str], Model], sparsity: str, width: int, feed_forward: int
) -> None:
    plan = Wide(sparsity, budget="layer").plan(gpt3("gpt3-small"))
    shapes = {
        name: {plan.solution.value(axis.size) for axis in layer.axes} for name, layer in plan.analysis.layers.items()
    }
    assert shapes["h.0.attn.c_attn.weight"] == {width, 3 * width}
    assert shapes["h.0.attn.c_proj.weight"] == {width}
    assert shapes["h.11.mlp.c_fc.weight"] == {width, feed_forward}
    assert width % 12 == 0


def test_gpt3_medium_costs_what_table_15_says(gpt3: Callable[[str], Model]) -> None:
    plan = Wide("0.5", budget="layer").plan(gpt3("gpt3-medium"))
    assert flops(plan, after=False) == pytest.approx(2.4845e12, rel=0.005)


@pytest.mark.parametrize(("sparsity", "k_squared"), [("0.5", 2), ("0.75", 4), ("0.9", 10)])
def test_the_search_space_of_wide_is_that_of_table_1(
    gpt3: Callable[[str], Model], sparsity: str, k_squared: int
) -> None:
    """``k^2 * D_in * D_out`` weights under masks, up to the rounding of widths."""
    result = Wide(sparsity, budget="layer").plan(gpt3("gpt3-small"))
    layers = [result.analysis.layers[name] for name in result.nnz]
    dense = sum(prod(result.analysis.system.original(axis.size) for axis in layer.axes) for layer in layers)
    wide = sum(prod(result.solution.value(axis.size) for axis in layer.axes) for layer in layers)
    assert dense == 12 * (4 * 768**2 + 8 * 768**2)
    assert wide == pytest.approx(k_squared * dense, rel=0.015)
