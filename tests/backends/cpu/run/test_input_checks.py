"""Requests that do not fit a model are refused by name, also where other requests have run."""

from __future__ import annotations

import numpy as np
import pytest

from sift_onnx.backends.cpu.run.input_checks import InputCheck
from sift_onnx.errors import UsageError
from sift_onnx.shapes.tensor_specs import TensorSpec

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int64)
CHECK = InputCheck([
    TensorSpec("x", FLOAT, ("batch", 3, "length")),
    TensorSpec("past", FLOAT, ("batch", "?", "length", 4)),
    TensorSpec("ids", INT, None),
])  # fmt: skip


def feeds(**others: np.ndarray) -> dict[str, np.ndarray]:
    fitting = {"x": np.zeros((2, 3, 5), FLOAT), "past": np.zeros((2, 7, 5, 4), FLOAT), "ids": np.zeros(9, INT)}
    return fitting | others


def test_arrays_that_fit_pass() -> None:
    CHECK(feeds())
    CHECK(feeds(ids=np.zeros((), INT)))
    CHECK({name: array[:0] for name, array in feeds().items()})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y": np.zeros(1, FLOAT)}, "unknown input 'y'"),
        ({"x": np.zeros((2, 3, 5), np.float64)}, "input 'x' is float64, but the model takes float32"),
        ({"ids": np.zeros(9, np.int32)}, "input 'ids' is int32"),
        ({"x": np.zeros((2, 3), FLOAT)}, "input 'x' has the shape"),
        ({"x": np.zeros((2, 4, 5), FLOAT)}, "input 'x' has the shape"),
        ({"past": np.zeros((2, 7, 6, 4), FLOAT)}, "'length' is 5 in input 'x'"),
        ({"past": np.zeros((3, 7, 5, 4), FLOAT)}, "'batch' is 2 in input 'x'"),
    ],
)
def test_what_does_not_fit_is_named(changed: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CHECK(feeds(**changed))


@pytest.mark.parametrize("name", ["x", "past", "ids"])
def test_a_missing_input_is_named(name: str) -> None:
    given = feeds()
    del given[name]
    with pytest.raises(UsageError, match=f"input '{name}' is missing"):
        CHECK(given)
    with pytest.raises(UsageError, match="unknown input 'other'"):
        CHECK(given | {"other": np.zeros(1, FLOAT)})


def test_named_inputs_may_be_float32_as_well() -> None:
    check = InputCheck([TensorSpec("past", np.dtype(np.float16), ("batch", 4))], ["past"])
    for dtype in (np.float16, np.float32):
        check({"past": np.zeros((2, 4), dtype)})
    with pytest.raises(UsageError, match="input 'past' is float64"):
        check({"past": np.zeros((2, 4), np.float64)})
    with pytest.raises(UsageError, match="input 'past' has the shape"):
        check({"past": np.zeros((2, 5), np.float32)})
