"""Factors of attention that exporters bake in: powers of the head size that follow it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nets import Net, Widened, widen

SIZE, HEADS = 16, 2
WIDER = [("0.5", 23), ("0.75", 32), ("0.9", 51)]


class Attention:
    """Two heads of sixteen features, with factors where a test puts them."""

    def __init__(self, net: Net, **at: tuple[str, Any]) -> None:
        self.net, self.at = net, at
        net.tokens(12)
        q, k, v = (self.scaled(name, self.heads(name)) for name in "qkv")
        k = net.op("Transpose", k, perm=[0, 1, 3, 2])
        scores = self.scaled("scores", net.op("MatMul", q, self.scaled("kt", k), name="qk"))
        h = net.op("MatMul", net.op("Softmax", scores), v, name="mixed")
        h = net.op("Transpose", h, perm=[0, 2, 1, 3])
        net.tokens_end(net.op("Reshape", h, net.constant([1, 5, SIZE * HEADS])), SIZE * HEADS)

    def heads(self, name: str) -> str:
        net = self.net
        h = self.scaled(f"{name}_packed", net.dense("before", 12, SIZE * HEADS, name=name))
        h = net.op("Reshape", h, net.constant([1, 5, HEADS, SIZE]))
        return str(net.op("Transpose", h, perm=[0, 2, 1, 3]))

    def scaled(self, place: str, x: str) -> str:
        if place not in self.at:
            return x
        kind, value = self.at[place]
        constant = value if isinstance(value, str) else self.net.constant(value)
        return str(self.net.op(kind, x, constant, name=f"{place}.scaled"))


def factor(wide: Widened, place: str) -> float:
    return float(wide.read(f"{place}.scaled", 1)[0])


@pytest.mark.parametrize(("sparsity", "size"), WIDER)
@pytest.mark.parametrize("place", ["scores", "q", "k", "kt", "q_packed", "k_packed"])
def test_a_factor_at_any_place_follows_the_head(net: Net, place: str, sparsity: str, size: int) -> None:
    Attention(net, **{place: ("Mul", SIZE**-0.5)})
    wide = widen(net, sparsity)
    assert wide.shape("mixed")[-1] == size
    assert factor(wide, place) == pytest.approx(size**-0.5)
    assert wide.report["warnings"] == []


@pytest.mark.parametrize(("sparsity", "size"), WIDER)
def test_fourth_roots_on_both_sides_follow_the_head(net: Net, sparsity: str, size: int) -> None:
    Attention(net, q=("Mul", SIZE**-0.25), kt=("Mul", SIZE**-0.25))
    wide = widen(net, sparsity)
    assert factor(wide, "q") == factor(wide, "kt") == pytest.approx(size**-0.25)


@pytest.mark.parametrize(("sparsity", "size"), WIDER)
def test_one_constant_on_both_sides_is_computed_anew_once(net: Net, sparsity: str, size: int) -> None:
    shared = net.constant(SIZE**-0.25, "shared")
    Attention(net, q=("Mul", shared), k=("Mul", shared))
    wide = widen(net, sparsity)
    assert factor(wide, "q") == factor(wide, "k") == pytest.approx(size**-0.25)


@pytest.mark.parametrize(("sparsity", "size"), WIDER)
@pytest.mark.parametrize("place", ["scores", "q"])
def test_a_division_by_the_root_follows_the_head(net: Net, place: str, sparsity: str, size: int) -> None:
    Attention(net, **{place: ("Div", SIZE**0.5)})
    assert factor(widen(net, sparsity), place) == pytest.approx(size**0.5)


def test_a_factor_as_a_tensor_of_one_element(net: Net) -> None:
    Attention(net, scores=("Mul", np.full((1, 1, 1, 1), SIZE**-0.5)))
    wide = widen(net)
    assert factor(wide, "scores") == pytest.approx(32**-0.5)
    assert wide.initializers[wide.node("scores.scaled").input[1]].shape == (1, 1, 1, 1)


@pytest.mark.parametrize("kind", ["Mul", "Add"])
def test_what_the_same_number_does_elsewhere_stays(net: Net, kind: str) -> None:
    """The factor is 0.25, and so is something that has nothing to do with heads."""
    shared = net.constant(0.25, "quarter")
    Attention(net, scores=("Mul", shared))
    net.output(net.op(kind, net.op("Identity", "head"), shared, name="elsewhere"))
    wide = widen(net)
    assert factor(wide, "scores") == pytest.approx(32**-0.5)
    assert wide.read("elsewhere", 1) == [0.25]


def test_a_factor_that_is_computed_from_shape_follows_by_itself(net: Net) -> None:
    """TorchScript: ``q / sqrt(q.shape[-1])``."""
    net.tokens(12)
    q, k, v = (net.dense("before", 12, SIZE * HEADS, name=name) for name in "qkv")
    q, k, v = (net.op("Reshape", x, net.constant([1, 5, HEADS, SIZE])) for x in (q, k, v))
    q, k, v = (net.op("Transpose", x, perm=[0, 2, 1, 3]) for x in (q, k, v))
    size = net.op("Gather", net.op("Shape", q), net.constant(3))
    root = net.op("Sqrt", net.op("Cast", size, to=1), name="root")
    scores = net.op("MatMul", q, net.op("Transpose", k, perm=[0, 1, 3, 2]), name="qk")
    h = net.op("MatMul", net.op("Softmax", net.op("Div", scores, root)), v, name="mixed")
    h = net.op("Reshape", net.op("Transpose", h, perm=[0, 2, 1, 3]), net.constant([1, 5, SIZE * HEADS]))
    net.tokens_end(h, SIZE * HEADS)
    wide = widen(net)
    assert wide.shape("mixed") == (1, HEADS, 5, 32)
    assert wide.after["root"] == pytest.approx(32**0.5)
    assert wide.report["warnings"] == []


def test_products_without_a_factor_are_reported(net: Net) -> None:
    Attention(net)
    (warning,) = widen(net).report["warnings"]
    assert "'qk'" in warning


def test_a_factor_that_is_no_power_of_the_head_stays_and_is_reported(net: Net) -> None:
    Attention(net, scores=("Mul", 0.3))
    wide = widen(net)
    assert factor(wide, "scores") == pytest.approx(0.3)
    (warning,) = wide.report["warnings"]
    assert "'qk'" in warning


def test_a_product_over_positions_needs_no_factor(net: Net) -> None:
    """Linear attention sums over positions first."""
    h = net.tokens(12)
    q, k, v = (net.dense(h, 12, SIZE, name=name) for name in "qkv")
    context = net.op("MatMul", net.op("Transpose", net.op("Softmax", k, axis=1), perm=[0, 2, 1]), v, name="context")
    net.tokens_end(net.op("MatMul", net.op("Mul", q, net.constant(SIZE**-0.5)), context, name="mixed"), SIZE)
    wide = widen(net)
    assert wide.shape("context") == (1, 32, 32)
    assert wide.report["warnings"] == []


@pytest.mark.parametrize("growth", ["heads", "keep"])
def test_a_head_that_keeps_its_size_keeps_its_factor(net: Net, growth: str) -> None:
    Attention(net, scores=("Mul", SIZE**-0.5))
    wide = widen(net, attention=growth)
    assert wide.shape("mixed") == (1, 4 if growth == "heads" else 2, 5, SIZE)
    assert factor(wide, "scores") == pytest.approx(0.25)
    assert wide.report["warnings"] == []


def test_a_factor_in_half_precision_keeps_its_type(net: Net) -> None:
    net.tokens(12)
    heads = {}
    for name in "qkv":
        h = net.op("Reshape", net.dense("before", 12, SIZE * HEADS, name=name), net.constant([1, 5, HEADS, SIZE]))
        heads[name] = net.op("Cast", net.op("Transpose", h, perm=[0, 2, 1, 3]), to=10)
    scale = net.constant(SIZE**-0.5, "scale", np.float16)
    q = net.op("Mul", heads["q"], scale, name="scaled")
    scores = net.op("MatMul", q, net.op("Transpose", heads["k"], perm=[0, 1, 3, 2]))
    h = net.op("Cast", net.op("MatMul", net.op("Softmax", scores), heads["v"], name="mixed"), to=1)
    h = net.op("Reshape", net.op("Transpose", h, perm=[0, 2, 1, 3]), net.constant([1, 5, SIZE * HEADS]))
    net.tokens_end(h, SIZE * HEADS)
    wide = widen(net)
    assert wide.read("scaled", 1) == pytest.approx([32**-0.5], rel=1e-3)
    assert wide.initializers[wide.node("scaled").input[1]].dtype == np.float16
