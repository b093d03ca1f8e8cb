from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import LANES, LAYOUTS, Array, Shape, aligned, lanes_of, random_array

from sift_onnx.backends.cpu import _kernels

ISAS = _kernels.supported_isas()


def in_layout(x: Array, layout: str) -> Array:
    return x.reshape(-1).copy() if layout == "planes" else lanes_of(x)


def from_layout(flat: Array, shape: Shape, layout: str) -> Array:
    n, c, h, w = shape
    if layout == "planes":
        return flat.reshape(shape)
    blocks = flat.reshape(-(-n // LANES), c, h, w, LANES).transpose(0, 4, 1, 2, 3)
    return blocks.reshape(-1, c, h, w)[:n]


def places(shape: Shape, layout: str) -> np.ndarray:
    """Of each value of a tensor, the float that holds it."""
    n, c, h, w = np.indices(shape)
    within = (c * shape[2] + h) * shape[3] + w
    size = int(np.prod(shape[1:]))
    return n * size + within if layout == "planes" else (n // LANES * size + within) * LANES + n % LANES


shapes = st.tuples(st.integers(1, 35), st.integers(1, 40), st.integers(1, 4), st.integers(1, 9))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("source_layout", LAYOUTS)
@pytest.mark.parametrize("target_layout", LAYOUTS)
@settings(max_examples=18, deadline=None)
@given(target=shapes, sizes=st.tuples(st.integers(1, 40), st.integers(1, 9)), data=st.data())
def test_values_come_from_where_the_map_says(
    isa: str, source_layout: str, target_layout: str, target: Shape, sizes: tuple[int, int], data: st.DataObject
) -> None:
    """Positions of any images and pixels, in runs of any length; some are left as they are."""
    n, c, h, w = target
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    source: Shape = (sizes[0], c + 2, sizes[1], 1)
    x = random_array(rng, source)
    where = places(source, source_layout)
    first = data.draw(st.integers(0, 2))
    channels = where[0, first : first + c, 0, 0] - where[0, 0, 0, 0]
    every = where[:, 0].reshape(-1)
    run = data.draw(st.integers(1, 20))
    starts = rng.integers(0, len(every), -(-n * h * w // run))
    chosen = ((starts[:, None] + np.arange(run)) % len(every)).reshape(-1)[: n * h * w]
    kept = rng.random(n * h * w) < data.draw(st.sampled_from((0.0, 0.3)))
    op = _kernels.Rearrange(
        np.where(kept, -1, every[chosen]), channels, source=source, target=target,
        source_layout=source_layout, target_layout=target_layout, isa=isa,
    )  # fmt: skip
    before = random_array(rng, target)
    out = aligned(len(in_layout(before, target_layout)))
    out[:] = in_layout(before, target_layout)
    op.run(_kernels.ThreadPool(2), source, in_layout(x, source_layout), out)
    values = x.transpose(0, 2, 3, 1).reshape(-1, c + 2)[chosen, first : first + c].reshape(n, h, w, c)
    expected = np.where(kept.reshape(n, 1, h, w), before, values.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(from_layout(out, target, target_layout), expected)
    if target_layout == "images16":
        assert np.isfinite(out).all(), "lanes past the last image hold finite values"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_of_channels_join(isa: str, layout: str) -> None:
    rng = np.random.default_rng(1)
    a, b = random_array(rng, (19, 3, 1, 1)), random_array(rng, (19, 5, 1, 1))
    out = aligned((32 if layout == "images16" else 19) * 8)
    for x, first in ((a, 0), (b, 3)):
        where = places(x.shape, layout)
        op = _kernels.Rearrange(
            where[:, 0, 0, 0], where[0, :, 0, 0], source=x.shape, target=(19, 8, 1, 1), first_channel=first,
            source_layout=layout, target_layout=layout, isa=isa,
        )  # fmt: skip
        op.run(_kernels.ThreadPool(2), x.shape, in_layout(x, layout), out)
    np.testing.assert_array_equal(from_layout(out, (19, 8, 1, 1), layout), np.concatenate([a, b], 1))


@pytest.mark.parametrize(
    ("positions", "channels", "first", "message"),
    [
        ([0], [0], 0, "one place per position"),
        ([0, 1], [0, 0], 0, "does not have the channels"),
        ([0, 1], [0], 1, "does not have the channels"),
        ([0, 4], [2], 0, "a position lies outside"),
        ([0, -2], [0], 0, "a position lies outside"),
        ([0, 1], [-1], 0, "a channel lies outside"),
        ([0, 1], [2**60], 0, "a channel lies outside"),
        ([0, 2**62], [3], 0, "a position lies outside"),
    ],
)
def test_maps_that_do_not_fit_are_refused(positions: list[int], channels: list[int], first: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _kernels.Rearrange(
            np.array(positions), np.array(channels), source=(6, 1, 1, 1), target=(2, 1, 1, 1), first_channel=first,
            source_layout="planes", target_layout="planes",
        )  # fmt: skip


def test_an_input_of_another_shape_is_refused() -> None:
    op = _kernels.Rearrange(
        np.array([0, 1]), np.array([0]), source=(6, 1, 1, 1), target=(2, 1, 1, 1),
        source_layout="planes", target_layout="planes",
    )  # fmt: skip
    with pytest.raises(ValueError, match="for an input of another shape"):
        op.output_shape((5, 1, 1, 1))
