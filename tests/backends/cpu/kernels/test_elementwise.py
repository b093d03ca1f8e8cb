from __future__ import annotations

import numpy as np
import pytest
from kernel_reference import ACTIVATIONS, LAYOUTS, Shape, activate, assert_close, random_array, run

from sift_onnx.backends.cpu import _kernels

ISAS = _kernels.supported_isas()
SHAPES = [(1, 3, 5, 7), (16, 2, 3, 3), (19, 4, 1, 1), (1, 1, 200, 300)]


@pytest.fixture(scope="module")
def pool() -> _kernels.ThreadPool:
    return _kernels.ThreadPool(2)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["first", "add", "subtract", "multiply"])
@pytest.mark.parametrize("shape", SHAPES)
def test_two_tensors_combine(pool: _kernels.ThreadPool, isa: str, layout: str, kind: str, shape: Shape) -> None:
    rng = np.random.default_rng(0)
    a, b = random_array(rng, shape), random_array(rng, shape)
    expected = {"first": a, "add": a + b, "subtract": a - b, "multiply": a * b}[kind]
    op = _kernels.Elementwise(kind, activation=("clip", 0.0, 6.0), layout=layout, isa=isa)
    assert_close(run(pool, op, a, None if kind == "first" else b), np.clip(expected, 0, 6))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_channels_are_scaled_and_shifted(pool: _kernels.ThreadPool, isa: str, layout: str) -> None:
    rng = np.random.default_rng(0)
    x, scale, shift = random_array(rng, (17, 6, 3, 5)), random_array(rng, (6,)), random_array(rng, (6,))
    op = _kernels.ChannelScale(scale, shift, layout=layout, isa=isa)
    assert_close(run(pool, op, x), x * scale.reshape(6, 1, 1) + shift.reshape(6, 1, 1))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_are_accurate_and_bounded_far_out(
    pool: _kernels.ThreadPool, isa: str, activation: tuple[str, float, float]
) -> None:
    x = np.concatenate([np.linspace(-12, 12, 4001), [-1e30, -200, -90, -0.0, 1e-8, 90, 200, 1e30]])
    x = x.astype(np.float32).reshape(1, 1, 1, -1)
    op = _kernels.Elementwise("first", activation=activation, layout="planes", isa=isa)
    y = run(pool, op, x)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = activate(x.astype(np.float64), activation)
    expected = np.where(np.isfinite(expected), expected, np.where(x > 0, x, 0))
    np.testing.assert_allclose(y, expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["clip", "leaky"])
def test_nan_stays_nan(pool: _kernels.ThreadPool, isa: str, kind: str) -> None:
    x = np.full((1, 1, 1, 19), np.nan, np.float32)
    op = _kernels.Elementwise("first", activation=(kind, 0.0, 6.0), layout="planes", isa=isa)
    assert np.isnan(run(pool, op, x)).all()


def test_a_missing_operand_is_refused(pool: _kernels.ThreadPool) -> None:
    with pytest.raises(ValueError, match="second operand is missing"):
        run(pool, _kernels.Elementwise("add", layout="planes"), np.ones((1, 1, 2, 2), np.float32))
