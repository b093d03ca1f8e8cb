"""Multiply-accumulates against hand counts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from function_nets import WIDTHS, layers_in_functions
from nets import Net

from sift_onnx.analysis.cost import inspect
from sift_onnx.errors import UnsupportedError
from sift_onnx.model import Model
from sift_onnx.passes import Wide
from sift_onnx.records.cost import CostReport, LayerCost


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


def test_layers_in_local_functions_are_counted_as_transforms_count_them(net: Net) -> None:
    model = layers_in_functions(net).model()
    report = inspect(model, {"x": (3, WIDTHS[0])})
    shapes = {layer.name: layer.shape for layer in report.layers}
    assert shapes == {f"w{i}": WIDTHS[i : i + 2] for i in range(3)}
    assert report.totals.macs == 3 * report.totals.params == 3 * sum(math.prod(shape) for shape in shapes.values())
    rewritten = Wide("0.5")(model).report
    assert {layer["name"]: tuple(layer["shape_before"]) for layer in rewritten["layers"]} == shapes


def test_functions_that_cannot_be_inlined_are_refused_by_name(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_model: object) -> None:
        raise RuntimeError("no way\nsecond line")

    model = Model.load(layers_in_functions(net).model())
    monkeypatch.setattr("onnx.inliner.inline_local_functions", fail)
    with pytest.raises(UnsupportedError, match=r"^its local functions cannot be inlined: no way$"):
        inspect(model)


def test_products_of_activations_are_counted_apart(net: Net) -> None:
    """Attention: scores and weighted values, ``B * heads * T * T * d`` each."""
    batch, heads, length, d = 2, 3, 5, 4
    q, k, v = (net.input(name, batch, heads, length, d) for name in "qkv")
    scores = net.op("Softmax", net.op("MatMul", q, net.op("Transpose", k, perm=[0, 1, 3, 2])))
    net.output(net.op("MatMul", scores, v))
    report = inspect(net.model())
    assert report.layers == ()
    assert report.totals.attention_macs == 2 * batch * heads * length * length * d
    assert report.to_dict()["totals"] == {
        "params": 0, "nnz": 0, "macs": 0, "effective_macs": 0, "search_space": 0, "active_zeros": 0,
            "attention_macs": report.totals.attention_macs
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
        "sparsity": 0.0, "macs": 48, "effective_macs": 48, "search_space": 0, "active_zeros": 0,
    }  # fmt: skip
    assert document["totals"] == {
        "params": 42, "nnz": 42, "macs": 84, "effective_macs": 84, "search_space": 0, "active_zeros": 0,
        "attention_macs": 0
    }  # fmt: skip


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
