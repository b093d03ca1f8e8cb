from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_reference import LAYOUTS, aligned, random_array, run

from sift_onnx.backends.cpu import _kernels


@pytest.mark.parametrize("isa", _kernels.supported_isas())
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=30, deadline=None)
@given(
    m=st.integers(1, 40), channels=st.integers(1, 150), mean=st.sampled_from((0.0, 100.0)), is_centered=st.booleans(),
    least=st.sampled_from((0.0, 0.9)),
)  # fmt: skip
def test_rows_are_normalized(
    isa: str, layout: str, m: int, channels: int, mean: float, is_centered: bool, least: float
) -> None:
    rng = np.random.default_rng(channels)
    x = random_array(rng, (m, channels, 1, 1)) + np.float32(mean)
    scale, shift = random_array(rng, (channels,)), random_array(rng, (channels,))
    op = _kernels.LayerNormalization(scale, shift, 1e-3, least=least, is_centered=is_centered, layout=layout, isa=isa)
    exact = x.astype(np.float64)
    center = exact - is_centered * exact.mean(1, keepdims=True)
    expected = center / np.sqrt(np.maximum((center**2).mean(1, keepdims=True), least) + 1e-3) * scale[:, None, None]
    expected += shift[:, None, None]
    np.testing.assert_allclose(run(_kernels.ThreadPool(2), op, x), expected, rtol=2e-4, atol=2e-4 * (1 + mean / 10))


@pytest.mark.parametrize("isa", _kernels.supported_isas())
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(1, 18), channels=st.integers(1, 70), height=st.integers(1, 9), width=st.integers(1, 20),
    is_centered=st.booleans(), least=st.sampled_from((0.0, 0.9)),
)  # fmt: skip
def test_pixels_are_normalized(
    isa: str, layout: str, n: int, channels: int, height: int, width: int, is_centered: bool, least: float
) -> None:
    rng = np.random.default_rng(channels)
    x = random_array(rng, (n, channels, height, width))
    scale, shift = random_array(rng, (channels,)), random_array(rng, (channels,))
    op = _kernels.LayerNormalization(scale, shift, 1e-3, least=least, is_centered=is_centered, layout=layout, isa=isa)
    center = x.astype(np.float64)
    center = center - is_centered * center.mean(1, keepdims=True)
    expected = center / np.sqrt(np.maximum((center**2).mean(1, keepdims=True), least) + 1e-3) * scale[:, None, None]
    expected += shift[:, None, None]
    found = [run(_kernels.ThreadPool(threads), op, x) for threads in (1, 3)]
    np.testing.assert_allclose(found[0], expected, rtol=2e-4, atol=2e-4)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("isa", _kernels.supported_isas())
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("is_grouped", [False, True])
@pytest.mark.parametrize("image", [(3, 5), (1, 1)])
def test_results_may_lie_where_the_operand_does(
    isa: str, layout: str, is_grouped: bool, image: tuple[int, int]
) -> None:
    rng = np.random.default_rng(0)
    shape = (32, 24, *image)
    scale, shift = random_array(rng, (24,)), random_array(rng, (24,))
    if is_grouped:
        op = _kernels.GroupNormalization(scale, shift, 4, 1e-3, layout=layout, isa=isa)
    else:
        op = _kernels.LayerNormalization(scale, shift, 1e-3, layout=layout, isa=isa)
    x = random_array(rng, shape)
    size = x.size
    copy = _kernels.Elementwise("first", layout=layout, isa=isa)
    whole = (None, None, None)
    apart = [(copy, shape, (0, 0), whole, (-1, 0)), (op, shape, (-1, 0), whole, (-1, size))]
    there = [(copy, shape, (0, 0), whole, (-1, 0)), (op, shape, (-1, 0), whole, (-1, 0))]
    results = []
    for steps, at in ((apart, size), (there, 0)):
        sequence = _kernels.Sequence([*steps, (copy, shape, (-1, at), whole, (1, 0))], 2 * size, [size, size])
        y = aligned(size)
        source = aligned(size)
        source[:] = x.ravel()
        sequence.run(_kernels.ThreadPool(2), _kernels.Workspace(), [source, y])
        results.append(y)
    np.testing.assert_array_equal(results[0], results[1])
    assert np.abs(results[0]).max() > 0.1


def test_scales_and_shifts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="one scale and one shift per channel"):
        _kernels.LayerNormalization(np.ones(3, np.float32), np.ones(2, np.float32), 1e-5)
    op = _kernels.LayerNormalization(np.ones(3, np.float32), np.ones(3, np.float32), 1e-5, layout="planes")
    with pytest.raises(ValueError, match="channels of the scale"):
        op.output_shape((2, 4, 1, 1))
