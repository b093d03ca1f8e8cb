"""Long networks are summarised: layers that repeat share a row, and sums stay what they were."""

from __future__ import annotations

from sift_onnx.records.cost import LayerCost
from sift_onnx.records.transform import LayerChange
from sift_onnx.reports.layer_groups import MOST_SINGLE, changes_of_each, remark, shown_changes, shown_costs


def cost(name: str, shape: tuple[int, ...], nnz: int) -> LayerCost:
    size = shape[0] * shape[1]
    return LayerCost(
        name=name, node=name, op="MatMul", kind="matmul", shape=shape, params=size, nnz=nnz, sparsity=1 - nnz / size,
        macs=10 * size, effective_macs=10 * nnz, search_space=size,
    )  # fmt: skip


def change(name: str, shape: tuple[int, ...], status: str = "sparse") -> LayerChange:
    return LayerChange(
        name=name, node=name, op="Conv", kind="conv", shape_before=(4, 4), shape_after=shape, macs_before=3,
        macs_after=2, nnz=5, sparsity=0.5, status=status, reason="", weight_error=0.1 * len(name),
    )  # fmt: skip


def blocks(count: int) -> list[LayerCost]:
    return [
        cost(f"h.{i}.{name}.weight", shape, 10 + i)
        for i in range(count)
        for name, shape in {"up": (8, 32), "down": (32, 8)}.items()
    ]


def test_layers_that_repeat_share_a_row_with_their_sums() -> None:
    layers = [cost("embedding", (99, 8), 792), *blocks(24)]
    shown = shown_costs(layers)
    assert [layer.name for layer in shown] == ["embedding", "24 x h.*.up.weight", "24 x h.*.down.weight"]
    for key in ("params", "nnz", "macs", "effective_macs", "search_space"):
        assert sum(getattr(layer, key) for layer in shown) == sum(getattr(layer, key) for layer in layers)
    assert shown[1].shape == (8, 32)
    assert shown[1].sparsity == sum(layer.sparsity for layer in layers[1::2]) / 24


def test_short_networks_and_full_lists_are_as_they_are() -> None:
    assert shown_costs(blocks(MOST_SINGLE // 2)) == blocks(MOST_SINGLE // 2)
    assert shown_costs(blocks(24), full=True) == blocks(24)


def test_layers_that_fared_differently_have_rows_of_their_own() -> None:
    layers = [change(f"{i}", (8, 8)) for i in range(45)] + [change("7", (8, 8), "dense"), change("8", (9, 8))]
    shown = shown_changes(layers)
    assert [layer.name for layer in shown] == ["45 x *", "7", "8"]
    assert shown[0].macs_after == 90
    assert shown[0].weight_error == 0.2
    assert [layer.macs_after for layer in changes_of_each(layers)] == [2, 2, 2]


def test_a_summary_says_that_it_is_one() -> None:
    assert list(remark(7, 7)) == []
    assert "49 layers in 3 rows" in next(remark(49, 3))
