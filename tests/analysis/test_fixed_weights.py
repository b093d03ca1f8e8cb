"""Which weights are fixed functions, by their values; and that no transform takes them for layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs
import pytest

from sift_onnx.analysis.fixed_weights import fixed_weights
from sift_onnx.graphs.constants import replace_values
from sift_onnx.weights.sparse import SparseWeight

Array = npt.NDArray[Any]
RNG = np.random.default_rng(0)
BLUR = np.outer([1, 3, 3, 1], [1, 3, 3, 1]) / 64
LEARNED = RNG.standard_normal((8, 8))


def found(values: Array, op: str = "MatMul", **attributes: Any) -> str:
    """What tells that a weight is fixed, beside one that is not; empty if it is not."""
    weights = {"w": values.astype(np.float32), "other": LEARNED.astype(np.float32)}
    uses = [
        (gs.Node(op, attrs=attributes if name == "w" else {}), gs.Constant(name, weights[name])) for name in weights
    ]
    return fixed_weights(uses).get("w", "")


def fourier(length: int) -> tuple[Array, Array]:
    angles = 2 * np.pi * np.outer(np.arange(length // 2 + 1), np.arange(length)) / length
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)
    return np.cos(angles) * window, -np.sin(angles) * window


def mel(bins: int, filters: int) -> Array:
    edges = np.geomspace(4, bins - 1, filters + 2)[:, None]
    places = np.arange(bins)
    rising = (places - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - places) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(rising, falling))


def interpolation(old: int, new: int) -> Array:
    at = np.linspace(0, old - 1, new)[:, None]
    return np.maximum(0, 1 - np.abs(at - np.arange(old)))


@pytest.mark.parametrize(
    ("values", "op", "attributes", "reason"),
    [
        (np.arange(16.0).reshape(1, 16, 1, 1), "Conv", {}, "0, 1, ..., 15 is an arithmetic progression"),
        (np.arange(16.0).reshape(16, 1), "MatMul", {}, "0, 1, ..., 15 is an arithmetic progression"),
        (np.linspace(-1, 1, 33).reshape(1, 33), "Gemm", {}, "arithmetic progression"),
        ((10000.0 ** (-np.arange(32) / 32)).reshape(32, 1), "MatMul", {}, "geometric progression"),
        (np.full((1, 1, 3, 3), 1 / 9), "Conv", {}, "all weights are the same"),
        (np.broadcast_to(BLUR, (6, 1, 4, 4)), "Conv", {"group": 6}, "all channels have the same kernel"),
        (np.broadcast_to(BLUR, (6, 1, 4, 4)), "ConvTranspose", {"group": 6}, "all channels have the same kernel"),
        (np.tile(RNG.standard_normal((4, 1, 2, 2)), (6, 1, 1, 1)), "Conv", {"group": 6}, "have the same kernel"),
        (np.eye(3)[:, :, None, None] * BLUR, "ConvTranspose", {}, "have the same kernel, and do not mix"),
        (np.eye(4).reshape(4, 4, 1, 1), "Conv", {}, "each feature selects one input"),
        (np.eye(8)[::-1] * 0.5, "MatMul", {}, "each feature selects one input"),
        (np.tril(np.ones((8, 8))), "MatMul", {}, "bands that ascend"),
        (mel(257, 40), "MatMul", {}, "bands that ascend"),
        (mel(257, 40).T, "MatMul", {}, "bands that ascend"),
        (interpolation(14, 24), "MatMul", {}, "bands that ascend"),
        (fourier(64)[0][:, None], "Conv", {}, "Fourier"),
        (fourier(64)[1][:, None], "Conv", {}, "Fourier"),
        (np.concatenate(fourier(512))[:, None], "Conv", {}, "Fourier"),
        (fourier(64)[0].T, "MatMul", {}, "Fourier"),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_fixed_function_is_told_by_its_values(
    values: Array, op: str, attributes: dict[str, Any], reason: str, dtype: Any
) -> None:
    if "geometric" in reason and dtype == np.float16:
        return  # too coarse to tell
    assert reason in found(values.astype(dtype), op, **attributes)


def sparse_rows(shape: tuple[int, ...]) -> Array:
    return RNG.standard_normal(shape) * (RNG.random(shape) < 0.1)


@pytest.mark.parametrize(
    ("values", "op", "attributes"),
    [
        (RNG.standard_normal((64, 32)), "MatMul", {}),
        (RNG.standard_normal((512, 1024)), "MatMul", {}),
        (RNG.standard_normal((512, 1024)).astype(np.float16), "MatMul", {}),
        (RNG.standard_normal((32, 1)), "MatMul", {}),
        (RNG.standard_normal((1, 16, 1, 1)), "Conv", {}),
        (np.abs(RNG.standard_normal((64, 32))), "MatMul", {}),
        (np.maximum(0, RNG.standard_normal((64, 32))), "MatMul", {}),
        (np.sign(RNG.standard_normal((64, 32))), "MatMul", {}),
        (RNG.standard_normal((8, 1, 3, 3)), "Conv", {"group": 8}),
        (np.arange(1.0, 9).reshape(8, 1, 1, 1), "Conv", {"group": 8}),
        (sparse_rows((64, 64)), "MatMul", {}),
        (np.diag(RNG.standard_normal(8)), "MatMul", {}),
        (np.zeros((8, 8, 3, 3)), "Conv", {}),
        (np.asarray([[1.0, 1.0]]), "MatMul", {}),
        (RNG.standard_normal((8, 3, 4, 4)) * np.full((8, 3, 4, 4), np.nan), "Conv", {}),
    ],
)
def test_what_training_leaves_behind_is_no_fixed_function(values: Array, op: str, attributes: dict[str, Any]) -> None:
    assert found(values, op, **attributes) == ""


def test_a_weight_under_a_mask_is_learned() -> None:
    identity = np.eye(8, dtype=np.float32)
    constant, other = gs.Constant("w", identity), gs.Constant("other", LEARNED.astype(np.float32))
    assert fixed_weights([(gs.Node("MatMul"), constant), (gs.Node("MatMul"), other)]).keys() == {"w"}
    replace_values(constant, SparseWeight.from_dense(identity))
    assert fixed_weights([(gs.Node("MatMul"), constant), (gs.Node("MatMul"), other)]) == {}


def test_where_every_weight_looks_fixed_the_values_are_place_holders() -> None:
    """As those of graphs whose weights are ConstantOfShape nodes."""
    constants = [gs.Constant(f"w{i}", np.full((8, 8), 0.02, np.float32)) for i in range(3)]
    assert fixed_weights((gs.Node("MatMul"), constant) for constant in constants) == {}
