"""Values that are put at places, against numpy, one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_reference import aligned

from sift_onnx.backends.cpu import _kernels

REDUCTIONS: dict[str, Any] = {
    "none": lambda held, value: value,
    "add": np.add,
    "mul": np.multiply,
    "max": lambda held, value: np.where(held < value, value, held),
    "min": lambda held, value: np.where(value < held, value, held),
}
Shape = tuple[int, int, int, int]


def scattered(start: np.ndarray, places: np.ndarray, x: np.ndarray, reduction: str, first: float | None) -> np.ndarray:
    """``places`` has the sizes of ``x``, or one position for all pixels."""
    out = start.copy()
    everywhere = np.broadcast_to(places, x.shape)
    if first is not None:
        np.put_along_axis(out, everywhere, np.float32(first), axis=1)
    for i in range(x.shape[1]):
        own = everywhere[:, i : i + 1]
        held = np.take_along_axis(out, own, axis=1)
        np.put_along_axis(out, own, REDUCTIONS[reduction](held, x[:, i : i + 1]).astype(np.float32), axis=1)
    return out


def made(
    start: np.ndarray | float, places: np.ndarray, x: np.ndarray, count: int, threads: int = 2, **told: Any
) -> np.ndarray:
    """The result of the operator, which begins as an array or as a number."""
    is_filled = isinstance(start, float)
    op = _kernels.ScatterElements(
        count, has_index_for_all=places.shape != x.shape, fill=start if is_filled else None, **told
    )
    shape = op.output_shape(x.shape)
    out = aligned(int(np.prod(shape)))
    out[:] = np.nan
    third = None if is_filled else np.ascontiguousarray(start).reshape(-1)
    op.run(_kernels.ThreadPool(threads), x.shape, x.reshape(-1), out, places.reshape(-1).view(np.float32), third)
    return out.reshape(shape)


# Too little for two threads, one channel, whole lines and others of pixels, images for each thread and for none.
SHAPES: list[tuple[Shape, int]] = [
    ((1, 5, 3, 1), 4), ((1, 700, 256, 1), 30), ((1, 900, 37, 1), 1), ((3, 400, 7, 5), 11), ((1, 9000, 1, 1), 50),
    ((2, 3, 70, 40), 90),
]  # fmt: skip


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize(("shape", "count"), SHAPES)
def test_values_come_to_their_places_in_order(reduction: str, shares: bool, shape: Shape, count: int) -> None:
    rng = np.random.default_rng(len(reduction) + shape[1])
    x = rng.uniform(0.5, 1.5, shape).astype(np.float32)
    places = rng.integers(-count, count, (*shape[:2], 1, 1) if shares else shape)
    start = rng.uniform(0.5, 1.5, (shape[0], count, *shape[2:])).astype(np.float32)
    wanted = scattered(start, places, x, reduction, None)
    for threads in (1, 2, 3, 5):
        # The same bits for any number of threads: sums are in one order.
        np.testing.assert_array_equal(made(start, places, x, count, threads, reduction=reduction), wanted)
    of_number = scattered(np.full_like(start, 0.75), places, x, reduction, -2.0)
    found = made(0.75, places, x, count, reduction=reduction, first=-2.0)
    np.testing.assert_array_equal(found, of_number)


@given(
    n=st.integers(1, 3), c=st.integers(0, 12), h=st.integers(1, 40), count=st.integers(1, 9),
    reduction=st.sampled_from(sorted(REDUCTIONS)), shares=st.booleans(), first=st.none() | st.floats(-3, 3, width=32),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_any_sizes(
    n: int, c: int, h: int, count: int, reduction: str, shares: bool, first: float | None, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.choice(np.array([-1, 0, 0.5, 2, np.inf, -np.inf, np.nan], np.float32), (n, c, h, 1))
    places = rng.integers(-count, count, (n, c, 1, 1) if shares else x.shape)
    start = rng.standard_normal((n, count, h, 1), dtype=np.float32)
    with np.errstate(invalid="ignore"):
        wanted = scattered(start, places, x, reduction, first)
    np.testing.assert_array_equal(made(start, places, x, count, reduction=reduction, first=first), wanted)


def test_what_has_no_place_is_refused() -> None:
    x, places = np.ones((1, 6, 2, 1), np.float32), np.array([0, 1, 2, -3, 3, 0])
    for shares in (True, False):
        own = places.reshape(1, 6, 1, 1) if shares else np.repeat(places, 2).reshape(x.shape)
        with pytest.raises(ValueError, match="index 3 of an axis of 3 values"):
            made(0.0, own, x, 3)
    with pytest.raises(ValueError, match="the number of channels is negative"):
        _kernels.ScatterElements(-1, fill=0.0)
    with pytest.raises(ValueError, match="reduction 'sum'"):
        _kernels.ScatterElements(3, reduction="sum", fill=0.0)
    pool, out = _kernels.ThreadPool(1), aligned(6)
    with pytest.raises(ValueError, match="there are no indices"):
        _kernels.ScatterElements(3, fill=0.0).run(pool, x.shape, x.reshape(-1), out)
    op = _kernels.ScatterElements(3, has_index_for_all=True)
    with pytest.raises(ValueError, match="there is nothing to begin with"):
        op.run(pool, x.shape, x.reshape(-1), out, places.view(np.float32))
