"""Multiply-accumulates against hand counts, and budgets in exact integers."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from nets import Net

from sift_onnx.cost import BudgetLayer, CostReport, LayerCost, allocate, inspect
from sift_onnx.errors import BudgetError
from sift_onnx.model import Model
from sift_onnx.passes import Wide


@pytest.fixture
def net() -> Net:
    """An empty graph."""
    return Net()


def layers_of(net: Net, **shapes: Any) -> dict[str, LayerCost]:
    return {layer.name: layer for layer in inspect(net.model(), **shapes).layers}


# Hand counts.


@pytest.mark.parametrize(
    ("inputs", "outputs", "attrs", "kind", "params", "pixels"),
    [
        (4, 6, {}, "conv", 6 * 4 * 9, 8 * 8),
        (4, 6, {"group": 2}, "conv", 6 * 2 * 9, 8 * 8),
        (4, 4, {"group": 4}, "depthwise", 4 * 9, 8 * 8),
        (4, 12, {"group": 4}, "depthwise", 12 * 9, 8 * 8),
        (4, 6, {"strides": [2, 2]}, "conv", 6 * 4 * 9, 4 * 4),
        (4, 6, {"strides": [2, 1]}, "conv", 6 * 4 * 9, 4 * 8),
        (4, 6, {"dilations": [2, 2]}, "conv", 6 * 4 * 9, 6 * 6),
    ],
    ids=["plain", "grouped", "depthwise", "multiplier", "strided", "strided-one-way", "dilated"],
)
def test_a_convolution_costs_its_weights_at_every_output_pixel(
    net: Net, inputs: int, outputs: int, attrs: dict[str, Any], kind: str, params: int, pixels: int
) -> None:
    batch = 3
    net.output(net.conv(net.input("x", batch, inputs, 8, 8), inputs, outputs, 3, name="conv", **attrs))
    (layer,) = inspect(net.model()).layers
    assert (layer.name, layer.node, layer.op, layer.kind) == ("conv.weight", "conv", "Conv", kind)
    assert (layer.params, layer.macs, layer.effective_macs) == (
        params,
        params * batch * pixels,
        params * batch * pixels,
    )
    assert math.prod(layer.shape) == params


def test_a_dynamic_batch_counts_as_one_unless_it_is_given(net: Net) -> None:
    net.output(net.conv(net.input("x", 2, 4, 8, 8, declared=["N", 4, 8, 8]), 4, 6, name="conv"))
    assert inspect(net.model()).layers[0].macs == 6 * 4 * 64
    assert inspect(net.model(), {"x": (5, 4, 8, 8)}).layers[0].macs == 5 * 6 * 4 * 64


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_a_gemm_costs_its_weights_at_every_row(net: Net, trans_a: int, trans_b: int) -> None:
    rows, inner, columns = 3, 5, 7
    x = net.input("x", *((inner, rows) if trans_a else (rows, inner)))
    w = net.weight(*((columns, inner) if trans_b else (inner, columns)), name="w")
    net.output(net.op("Gemm", x, w, transA=trans_a, transB=trans_b, name="gemm"))
    (layer,) = inspect(net.model()).layers
    assert (layer.kind, layer.params, layer.macs) == ("gemm", inner * columns, rows * inner * columns)


def test_a_weight_on_the_left_of_a_product_costs_its_weights_at_every_column(net: Net) -> None:
    net.output(net.op("Gemm", net.weight(3, 5, name="w"), net.input("x", 5, 7), name="gemm"))
    net.output(net.op("MatMul", net.weight(3, 5, name="v"), net.input("z", 2, 5, 7), name="matmul"))
    assert {name: layer.macs for name, layer in layers_of(net).items()} == {"w": 3 * 5 * 7, "v": 2 * 3 * 5 * 7}


def test_leading_axes_of_a_matrix_product_multiply_its_positions(net: Net) -> None:
    net.output(net.dense(net.input("x", 2, 3, 5, 7), 7, 11, name="dense"))
    (layer,) = inspect(net.model()).layers
    assert (layer.params, layer.macs) == (7 * 11, 2 * 3 * 5 * 7 * 11)


@pytest.mark.parametrize(("x", "experts"), [((4, 5, 7), 4), ((2, 4, 5, 7), 4), ((5, 7), 4), ((4, 5, 7), 1)])
def test_a_batch_of_weights_is_not_counted_twice(net: Net, x: tuple[int, ...], experts: int) -> None:
    """Each of ``experts`` matrices multiplies its own rows, as in a mixture of experts."""
    net.output(net.op("MatMul", net.input("x", *x), net.weight(experts, 7, 11, name="w"), name="matmul"))
    (layer,) = inspect(net.model()).layers
    output = np.broadcast_shapes(x[:-2], (experts,))
    assert layer.macs == math.prod(output) * 5 * 7 * 11


def test_a_weight_that_two_nodes_use_is_one_layer_with_the_work_of_both(net: Net) -> None:
    x = net.input("x", 4, 6)
    net.weight(6, 6, name="w")
    first = net.op("MatMul", x, "w", name="first")
    net.output(net.op("MatMul", net.op("Relu", first), "w", name="second"))
    (layer,) = inspect(net.model()).layers
    assert (layer.node, layer.params, layer.macs) == ("first", 36, 2 * 4 * 36)


def test_products_of_activations_are_counted_apart(net: Net) -> None:
    """Attention: scores and weighted values, ``B * heads * T * T * d`` each."""
    batch, heads, length, d = 2, 3, 5, 4
    q, k, v = (net.input(name, batch, heads, length, d) for name in "qkv")
    scores = net.op("Softmax", net.op("MatMul", q, net.op("Transpose", k, perm=[0, 1, 3, 2])))
    net.output(net.op("MatMul", scores, v))
    report = inspect(net.model())
    assert report.layers == ()
    assert report.attention_macs == 2 * batch * heads * length * length * d
    assert report.to_dict()["totals"] == {
        "params": 0, "nnz": 0, "macs": 0, "effective_macs": 0, "attention_macs": report.attention_macs
    }  # fmt: skip


def test_zeros_are_not_counted_as_work_but_a_branch_of_nothing_but_zeros_is(net: Net) -> None:
    half = np.ones((4, 6), dtype=np.float32)
    half[:2] = 0
    x = net.input("x", 5, 4)
    net.output(net.op("MatMul", x, net.constant(half, "half")))
    net.output(net.op("MatMul", x, net.constant(np.zeros((4, 6)), "zero")))
    layers = layers_of(net)
    assert (layers["half"].nnz, layers["half"].macs, layers["half"].effective_macs) == (12, 120, 60)
    assert layers["half"].sparsity == 0.5
    assert (layers["zero"].nnz, layers["zero"].sparsity) == (24, 0.0)


def test_the_report_as_json(net: Net) -> None:
    net.output(net.dense(net.dense(net.input("x", 2, 4), 4, 6, name="a"), 6, 3, name="b"))
    document = inspect(net.model()).to_dict()
    assert document["schema"] == 1
    assert document["layers"][0] == {
        "name": "a.weight", "node": "a", "op": "MatMul", "kind": "matmul", "shape": [4, 6], "params": 24, "nnz": 24,
        "sparsity": 0.0, "macs": 48, "effective_macs": 48,
    }  # fmt: skip
    assert document["totals"] == {"params": 42, "nnz": 42, "macs": 84, "effective_macs": 84, "attention_macs": 0}


def test_a_widened_model_does_the_work_of_the_original(net: Net) -> None:
    """Within one non-zero a layer, whichever budget; counted on the result as any user would."""
    net.images_end(net.conv(net.images(10), 10, 12, 3, name="conv"), 12)
    model = Model.load(net.model())
    original = inspect(model)
    effective = {layer.name: layer.effective_macs for layer in original.layers}
    for sparsity in ("0.5", "0.75", "0.9"):
        by_layer = inspect(Wide(sparsity, budget="layer")(model).model)
        inner = {layer.name: layer for layer in by_layer.layers if layer.name not in ("stem.weight", "head.weight")}
        assert len(inner) == 3
        assert {name: layer.effective_macs for name, layer in inner.items()} == {
            name: effective[name] for name in inner
        }
    whole = inspect(Wide("0.5")(model).model)
    assert sum(layer.effective_macs for layer in whole.layers) == pytest.approx(sum(effective.values()), abs=64)
    assert sum(layer.effective_macs for layer in whole.layers) <= sum(effective.values())


def test_inspecting_reports_what_a_mask_leaves(net: Net) -> None:
    net.images_end(net.conv(net.images(10), 10, 12, 3, name="conv"), 12)
    result = Wide("0.75", budget="layer")(net.model())
    stated = {layer["name"]: (layer["nnz"], layer["sparsity"]) for layer in result.report["layers"]}
    report: CostReport = inspect(result.model)
    assert {layer.name: (layer.nnz, layer.sparsity) for layer in report.layers} == stated


# Budgets.


@st.composite
def budgets(draw: st.DrawFn) -> tuple[list[BudgetLayer], int]:
    """Layers with positions of any size, and a target that all of them can share in."""
    layers = []
    for i in range(draw(st.integers(1, 6))):
        positions = draw(st.integers(1, 200))
        weights = draw(st.integers(1, 400))
        macs = draw(st.integers(1, 20_000))
        layers.append(BudgetLayer(f"layer{i}", macs, positions, weights))
    total = sum(layer.macs for layer in layers)
    lowest = max(Fraction(total * layer.positions, layer.macs) for layer in layers)
    highest = min(Fraction(total * layer.positions * layer.weights, layer.macs) for layer in layers)
    assume(math.ceil(lowest) <= int(highest))
    return layers, draw(st.integers(math.ceil(lowest), int(highest)))


@settings(deadline=None, max_examples=200)
@given(budgets())
@example(([BudgetLayer("a", 9, 5, 9), BudgetLayer("b", 9, 5, 9), BudgetLayer("c", 9, 3, 9)], 27))
def test_every_layer_gets_its_share_and_the_whole_never_costs_too_much(case: tuple[list[BudgetLayer], int]) -> None:
    layers, target = case
    nnz = allocate(layers, target)
    assert list(nnz) == [layer.name for layer in layers]
    total = sum(layer.macs for layer in layers)
    for layer in layers:
        share = Fraction(target * layer.macs, total * layer.positions)
        assert abs(nnz[layer.name] - share) < 1
        assert 1 <= nnz[layer.name] <= layer.weights
    spent = sum(nnz[layer.name] * layer.positions for layer in layers)
    short = [layer for layer in layers if nnz[layer.name] * layer.positions * total < target * layer.macs]
    assert target - max(layer.positions for layer in layers) < spent <= target
    # What is left over would not pay for one more non-zero in any layer that is below its share.
    assert all(target - spent < layer.positions for layer in short)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 10_000), st.integers(1, 5_000), st.integers(0, 20_000))
def test_a_layer_alone_gets_as_many_non_zeros_as_it_had_weights(weights: int, positions: int, more: int) -> None:
    layer = BudgetLayer("w", weights * positions, positions, weights + more)
    assert allocate([layer], layer.macs) == {"w": weights}


def test_what_rounding_leaves_goes_to_expensive_layers_first() -> None:
    layers = [BudgetLayer("cheap", 50, 3, 100), BudgetLayer("dear", 50, 7, 100)]
    # 20 MACs each are 6 and 2 non-zeros; of the 8 MACs left, 7 buy the dear layer one more.
    assert allocate(layers, 40) == {"cheap": 6, "dear": 3}
    # 7.5 MACs each are 2 and 1 non-zeros; 2 MACs are left, which pay for nothing.
    assert allocate(layers, 15) == {"cheap": 2, "dear": 1}
    assert allocate([BudgetLayer("b", 50, 7, 100), BudgetLayer("a", 50, 7, 100)], 21) == {"a": 2, "b": 1}


@pytest.mark.parametrize("target", [-5, 0, 9])
def test_a_budget_below_one_non_zero_a_layer_is_refused(target: int) -> None:
    with pytest.raises(BudgetError, match="no non-zero weight for 'w'"):
        allocate([BudgetLayer("w", 100, 10, 100)], target)


def test_a_budget_beyond_all_weights_is_refused() -> None:
    layer = BudgetLayer("w", 100, 10, 20)
    assert allocate([layer], 200) == {"w": 20}
    with pytest.raises(BudgetError, match=r"more non-zeros than 'w' has weights \(20\)"):
        allocate([layer], 201)


def test_a_layer_without_work_has_no_share() -> None:
    with pytest.raises(BudgetError, match="'idle'"):
        allocate([BudgetLayer("idle", 0, 10, 20)], 100)


def test_no_layers_need_no_budget() -> None:
    assert allocate([], 100) == {}


def test_shares_are_exact_beyond_the_precision_of_floats() -> None:
    layer = BudgetLayer("w", 100, 2**20 + 1, 2**41)
    assert allocate([layer], 2**40 * layer.positions) == {"w": 2**40}
    assert allocate([layer], 2**40 * layer.positions - 1) == {"w": 2**40 - 1}
