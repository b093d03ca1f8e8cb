"""Views against numpy, whose arrays are moved by the same steps."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_onnx.backends.cpu.run.schedules.copied_offsets import lane_offsets
from sift_onnx.backends.cpu.run.schedules.kernel_shapes import kernel_shape
from sift_onnx.backends.cpu.run.schedules.placed_views import PlacedView, Stored
from sift_onnx.backends.cpu.run.schedules.view_moves import moved
from sift_onnx.backends.lowering.specs import Moving, Range, Reshaped, Sliced, Transposed

LANES = 16


@st.composite
def chains(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[Moving, np.ndarray]]]:
    """Sizes, and steps with what numpy makes of all places by each."""
    dims = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 4, 6)), min_size=2, max_size=4)))
    array = np.arange(math.prod(dims)).reshape(dims)
    steps: list[tuple[Moving, np.ndarray]] = []
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(("transpose", "merge", "split", "slice", "take")))
        axis = draw(st.integers(0, array.ndim - 1))
        size = array.shape[axis]
        spec: Moving
        if kind == "transpose":
            order = tuple(draw(st.permutations(range(array.ndim))))
            spec, array = Transposed(order), array.transpose(order)
        elif kind == "merge" and axis:
            sizes = (*array.shape[: axis - 1], array.shape[axis - 1] * size, *array.shape[axis + 1 :])
            spec, array = Reshaped(sizes), array.reshape(sizes)
        elif kind == "split":
            part = draw(st.sampled_from([n for n in (1, 2, 3) if size % n == 0]))
            sizes = (*array.shape[:axis], part, size // part, *array.shape[axis + 1 :])
            spec, array = Reshaped(sizes), array.reshape(sizes)
        elif kind == "slice":
            start, step = draw(st.integers(0, size - 1)), draw(st.integers(1, 2))
            stop = draw(st.integers(start + 1, size))
            spec = Sliced((Range(axis, start, stop, step),))
            array = array[(slice(None),) * axis + (slice(start, stop, step),)]
        elif kind == "take" and array.ndim > 2:
            place = draw(st.integers(0, size - 1))
            spec, array = Sliced((Range(axis, place, place + 1),), drops=True), array.take(place, axis)
        else:
            continue
        steps.append((spec, array))
    return dims, steps


@settings(max_examples=200, deadline=None)
@given(chain=chains())
def test_a_view_has_the_places_that_numpy_has(chain: tuple[tuple[int, ...], list[tuple[Moving, np.ndarray]]]) -> None:
    dims, steps = chain
    view = PlacedView.of(Stored("x", kernel_shape(dims, "rows"), "planes"), dims)
    for spec, array in steps:
        after = moved(view, spec, array.shape)
        if after is None:
            return
        view = after
        assert view.dims == array.shape
        positions, channels = view.offsets("rows")
        np.testing.assert_array_equal(np.add.outer(positions, channels).reshape(-1), array.reshape(-1))
        assert view.is_whole == np.array_equal(array.reshape(-1), np.arange(math.prod(dims)))


@settings(max_examples=100, deadline=None)
@given(n=st.integers(1, 40), c=st.integers(1, 4), pixels=st.integers(1, 5))
def test_places_in_lanes(n: int, c: int, pixels: int) -> None:
    """Pixels as positions, as a transpose to channels that come last reads them."""
    view = PlacedView.of(Stored("x", (n, c, pixels, 1), "images16"), (n, c, pixels))
    positions, channels = PlacedView(view.stored, (view.axes[0], view.axes[2], view.axes[1])).offsets("rows")
    found = lane_offsets(positions, channels, view.stored.shape)
    assert found is not None
    image, pixel, channel = np.indices((n, pixels, c))
    expected = ((image // LANES * c + channel) * pixels + pixel) * LANES + image % LANES
    np.testing.assert_array_equal(np.add.outer(found, channels * LANES).reshape(-1), expected.reshape(-1))


def test_channels_that_are_positions_of_lanes_have_no_offsets() -> None:
    """Rows become channels: those of one position lie in several rows."""
    view = PlacedView.of(Stored("x", (6, 4, 1, 1), "images16"), (6, 4))
    turned = moved(view, Transposed((1, 0)), (4, 6))
    assert turned is not None
    assert lane_offsets(*turned.offsets("rows"), (6, 4, 1, 1)) is None
