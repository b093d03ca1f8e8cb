"""Rotary tables: recognised by what is in them, and computed anew for wider heads."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nets import MICROSOFT, Net, widen

from sift_onnx.analysis.rotary import recognise_rotary

Array = np.ndarray[Any, np.dtype[Any]]
Layout = Literal["plain", "repeated", "interleaved"]
LAYOUTS: tuple[Layout, ...] = ("plain", "repeated", "interleaved")
BASES = (100.0, 10000.0, 160000.0, 500000.0, 1000000.0)


def frequencies(base: float, length: int, layout: Layout) -> Array:
    """``length`` frequencies, those of half the length twice for the layouts that say so."""
    pairs = length if layout == "plain" else length // 2
    single = base ** (-np.arange(pairs) / pairs)
    return {"plain": single, "repeated": np.tile(single, 2), "interleaved": np.repeat(single, 2)}[layout]


def table(function: str, base: float, length: int, layout: Layout, positions: int = 16) -> Array:
    angles = np.arange(positions)[:, None] * frequencies(base, length, layout)
    return np.cos(angles) if function == "cos" else np.sin(angles)


# What is recognised.


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("length", [16, 64, 128])
@pytest.mark.parametrize("function", ["cos", "sin"])
@pytest.mark.parametrize("positions", [2, 64])
def test_a_table_is_recognised_and_grows_to_what_the_formula_gives(
    function: str, length: int, base: float, layout: Layout, dtype: Any, positions: int
) -> None:
    recipe = recognise_rotary(table(function, base, length, layout, positions).astype(dtype))
    assert recipe is not None
    wider = 3 * length // 2
    found = recipe.values((positions, wider), np.dtype(np.float64))
    # Half precision tells the base to some per mille; single precision tells it.
    tolerance = 2e-3 * positions if dtype == np.float16 and recipe.base != base else 1e-6
    np.testing.assert_allclose(found, table(function, base, wider, layout, positions), atol=tolerance)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("length", [8, 32, 128])
@pytest.mark.parametrize("shape", [(-1,), (1, 1, -1), (1, -1, 1)])
def test_frequencies_are_recognised_along_any_axis(
    shape: tuple[int, ...], length: int, base: float, layout: Layout
) -> None:
    recipe = recognise_rotary(frequencies(base, length, layout).astype(np.float32).reshape(shape))
    assert recipe is not None
    wider = [2 * length if n == -1 else n for n in shape]
    found = recipe.values(tuple(wider), np.dtype(np.float32))
    np.testing.assert_allclose(found.reshape(-1), frequencies(base, 2 * length, layout), rtol=1e-3)


@pytest.mark.parametrize("shape", [(1, 1, 16, 32), (16, 1, 32), (1, 16, 1, 32)])
def test_axes_of_size_one_around_a_table_do_not_matter(shape: tuple[int, ...]) -> None:
    recipe = recognise_rotary(table("cos", 10000.0, 32, "repeated").astype(np.float32).reshape(shape))
    assert recipe is not None
    found = recipe.values((*shape[:-1], 40), np.dtype(np.float32))
    np.testing.assert_allclose(found.reshape(16, 40), table("cos", 10000.0, 40, "repeated"), atol=1e-5)


@given(st.floats(2, 1e7), st.sampled_from(LAYOUTS), st.integers(2, 40), st.integers(2, 40))
def test_any_base_is_recognised_well_enough_to_rebuild_the_table(
    base: float, layout: Layout, pairs: int, positions: int
) -> None:
    length = pairs if layout == "plain" else 2 * pairs
    for function in ("cos", "sin"):
        values = table(function, base, length, layout, positions).astype(np.float32)
        recipe = recognise_rotary(values)
        if recipe is not None:
            np.testing.assert_allclose(recipe.values(values.shape, np.dtype(np.float64)), values, atol=2e-3)
        else:
            # Where the second frequency is lost in rounding nothing can be told.
            assert base ** (-1 / pairs) < 1e-2


def scaled_like_llama3(length: int) -> Array:
    """Frequencies of Llama 3.1: slow ones are slowed down eightfold."""
    plain = frequencies(500000.0, length, "plain")
    return np.where(plain < 2 * np.pi / 2048, plain / 8, plain)


REFUSED = {
    "noise": np.random.default_rng(0).standard_normal((16, 32)),
    "ones": np.ones((16, 32)),
    "zeros": np.zeros((16, 32)),
    "identity": np.eye(16),
    "learned positions": np.random.default_rng(0).uniform(-1, 1, (1, 16, 32)),
    "a first row of ones": np.concatenate([np.ones((1, 32)), np.random.default_rng(0).uniform(-1, 1, (15, 32))]),
    "positions from 3 on": table("cos", 10000.0, 32, "plain", 19)[3:],
    "positions backwards": table("cos", 10000.0, 32, "plain")[::-1],
    "one frequency throughout": np.cos(np.arange(16)[:, None] * np.ones(32) * 0.3),
    "noisy": table("sin", 10000.0, 32, "plain") + np.random.default_rng(0).normal(0, 0.02, (16, 32)),
    "Llama 3.1": np.cos(np.arange(64)[:, None] * 40 * scaled_like_llama3(64)),
    "Llama 3.1 frequencies": scaled_like_llama3(64),
    "an arithmetic sequence": np.linspace(1, 0.1, 32),
    "growing frequencies": frequencies(10000.0, 32, "plain")[::-1],
    "random frequencies": np.sort(np.random.default_rng(0).uniform(0, 1, 32))[::-1],
    "a vector of ones": np.ones(32),
    "integers": np.ones((16, 32), np.int64),
    "a scalar": np.array(1.0),
    "a single column": np.cos(np.arange(16.0))[:, None],
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_tables_are_not(name: str) -> None:
    values = REFUSED[name]
    assert recognise_rotary(values if values.dtype.kind == "i" else values.astype(np.float32)) is None


# What becomes of graphs. Two heads of eight features, twice as wide.


def head(net: Net, name: str, size: int = 8) -> str:
    h = net.op("Reshape", net.dense("before", 12, 2 * size, name=name), net.constant([1, 5, 2, size]))
    return str(net.op("Transpose", h, name=f"{name}.heads", perm=[0, 2, 1, 3]))


def finish(net: Net, q: str, k: str, size: int = 8) -> None:
    scores = net.op("MatMul", q, net.op("Transpose", k, perm=[0, 1, 3, 2]), name="scores")
    scores = net.op("Mul", scores, net.constant(size**-0.5))
    h = net.op("MatMul", net.op("Softmax", scores), head(net, "v", size))
    h = net.op("Transpose", h, perm=[0, 2, 1, 3])
    net.tokens_end(net.op("Reshape", h, net.constant([1, 5, 2 * size])), 2 * size)


def half_turned(net: Net, x: str, size: int = 8) -> str:
    """``cat(-x[..., d/2:], x[..., :d/2])``."""
    low = net.op("Slice", x, net.constant([0]), net.constant([size // 2]), net.constant([3]))
    high = net.op("Slice", x, net.constant([size // 2]), net.constant([2**63 - 1]), net.constant([3]))
    return str(net.op("Concat", net.op("Neg", high), low, axis=-1))


def rotated(net: Net, x: str, cos: str, sin: str) -> str:
    return str(net.op("Add", net.op("Mul", x, cos), net.op("Mul", half_turned(net, x), sin)))


@pytest.mark.parametrize(("sparsity", "size"), [("0.5", 12), ("0.75", 16), ("0.9", 26)])
def test_stored_tables_of_llama_are_computed_anew(net: Net, sparsity: str, size: int) -> None:
    net.tokens(12)
    cos = net.constant(table("cos", 10000.0, 8, "repeated", 5)[None, None], "cos")
    sin = net.constant(table("sin", 10000.0, 8, "repeated", 5)[None, None], "sin")
    finish(net, rotated(net, head(net, "q"), cos, sin), rotated(net, head(net, "k"), cos, sin))
    wide = widen(net, sparsity)
    assert wide.shape("q.heads") == (1, 2, 5, size)
    for name in ("cos", "sin"):
        expected = table(name, 10000.0, size, "repeated", 5)
        np.testing.assert_allclose(wide.initializers[name][0, 0], expected, atol=1e-6)


@pytest.mark.parametrize("picked", ["Gather", "Slice"])
def test_rows_that_are_picked_from_a_longer_table(net: Net, picked: str) -> None:
    """Older Llamas look their positions up in tables for the longest context."""
    net.tokens(12)
    ids = net.input("ids", values=np.array([[3, 4, 5, 6, 7]]))
    turned = []
    for name in "qk":
        tables = []
        for function in ("cos", "sin"):
            h = net.constant(table(function, 10000.0, 8, "repeated", 64), f"{name}.{function}")
            if picked == "Gather":
                h = net.op("Unsqueeze", net.op("Gather", h, ids), net.constant([1]))
            else:
                h = net.op("Slice", h, net.constant([0]), net.constant([5]), net.constant([0]))
            tables.append(h)
        turned.append(rotated(net, head(net, name), *tables))
    finish(net, *turned)
    wide = widen(net)
    assert wide.shape("q.heads") == (1, 2, 5, 16)
    for name in ("q.cos", "q.sin", "k.cos", "k.sin"):
        expected = table(name[2:], 10000.0, 16, "repeated", 64)
        np.testing.assert_allclose(wide.initializers[name], expected, atol=1e-6)
        assert name not in {layer["name"] for layer in wide.report["layers"]}


def test_rows_of_a_table_that_is_not_recognised_keep_their_heads(net: Net) -> None:
    net.tokens(12)
    ids = net.input("ids", values=np.array([[3, 4, 5, 6, 7]]))
    angles = np.arange(16)[:, None] * scaled_like_llama3(16)[[0, 3, 9, 12]]
    tables = [net.constant(np.tile(f(angles), 2), n) for n, f in (("cos", np.cos), ("sin", np.sin))]
    cos, sin = (net.op("Unsqueeze", net.op("Gather", t, ids), net.constant([1])) for t in tables)
    finish(net, rotated(net, head(net, "q"), cos, sin), rotated(net, head(net, "k"), cos, sin))
    wide = widen(net)
    assert wide.shape("q.heads") == (1, 2, 5, 8)
    assert wide.shape("v.heads") == (1, 2, 5, 16)
    assert "not recognised" in wide.reason("q.weight")


def test_an_interleaved_table_keeps_an_even_width(net: Net) -> None:
    h = net.tokens(6)
    factors = net.constant(table("cos", 10000.0, 6, "interleaved", 5), "cos")
    net.tokens_end(net.op("Mul", h, factors, name="product"), 6)
    wide = widen(net, "0.9")
    assert wide.shape("product") == (1, 5, 18)
    np.testing.assert_allclose(wide.initializers["cos"], table("cos", 10000.0, 18, "interleaved", 5), atol=1e-6)


def test_a_learned_factor_of_one_value_may_grow(net: Net) -> None:
    net.tokens_end(net.op("Mul", net.tokens(8), net.constant(np.full((5, 8), 0.1), "scale"), name="product"), 8)
    wide = widen(net)
    assert wide.initializers["scale"].tolist() == np.full((5, 16), 0.1, np.float32).tolist()


@pytest.mark.parametrize("form", ["MatMul", "Mul", "Einsum"])
@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_stored_frequencies_are_computed_anew(net: Net, form: str, base: float) -> None:
    """Angles are computed when the model runs: positions times frequencies, in the ways to write an outer product."""
    net.tokens(12)
    positions = net.input("positions", values=np.arange(5, dtype=np.float32))
    stored = net.constant(frequencies(base, 4, "plain"), "frequencies")
    if form == "MatMul":
        column = net.op("Unsqueeze", positions, net.constant([1]))
        angles = net.op("MatMul", column, net.op("Unsqueeze", stored, net.constant([0])), name="angles")
    elif form == "Mul":
        angles = net.op("Mul", net.op("Unsqueeze", positions, net.constant([1])), stored, name="angles")
    else:
        angles = net.op("Einsum", positions, stored, name="angles", equation="i,j->ij")
    angles = net.op("Concat", angles, angles, axis=-1)
    cos, sin = net.op("Cos", angles), net.op("Sin", angles)
    finish(net, rotated(net, head(net, "q"), cos, sin), rotated(net, head(net, "k"), cos, sin))
    wide = widen(net)
    assert wide.shape("q.heads") == (1, 2, 5, 16)
    np.testing.assert_allclose(wide.initializers["frequencies"], frequencies(base, 8, "plain"), rtol=1e-4)
    assert "frequencies" not in {layer["name"] for layer in wide.report["layers"]}


@pytest.mark.parametrize("form", ["MatMul", "Mul", "Einsum"])
def test_frequencies_that_are_not_recognised_keep_their_heads(net: Net, form: str) -> None:
    net.tokens(12)
    positions = net.input("positions", values=np.arange(5, dtype=np.float32))
    odd = np.array([1.0, 0.4, 0.1, 0.001, 0.0009, 0.0008, 0.0007, 0.0001])
    stored = net.constant(odd[None] if form == "MatMul" else odd, "frequencies")
    if form == "Einsum":
        angles = net.op("Einsum", positions, stored, name="angles", equation="i,j->ij")
    else:
        angles = net.op(form, net.op("Unsqueeze", positions, net.constant([1])), stored, name="angles")
    angles = net.op("Concat", angles, angles, axis=-1)
    cos, sin = net.op("Cos", angles), net.op("Sin", angles)
    q, k = head(net, "q", 16), head(net, "k", 16)
    turned = [net.op("Add", net.op("Mul", x, cos), net.op("Mul", half_turned(net, x, 16), sin)) for x in (q, k)]
    finish(net, *turned, 16)
    wide = widen(net)
    assert wide.shape("q.heads") == (1, 2, 5, 16)
    assert wide.shape("v.heads") == (1, 2, 5, 32)
    np.testing.assert_array_equal(wide.initializers["frequencies"].reshape(-1), odd.astype(np.float32))
    assert "frequencies" in wide.reason("q.weight")


def test_a_table_that_is_not_recognised_keeps_its_heads(net: Net) -> None:
    net.tokens(12)
    cos, sin = (net.constant(np.random.default_rng(i).standard_normal((5, 8)), n) for i, n in enumerate(["cos", "sin"]))
    finish(net, rotated(net, head(net, "q"), cos, sin), rotated(net, head(net, "k"), cos, sin))
    wide = widen(net)
    assert wide.shape("q.heads") == (1, 2, 5, 8)
    assert wide.shape("v.heads") == (1, 2, 5, 16)
    assert "not recognised" in wide.reason("q.weight")


def tables(net: Net, layout: Layout = "plain", length: int = 4) -> tuple[str, str]:
    return tuple(  # type: ignore[return-value]
        net.constant(table(name, 10000.0, length, layout, 16), name) for name in ("cos", "sin")
    )


def check_tables(wide: Any, length: int) -> None:
    for name in ("cos", "sin"):
        np.testing.assert_allclose(wide.initializers[name], table(name, 10000.0, length, "plain", 16), atol=1e-6)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(("sparsity", "size"), [("0.5", 12), ("0.75", 16), ("0.9", 26)])
def test_the_rotary_operator_over_heads(interleaved: int, sparsity: str, size: int) -> None:
    net = Net(23)
    net.tokens(12)
    places = net.constant(np.arange(5)[None])
    cos, sin = tables(net)
    q, k = (
        net.op("RotaryEmbedding", head(net, name), cos, sin, places, name=f"{name}.turned", interleaved=interleaved)
        for name in "qk"
    )
    finish(net, q, k)
    wide = widen(net, sparsity)
    assert wide.shape("q.turned") == (1, 2, 5, size)
    check_tables(wide, size // 2)


@pytest.mark.parametrize(("growth", "heads", "size"), [("head-dim", 2, 16), ("heads", 4, 8), ("keep", 2, 8)])
def test_the_rotary_operator_over_packed_heads(growth: str, heads: int, size: int) -> None:
    net = Net(23)
    h = net.tokens(12)
    places = net.constant(np.arange(5)[None])
    cos, sin = tables(net)
    q, k, v = (net.dense(h, 12, 16, name=name) for name in "qkv")
    q, k = (net.op("RotaryEmbedding", x, cos, sin, places, name=f"{x}.turned", num_heads=2) for x in (q, k))
    net.tokens_end(net.op("Attention", q, k, v, name="attention", q_num_heads=2, kv_num_heads=2), 16)
    wide = widen(net, attention=growth)
    assert wide.shape("q.turned") == (1, 5, heads * size)
    assert wide.attr("q.turned", "num_heads") == wide.attr("attention", "q_num_heads") == heads
    check_tables(wide, size // 2)


def test_the_rotary_operator_of_onnxruntime(net: Net) -> None:
    net.tokens(12)
    places = net.constant(np.arange(5)[None])
    cos, sin = tables(net)
    q, k = (
        net.op("RotaryEmbedding", head(net, name), places, cos, sin, name=f"{name}.turned", domain=MICROSOFT)
        for name in "qk"
    )
    finish(net, q, k)
    wide = widen(net)
    assert wide.shape("q.turned") == (1, 2, 5, 16)
    check_tables(wide, 8)


def test_a_rotary_operator_that_turns_a_part_of_each_head_keeps_it(net: Net) -> None:
    net = Net(23)
    net.tokens(12)
    places = net.constant(np.arange(5)[None])
    cos, sin = tables(net, length=2)
    attrs = {"rotary_embedding_dim": 4}
    q, k = (net.op("RotaryEmbedding", head(net, name), cos, sin, places, **attrs) for name in "qk")
    finish(net, q, k)
    wide = widen(net)
    assert wide.shape("q.heads") == (1, 2, 5, 8)
    assert wide.shape("v.heads") == (1, 2, 5, 16)
    assert "part of each head" in wide.reason("q.weight")


def test_angles_of_a_time_step_are_computed_anew(net: Net) -> None:
    """Diffusion models: ``cat(sin(t f), cos(t f))`` through two dense layers."""
    time = net.input("time", values=np.array([[3.0]], np.float32))
    angles = net.op("Mul", time, net.constant(frequencies(10000.0, 8, "plain")[None], "frequencies"))
    h = net.op("Concat", net.op("Sin", angles), net.op("Cos", angles), axis=-1)
    for i in range(4):
        h = net.op("Relu", net.dense(h, 16, 16 if i < 3 else 2, name=f"dense{i}"))
    net.output(h)
    wide = widen(net)
    assert wide.shape("dense1.weight") == (32, 32)
    length = wide.shape("frequencies")[1]
    np.testing.assert_allclose(wide.initializers["frequencies"][0], frequencies(10000.0, length, "plain"), rtol=1e-4)


def test_a_number_that_is_repeated_to_a_table_is_none() -> None:
    """As torch writes a state of zeros."""
    net = Net()
    x = net.dense(net.op("Relu", net.dense(net.input("x", 2, 3, 8), 8, 16)), 16, 16)
    states = net.op("Expand", net.constant(np.float32(0)), net.op("Shape", x))
    x = net.op("Add", net.op("Mul", net.op("Sigmoid", x), states), x)
    net.output(net.dense(net.op("Relu", x), 16, 4))
    assert widen(net).report["layers"]
