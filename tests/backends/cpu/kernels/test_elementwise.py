from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
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
@pytest.mark.parametrize("kind", ["sigmoid", "silu", "tanh", "mish"])
def test_activations_are_no_further_from_double_precision_than_onnxruntimes(
    pool: _kernels.ThreadPool, isa: str, kind: str
) -> None:
    """What kernels have in the place of a division and an exponential is no coarser."""
    x = np.linspace(-20, 20, 40001, dtype=np.float32).reshape(1, 1, 1, -1)
    expected = activate(x.astype(np.float64), (kind, 0.0, 0.0))
    found = run(pool, _kernels.Elementwise("first", activation=(kind, 0.0, 0.0), layout="planes", isa=isa), x)
    nodes = [onnx.helper.make_node("Sigmoid" if kind == "silu" else kind.capitalize(), ["x"], ["f"])]
    if kind == "silu":
        nodes.append(onnx.helper.make_node("Mul", ["x", "f"], ["y"]))
    ends = [onnx.helper.make_tensor_value_info(name, 1, x.shape) for name in ("x", nodes[-1].output[0])]
    graph = onnx.helper.make_graph(nodes, "activation", ends[:1], ends[1:])
    opset = [onnx.helper.make_opsetid("", 18)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    (theirs,) = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    errors = [np.sqrt(np.square(y - expected).mean()) for y in (found, theirs)]
    assert errors[0] <= errors[1]


@pytest.mark.parametrize("isa", ISAS)
def test_gelu_is_exact_far_out_and_accurate_near_zero(pool: _kernels.ThreadPool, isa: str) -> None:
    """From 5.6 on, floats round its factor to 0 or 1; near zero its factor of a half is found to the last bits."""
    far = np.geomspace(5.6, 1e30, 2000).astype(np.float32)
    near = np.geomspace(1e-30, 1, 2000).astype(np.float32)
    op = _kernels.Elementwise("first", activation=("gelu", 0.0, 0.0), layout="planes", isa=isa)
    y = run(pool, op, np.concatenate([far, -far, near, -near]).reshape(1, 1, 1, -1)).reshape(4, -1)
    np.testing.assert_array_equal(y[:2], np.stack([far, np.zeros_like(far)]))
    signed = np.stack([near, -near])
    np.testing.assert_allclose(y[2:], activate(signed.astype(np.float64), ("gelu", 0.0, 0.0)), rtol=4e-7)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["clip", "leaky", "sigmoid", "silu", "gelu", "gelu_tanh"])
def test_nan_stays_nan(pool: _kernels.ThreadPool, isa: str, kind: str) -> None:
    x = np.full((1, 1, 1, 19), np.nan, np.float32)
    op = _kernels.Elementwise("first", activation=(kind, 0.0, 6.0), layout="planes", isa=isa)
    assert np.isnan(run(pool, op, x)).all()


def test_a_missing_operand_is_refused(pool: _kernels.ThreadPool) -> None:
    with pytest.raises(ValueError, match="second operand is missing"):
        run(pool, _kernels.Elementwise("add", layout="planes"), np.ones((1, 1, 2, 2), np.float32))
