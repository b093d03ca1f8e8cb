"""One token of each sequence, picked by pairs of places as torch writes them, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime, left_to_onnxruntime

from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.errors import SiftError

pytestmark = pytest.mark.usefixtures("every_region_pays")


def integers(net: SparseNet, *values: int) -> str:
    return str(net.constant(values, dtype=np.int64))


def number(net: SparseNet, value: int) -> str:
    return str(net.constant(value, dtype=np.int64))


def picked(
    features: tuple[int, ...] = (8,), start: int = 0, step: int = 1, axis: int = -1, ends: Any = "n"
) -> SparseNet:
    """``x[arange(n), places]`` of values ``[n, t, *features]`` that a layer makes."""
    net = SparseNet(opset=18)
    x = net.input("x", 2, 7, 5, declared=["n", "t", 5])
    places = net.input("places", values=np.array([1, 2]), declared=[ends])
    rows = net.dense(x, 5, 8)
    if features != (8,):
        rows = net.op("Reshape", rows, integers(net, 0, 0, *features))
    batch = net.op("Squeeze", net.op("Shape", x, start=0, end=1))
    limit = net.op("Add", net.op("Mul", batch, number(net, step)), number(net, start))
    counted = net.op("Range", number(net, start), limit, number(net, step)) if (start, step) != (0, 1) else None
    counted = counted or net.op("Range", number(net, 0), batch, number(net, 1))
    columns = [net.op("Unsqueeze", values, integers(net, axis)) for values in (counted, places)]
    taken = net.op("GatherND", rows, net.op("Concat", *columns, axis=axis), name="taken")
    if features != (8,):
        taken = net.op("Reshape", taken, integers(net, 0, 8))
    net.output(net.dense(net.op("Tanh", taken), 8, 4))
    return net


def feeds_of(n: int, t: int, negative: bool = False) -> dict[str, Any]:
    rng = np.random.default_rng(n + t)
    x = rng.standard_normal((n, t, 5)).astype(np.float32)
    return {"x": x, "places": rng.integers(-t if negative else 0, t, n)}


@pytest.mark.parametrize("features", [(8,), (2, 4)])
@pytest.mark.parametrize("axis", [-1, 1])
def test_tokens_at_places_from_outside(features: tuple[int, ...], axis: int) -> None:
    model = picked(features, axis=axis).model()
    program = CpuProgram(model, ONE_THREAD)
    for n, t in ((2, 7), (1, 1), (3, 4), (17, 5), (8, 12)):
        for negative in (False, True):
            assert_same_as_onnxruntime(model, feeds_of(n, t, negative), program)
    assert len(program.parts) <= 2
    assert "taken" not in left_to_onnxruntime(program)


@pytest.mark.parametrize("place", [7, -8])
def test_a_token_that_is_not_there_is_an_error(place: int) -> None:
    program = CpuProgram(picked().model(), ONE_THREAD)
    feeds = feeds_of(2, 7)
    feeds["places"][1] = place
    with pytest.raises(SiftError):
        program.run(feeds)


@pytest.mark.parametrize("settings", [{"start": 1}, {"start": 0, "step": 2}])
def test_pairs_that_begin_elsewhere_are_left_to_onnxruntime(settings: dict[str, int]) -> None:
    model = picked(**settings).model()
    assert "taken" in left_to_onnxruntime(CpuProgram(model, ONE_THREAD))


def test_fewer_places_than_sequences_are_left_to_onnxruntime() -> None:
    model = picked(ends="m").model()
    program = CpuProgram(model, ONE_THREAD)
    assert_same_as_onnxruntime(model, feeds_of(3, 7), program)
