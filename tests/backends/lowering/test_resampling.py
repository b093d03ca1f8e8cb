"""Which pixels results are made from, against onnxruntime."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from sparse_nets import ONE_THREAD

from sift_onnx.backends.lowering.resampling import COORDINATES, NEAREST, Padding, Sampling, Slicing
from sift_onnx.backends.onnxruntime import OnnxRuntimeProgram

SIZES = (1, 2, 3, 7, 10)
SCALES = (0.3, 0.5, 0.7, 1.5, 2.0, 3.0, 2.7)


def resized(values: np.ndarray, scale: float, **attributes: str) -> np.ndarray:
    """The last axis, by onnxruntime."""
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], **attributes)
    scales = onnx.numpy_helper.from_array(np.asarray([1, 1, 1, scale], np.float32), "scales")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(values.shape))
    y = helper.make_empty_tensor_value_info("y")
    y.type.tensor_type.elem_type = TensorProto.FLOAT
    graph = helper.make_graph([node], "resize", [x], [y], [scales])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return OnnxRuntimeProgram(model, ONE_THREAD).run({"x": values})["y"].reshape(-1)


@pytest.mark.parametrize(("coordinates", "nearest"), list(itertools.product(COORDINATES, NEAREST)))
def test_the_nearest_pixel_is_that_of_onnxruntime(coordinates: str, nearest: str) -> None:
    for size, scale in itertools.product(SIZES, SCALES):
        x = np.arange(size, dtype=np.float32).reshape(1, 1, 1, size)
        found = Sampling(float(np.float32(scale)), None, coordinates, nearest).sources(size)
        expected = resized(x, scale, coordinate_transformation_mode=coordinates, nearest_mode=nearest, mode="nearest")
        assert found == expected.tolist(), (size, scale)


@pytest.mark.parametrize("coordinates", COORDINATES)
def test_the_place_between_two_pixels_is_that_of_onnxruntime(coordinates: str) -> None:
    for size, scale in itertools.product(SIZES, SCALES):
        x = np.arange(size, dtype=np.float32).reshape(1, 1, 1, size)
        places = Sampling(float(np.float32(scale)), None, coordinates).neighbours(size)
        found = [first + (second - first) * share for first, second, share in places]
        expected = resized(x, scale, coordinate_transformation_mode=coordinates, mode="linear")
        np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=f"{size}, {scale}")


@pytest.mark.parametrize(("mode", "numpy_mode"), [("edge", "edge"), ("reflect", "reflect")])
def test_padding_is_that_of_numpy(mode: str, numpy_mode: str) -> None:
    for size, before, after in itertools.product((1, 4, 5), (0, 2), (0, 3)):
        if mode == "edge" or size > max(before, after):
            found = Padding(before, after, mode).sources(size)  # type: ignore[arg-type]
            assert found == np.pad(np.arange(size), (before, after), mode=numpy_mode).tolist()  # type: ignore[call-overload]
            assert Padding(before, after).size_of(size) == len(found)


def test_sizes_that_are_not_known_before_a_run_are_expressions() -> None:
    assert Sampling(2.0, None, "asymmetric").size_of("h") == ("product", 2, "h")
    assert Padding(1, 2).size_of("h") == ("sum", 3, "h")
    assert Slicing(1, None, 2).size_of("h") == ("window", "h", 2, -2, 0)
    assert Slicing(1, None, 2).size_of(8) == 4
