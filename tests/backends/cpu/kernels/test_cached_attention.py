from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import LAYOUTS, Array, random_array, run

from sift_onnx.backends.cpu import _kernels

LEAST = np.finfo(np.float32).min
POOLS = {threads: _kernels.ThreadPool(threads) for threads in (1, 2)}
WORKSPACE = _kernels.Workspace()


def sequence_of(op: _kernels.Op, sizes: list[tuple[int, int]], made: int) -> _kernels.Sequence:
    """One operator on arrays of its own: operands, then the result."""
    counts = [rows * channels for rows, channels in sizes]
    first = (*sizes[0], 1, 1)
    places = ((1, 0), (2, 0), None)
    return _kernels.Sequence([(op, first, (0, 0), places, (3, 0))], 0, [*counts, made])


def reference(
    q: Any, k: Any, v: Any, scale: float, past: Any, mask: Array | None, is_causal: bool, window: int, softcap: float
) -> Any:
    """[sequences, tokens, heads, value_depth] of q [sequences, tokens, heads, depth] and whole caches."""
    sequences, tokens, heads, _ = q.shape
    group = heads // k.shape[1]
    out = np.zeros((sequences, tokens, heads, v.shape[3]))
    for n in range(sequences):
        for t in range(tokens):
            seen = past[n] + (t + 1 if is_causal else tokens)
            first = max(seen - window, 0) if window else 0
            for h in range(heads):
                scores = k[n, h // group, first:seen].astype(np.float64) @ q[n, t, h].astype(np.float64) * scale
                if softcap:
                    scores = softcap * np.tanh(scores / softcap)
                if mask is not None:
                    full = np.broadcast_to(mask, (sequences, heads, tokens, mask.shape[3]))
                    scores = scores + full[n, h, t, first:seen]
                weights = np.exp(scores - scores.max())
                out[n, t, h] = weights / weights.sum() @ v[n, h // group, first:seen]
    return out


@settings(max_examples=40, deadline=None)
@given(draw=st.data(), isa=st.sampled_from(_kernels.supported_isas()), threads=st.sampled_from((1, 2)))
def test_attention_to_a_cache(draw: st.DataObject, isa: str, threads: int) -> None:
    rng = np.random.default_rng(draw.draw(st.integers(0, 99)))
    sequences, key_heads, group = (draw.draw(st.integers(1, 3)) for _ in range(3))
    tokens, past = draw.draw(st.sampled_from((1, 2, 3, 4, 17, 33))), draw.draw(st.sampled_from((0, 1, 7, 40)))
    depth, value_depth = draw.draw(st.sampled_from((1, 5, 16, 23, 64))), draw.draw(st.sampled_from((1, 6, 16, 72, 140)))
    heads, total = key_heads * group, past + tokens
    is_causal, in_place, padded = (draw.draw(st.booleans()) for _ in range(3))
    window = draw.draw(st.sampled_from((0, 1, 6))) if is_causal else 0
    softcap = draw.draw(st.sampled_from((0.0, 0.5)))
    first = draw.draw(st.sampled_from((0, 3)))
    sizes = [(sequences * tokens, first + count * size) for count, size in
             ((heads, depth), (key_heads, depth), (key_heads, value_depth))]  # fmt: skip
    op = _kernels.CachedAttention(
        sequences=sequences, tokens=tokens, heads=heads, key_heads=key_heads, depth=depth, value_depth=value_depth,
        scale=0.3, queries=(sizes[0][1], first), keys=(sizes[1][1], first), values=(sizes[2][1], first),
        is_causal=is_causal, window=window, softcap=softcap, isa=isa,
    )  # fmt: skip
    q, k, v = (random_array(rng, size) for size in sizes)
    room = [random_array(rng, (sequences, key_heads, total + 2, size)) for size in (depth, value_depth)]
    behind = [array[:, :, total:].copy() for array in room]
    pasts = [array[:, :, :past].copy() for array in room]
    in_room = in_place and draw.draw(st.booleans())
    made = [array[:, :, :total] if in_place else np.empty_like(array[:, :, :total]) for array in room]
    given = [array[:, :, :past] for array in room] if in_place else pasts
    past_of = rng.integers(0, past + 1, sequences) if padded else None
    mask = None
    if draw.draw(st.booleans()):
        axes = [draw.draw(st.sampled_from((1, size))) for size in (sequences, heads, tokens)]
        mask = random_array(rng, (*axes, total))
        hidden = rng.random(mask.shape) < 0.4
        hidden[..., :: window or total] = False  # a query sees something
        mask[hidden] = draw.draw(st.sampled_from((LEAST, -np.inf)))
    out = np.empty((sequences * tokens, heads * value_depth), np.float32)
    place = (_kernels.CacheRoom(*room), past, total) if in_room else (*given, *made)
    caches = [(*place, past_of, None, mask)]
    sequence_of(op, sizes, out.size).run(POOLS[threads], WORKSPACE, [q, k, v, out], caches=caches)

    begins = np.full(sequences, past) if past_of is None else past_of
    for array, before, new, size in zip(made, pasts, (k, v), (depth, value_depth), strict=True):
        rows = new.reshape(sequences, tokens, -1)[:, :, first:].reshape(sequences, tokens, key_heads, size)
        for n, begin in enumerate(begins):
            np.testing.assert_array_equal(array[n, :, begin : begin + tokens], rows[n].swapaxes(0, 1))
            np.testing.assert_array_equal(array[n, :, :begin], before[n, :, :begin])
    for array, kept in zip(room, behind, strict=True):
        np.testing.assert_array_equal(array[:, :, total:], kept)
    wanted = reference(
        q.reshape(sequences, tokens, -1)[:, :, first:].reshape(sequences, tokens, heads, depth), *made, 0.3, begins,
        mask, is_causal, window, softcap,
    )  # fmt: skip
    np.testing.assert_allclose(out.reshape(wanted.shape), wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("isa", _kernels.supported_isas())
@pytest.mark.parametrize("tokens", [1, 20])
def test_a_cache_that_is_only_read(isa: str, tokens: int) -> None:
    rng = np.random.default_rng(1)
    keys, values = random_array(rng, (2, 2, 9, 8)), random_array(rng, (2, 2, 9, 5))
    kept = keys.copy(), values.copy()
    op = _kernels.CachedAttention(
        sequences=2, tokens=tokens, heads=4, key_heads=2, depth=8, value_depth=5, scale=0.3, queries=(32, 0),
        keys=(0, 0), values=(0, 0), appends=False, isa=isa,
    )  # fmt: skip
    q, out = random_array(rng, (2 * tokens, 32)), np.empty((2 * tokens, 20), np.float32)
    ends = np.array([9, 4])
    sequence = _kernels.Sequence([(op, (2 * tokens, 32, 1, 1), (0, 0), (None,) * 3, (1, 0))], 0, [q.size, out.size])
    sequence.run(POOLS[2], WORKSPACE, [q, out], caches=[(keys, values, None, None, None, ends, None)])
    wanted = reference(q.reshape(2, tokens, 4, 8), keys, values, 0.3, ends - tokens, None, False, 0, 0.0)
    np.testing.assert_allclose(out.reshape(wanted.shape), wanted, rtol=0, atol=2e-5)
    np.testing.assert_array_equal(keys, kept[0])
    np.testing.assert_array_equal(values, kept[1])


def one(**changes: Any) -> _kernels.CachedAttention:
    given = {"sequences": 1, "tokens": 2, "heads": 2, "key_heads": 1, "depth": 4, "value_depth": 4, "scale": 1.0}
    return _kernels.CachedAttention(**(given | {"queries": (8, 0), "keys": (4, 0), "values": (4, 0)} | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"heads": 3, "key_heads": 2},
        {"keys": (3, 0)},
        {"queries": (8, 1)},
        {"depth": 0},
        {"tokens": -1},
        {"window": 2},
        {"window": -1, "is_causal": True},
        {"softcap": -1.0},
        {"appends": False, "is_causal": True},
    ],
)
def test_heads_that_do_not_fit_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cached attention"):
        one(**changes)


def zeros(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


def cache_of(past: int, total: int, **changes: Array | None) -> Any:
    names = ("past_keys", "past_values", "keys", "values", "past_of", "ends_of", "mask")
    sizes = (past, past, total, total)
    known = dict(zip(names, (*(zeros(1, 1, size, 4) for size in sizes), None, None, None), strict=True))
    return tuple((known | changes).values())


@pytest.mark.parametrize(
    ("caches", "said"),
    [
        ([], "1 steps take a cache, and there are 0"),
        ([cache_of(3, 4)], "no room"),
        ([cache_of(3, 5, past_values=zeros(1, 1, 2, 4))], "fit each other"),
        ([cache_of(3, 5, past_keys=zeros(1, 2, 3, 4), keys=zeros(1, 2, 5, 4))], "fit each other"),
        ([cache_of(3, 5, past_keys=zeros(1, 1, 3, 3), keys=zeros(1, 1, 5, 3))], "other sequences"),
        ([cache_of(3, 5, past_of=np.array([4]))], "more tokens"),
        ([cache_of(3, 5, past_of=np.array([-1]))], "more tokens"),
        ([cache_of(3, 5, past_of=np.array([1, 1]))], "one length per sequence"),
        ([cache_of(3, 5, ends_of=np.array([6]))], "outside of its cache"),
        ([cache_of(3, 5, ends_of=np.array([0]))], "outside of its cache"),
        ([cache_of(3, 5, keys=None)], "fit each other"),
        ([cache_of(3, 5, keys=None, values=None)], "no room"),
        ([cache_of(3, 5, mask=zeros(1, 1, 2, 4))], "the mask"),
        ([cache_of(3, 5, keys=zeros(1, 1, 4, 5).swapaxes(2, 3))], "one after the other"),
    ],
)
def test_caches_that_do_not_fit_are_refused(caches: Any, said: str) -> None:
    sequence = sequence_of(one(), [(2, 8), (2, 4), (2, 4)], 16)
    arrays = [zeros(2, 8), zeros(2, 4), zeros(2, 4), zeros(2, 8)]
    with pytest.raises(ValueError, match=said):
        sequence.run(POOLS[1], WORKSPACE, arrays, caches=caches)


@pytest.mark.parametrize(
    ("keys", "values", "said"),
    [
        (zeros(1, 1, 5, 4), zeros(1, 1, 6, 4), "fit each other"),
        (zeros(1, 1, 4, 5).swapaxes(2, 3), zeros(1, 1, 5, 4), "one after the other"),
    ],
)
def test_rooms_that_do_not_fit_are_refused(keys: Array, values: Array, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        _kernels.CacheRoom(keys, values)


@pytest.mark.parametrize(("past", "total"), [(-1, 1), (4, 3), (4, 6)])
def test_tokens_that_a_room_does_not_have_are_refused(past: int, total: int) -> None:
    room = _kernels.CacheRoom(zeros(1, 1, 5, 4), zeros(1, 1, 5, 4))
    sequence = sequence_of(one(), [(2, 8), (2, 4), (2, 4)], 16)
    arrays = [zeros(2, 8), zeros(2, 4), zeros(2, 4), zeros(2, 8)]
    with pytest.raises(ValueError, match="no room"):
        sequence.run(POOLS[1], WORKSPACE, arrays, caches=[(room, past, total, None, None, None)])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize("has_angle_each", [False, True])
@pytest.mark.parametrize(("rows", "depth", "rotated"), [(1, 8, 8), (19, 10, 6), (400, 64, 64)])
def test_rotation(layout: str, is_interleaved: bool, has_angle_each: bool, rows: int, depth: int, rotated: int) -> None:
    rng = np.random.default_rng(0)
    heads, pairs = 3, rotated // 2
    x = random_array(rng, (rows, heads * depth))
    cos, sin = (random_array(rng, (rows, rotated if has_angle_each else pairs)) for _ in range(2))
    first = np.arange(pairs) * 2 if is_interleaved else np.arange(pairs)
    second = first + (1 if is_interleaved else pairs)
    of_first, of_second = (first, second) if has_angle_each else (np.arange(pairs),) * 2
    parts = x.reshape(rows, heads, depth)
    wanted = parts.copy()
    wanted[..., first] = parts[..., first] * cos[:, None, of_first] - parts[..., second] * sin[:, None, of_first]
    wanted[..., second] = parts[..., second] * cos[:, None, of_second] + parts[..., first] * sin[:, None, of_second]
    op = _kernels.Rotate(
        heads=heads, depth=depth, rotated=rotated, is_interleaved=is_interleaved, has_angle_each=has_angle_each,
        layout=layout,
    )  # fmt: skip
    x, cos, sin = (array.reshape(*array.shape, 1, 1) for array in (x, cos, sin))
    np.testing.assert_allclose(run(POOLS[2], op, x, cos, third=sin), wanted.reshape(x.shape), rtol=0, atol=1e-6)


@pytest.mark.parametrize("changes", [{"rotated": 3}, {"rotated": 10}, {"heads": 0}])
def test_channels_that_are_no_pairs_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="rotate"):
        _kernels.Rotate(**({"heads": 1, "depth": 8, "rotated": 8} | changes))
