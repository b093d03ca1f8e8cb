from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import LAYOUTS, Array, random_array, run

from sift_onnx.backends.cpu import _kernels

LEAST = np.finfo(np.float32).min


def heads_of(x: Array, sequences: int, heads: int, depth: int, first: int) -> Any:
    """[sequences, heads, tokens, depth] in double precision."""
    taken = x.reshape(sequences, -1, x.shape[1])[:, :, first : first + heads * depth].astype(np.float64)
    return taken.reshape(*taken.shape[:2], heads, depth).transpose(0, 2, 1, 3)


def attention(q: Any, k: Any, v: Any, scale: float, mask: Any) -> Any:
    """[sequences * tokens, heads * value_depth] of operands [sequences, heads, tokens, depth]."""
    scores = q @ k.transpose(0, 1, 3, 2) * scale
    if mask is not None:
        scores = scores + mask
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
    joined = (weights / weights.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3)
    return joined.reshape(-1, joined.shape[2] * joined.shape[3])


def draw_mask(draw: st.DataObject, rng: np.random.Generator, full: tuple[int, int, int, int]) -> Array | None:
    if draw.draw(st.booleans(), "no mask"):
        return None
    axes = [draw.draw(st.sampled_from((1, size)), "axis of the mask") for size in full]
    mask = random_array(rng, tuple(axes))
    # The first key is always attended to.
    mask[..., 1:][rng.random(mask[..., 1:].shape) < 0.4] = draw.draw(st.sampled_from((LEAST, -np.inf)))
    return mask


@pytest.mark.parametrize("isa", _kernels.supported_isas())
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=25, deadline=None)
@given(
    draw=st.data(),
    sequences=st.integers(1, 4),
    tokens=st.one_of(st.integers(1, 40), st.integers(100, 150)),
    keys=st.one_of(st.none(), st.integers(1, 40)),
    heads=st.integers(1, 3),
    depth=st.integers(1, 18),
    value_depth=st.integers(1, 18),
)
def test_heads_attend_by_themselves(
    isa: str,
    layout: str,
    draw: st.DataObject,
    sequences: int,
    tokens: int,
    keys: int | None,
    heads: int,
    depth: int,
    value_depth: int,
) -> None:
    rng = np.random.default_rng(tokens)
    depths = (depth, depth, value_depth)
    rows = (tokens, keys or tokens, keys or tokens)
    first = [draw.draw(st.integers(0, 3), "channels before") for _ in range(3)]
    x = [
        random_array(rng, (sequences * count, before + heads * size + draw.draw(st.integers(0, 2)), 1, 1))
        for count, before, size in zip(rows, first, depths, strict=True)
    ]
    mask = draw_mask(draw, rng, (sequences, heads, *rows[:2]))
    op = _kernels.Attention(
        sequences=sequences, tokens=tokens, heads=heads, depth=depth, value_depth=value_depth, scale=0.4,
        queries=(x[0].shape[1], first[0]), keys=(x[1].shape[1], first[1]), values=(x[2].shape[1], first[2]),
        key_tokens=keys, mask=None if mask is None else mask.shape, layout=layout, isa=isa,
    )  # fmt: skip
    found = run(_kernels.ThreadPool(2), op, x[0], x[1], third=x[2], mask=mask)
    parted = [heads_of(y[:, :, 0, 0], sequences, heads, size, at) for y, size, at in zip(x, depths, first, strict=True)]
    np.testing.assert_allclose(found[:, :, 0, 0], attention(*parted, 0.4, mask), rtol=0, atol=3e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_tensor_holds_queries_keys_and_values(layout: str) -> None:
    x = random_array(np.random.default_rng(0), (2 * 21, 3 * 12, 1, 1))
    op = _kernels.Attention(
        sequences=2, tokens=21, heads=3, depth=4, value_depth=4, scale=0.5, queries=(36, 0), keys=(36, 12),
        values=(36, 24), layout=layout,
    )  # fmt: skip
    found = run(_kernels.ThreadPool(2), op, x, x, third=x)
    parted = [heads_of(x[:, :, 0, 0], 2, 3, 4, first) for first in (0, 12, 24)]
    np.testing.assert_allclose(found[:, :, 0, 0], attention(*parted, 0.5, None), rtol=0, atol=3e-5)


@pytest.mark.parametrize("isa", _kernels.supported_isas())
@pytest.mark.parametrize("nan_to_zero", [False, True])
def test_tokens_that_attend_to_nothing(isa: str, nan_to_zero: bool) -> None:
    tokens = 19
    x = random_array(np.random.default_rng(0), (tokens, 6, 1, 1))
    mask = np.zeros((1, 1, tokens, tokens), np.float32)
    mask[0, 0, [3, 17]] = -np.inf
    op = _kernels.Attention(
        sequences=1, tokens=tokens, heads=2, depth=3, value_depth=3, scale=1.0, queries=(6, 0), keys=(6, 0),
        values=(6, 0), mask=mask.shape, nan_to_zero=nan_to_zero, isa=isa,
    )  # fmt: skip
    found = run(_kernels.ThreadPool(1), op, x, x, third=x, mask=mask)[:, :, 0, 0]
    parted = heads_of(x[:, :, 0, 0], 1, 2, 3, 0)
    expected = attention(parted, parted, parted, 1.0, mask)
    assert np.isnan(expected[[3, 17]]).all()
    np.testing.assert_allclose(found, np.nan_to_num(expected) if nan_to_zero else expected, rtol=0, atol=3e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_keys_the_result_is_zero(layout: str) -> None:
    op = make(layout=layout, key_tokens=0)
    x = random_array(np.random.default_rng(0), (10, 6, 1, 1))
    nothing = np.empty((0, 6, 1, 1), np.float32)
    assert not run(_kernels.ThreadPool(1), op, x, nothing, third=nothing).any()


@pytest.mark.parametrize("sizes", [{"sequences": 0}, {"tokens": 0}, {"tokens": 0, "mask": (1, 1, 1, 0)}])
def test_nothing_to_attend(sizes: dict[str, Any]) -> None:
    op = make(layout="planes", **sizes)
    nothing = np.empty((0, 6, 1, 1), np.float32)
    assert run(_kernels.ThreadPool(1), op, nothing, nothing, third=nothing).shape == (0, 6, 1, 1)


def test_large_scores_do_not_overflow() -> None:
    x = random_array(np.random.default_rng(0), (20, 8, 1, 1)) * 1e3
    op = _kernels.Attention(
        sequences=1, tokens=20, heads=1, depth=8, value_depth=8, scale=1.0, queries=(8, 0), keys=(8, 0), values=(8, 0)
    )
    found = run(_kernels.ThreadPool(1), op, x, x, third=x)[:, :, 0, 0]
    parted = heads_of(x[:, :, 0, 0], 1, 1, 8, 0)
    np.testing.assert_allclose(found, attention(parted, parted, parted, 1.0, None), rtol=1e-4)


def rounded(x: np.ndarray, steps: float, scale: float, low: float, high: float) -> np.ndarray:
    return np.clip(np.rint(x * np.float32(steps)), low, high) * np.float32(scale)


@pytest.mark.parametrize("isa", _kernels.supported_isas())
@pytest.mark.parametrize("has_mask", [False, True])
def test_scores_and_weights_that_are_rounded(isa: str, has_mask: bool) -> None:
    rng = np.random.default_rng(1)
    # Scores are exact, and so is what is rounded of them.
    q, k, v = (rng.integers(-3, 4, (21, 6)).astype(np.float32) for _ in range(3))
    mask = rng.integers(-2, 1, (1, 1, 21, 21)).astype(np.float32) if has_mask else None
    of_scores, of_masked, of_weights = (1.4, 0.75, -9.0, 11.0), (1.6, 0.6, -20.0, 3.0), (251, 1 / 255, 0.0, 255.0)
    op = _kernels.Attention(
        sequences=1, tokens=21, heads=1, depth=6, value_depth=6, scale=0.25, queries=(6, 0), keys=(6, 0),
        values=(6, 0), mask=None if mask is None else mask.shape, score_roundings=[of_scores],
        masked_roundings=[of_masked], weight_roundings=[of_weights], layout="planes", isa=isa,
    )  # fmt: skip
    images = [x[:, :, None, None] for x in (q, k, v)]
    found = run(_kernels.ThreadPool(1), op, images[0], images[1], third=images[2], mask=mask)[:, :, 0, 0]
    scores = rounded(q @ k.T * np.float32(0.25), *of_scores)
    scores = rounded(scores + (0 if mask is None else mask[0, 0]), *of_masked)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found, rounded(weights, *of_weights) @ v, rtol=0, atol=1e-5)


@pytest.mark.parametrize("isa", _kernels.supported_isas())
def test_weights_are_rounded_after_nan_became_zero(isa: str) -> None:
    rng = np.random.default_rng(2)
    x = rng.integers(-3, 4, (37, 4)).astype(np.float32)
    mask = np.zeros((1, 1, 37, 37), np.float32)
    mask[0, 0, [2, 16, 36]] = -np.inf
    of_weights = (255.0, 1 / 255, 0.0, 255.0)
    op = _kernels.Attention(
        sequences=1, tokens=37, heads=1, depth=4, value_depth=4, scale=0.25, queries=(4, 0), keys=(4, 0),
        values=(4, 0), mask=mask.shape, nan_to_zero=True, weight_roundings=[of_weights], layout="planes", isa=isa,
    )  # fmt: skip
    image = x[:, :, None, None]
    found = run(_kernels.ThreadPool(2), op, image, image, third=image, mask=mask)[:, :, 0, 0]
    scores = x @ x.T * np.float32(0.25)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    weights[[2, 16, 36]] = 0
    np.testing.assert_allclose(found, rounded(weights, *of_weights) @ x, rtol=0, atol=2e-2)
    assert not found[[2, 16, 36]].any()


def make(**changes: Any) -> _kernels.Attention:
    given = {"sequences": 2, "tokens": 5, "heads": 2, "depth": 3, "value_depth": 3, "scale": 1.0, "queries": (6, 0)}
    return _kernels.Attention(**(given | {"keys": (6, 0), "values": (6, 0)} | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 0}, "must be positive"),
        ({"tokens": -1}, "not negative"),
        ({"key_tokens": -1}, "not negative"),
        ({"key_tokens": 4, "mask": (1, 1, 1, 5)}, "does not fit the scores"),
        ({"score_roundings": [(1.0, 0.0, -1, 1)]}, "must be positive and finite"),
        ({"masked_roundings": [(1.0, 1.0, 2, 1)]}, "in order and below"),
        ({"weight_roundings": [(1.0, 1.0, 0, 2.0**23)]}, "in order and below"),
        ({"heads": 3}, "no channels for all heads"),
        ({"keys": (6, 1)}, "no channels for all heads"),
        ({"values": (7, -1)}, "no channels for all heads"),
        ({"mask": (1, 1, 1, 4)}, "does not fit the scores"),
        ({"mask": (1, 1, 2, 5)}, "does not fit the scores"),
        ({"sequences": 2**40, "tokens": 2**40}, "too many elements"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_operands_that_are_missing_or_of_another_size_are_refused() -> None:
    op = make(layout="planes", mask=(1, 1, 1, 5))
    pool, shape = _kernels.ThreadPool(1), (10, 6, 1, 1)
    x, out = np.zeros(60, np.float32), np.zeros(60, np.float32)
    with pytest.raises(ValueError, match="are missing"):
        op.run(pool, shape, x, out, x, x)
    with pytest.raises(ValueError, match="mask: the array has 4 values, the shape 5"):
        op.run(pool, shape, x, out, x, x, x[:4])
    with pytest.raises(ValueError, match="third: the operator takes no such operand"):
        _kernels.Elementwise("add", layout="planes").run(pool, shape, x, out, x, x)
    with pytest.raises(ValueError, match="channels of the queries"):
        op.output_shape((10, 5, 1, 1))
