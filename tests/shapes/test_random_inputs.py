import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_onnx.errors import UnsupportedError, UsageError
from sift_onnx.shapes.input_binding import bind
from sift_onnx.shapes.random_inputs import check_feeds, random_feeds
from sift_onnx.shapes.tensor_specs import TensorSpec, graph_inputs

FLOAT = np.dtype(np.float32)
INT = np.dtype(np.int64)


def spec(name, *shape, dtype=FLOAT):
    return TensorSpec(name, np.dtype(dtype), shape)


IMAGE = spec("x", "batch", 3, 32, 32)
IDS = spec("ids", "batch", "seq", dtype=INT)
MASK = spec("mask", "batch", "seq", dtype=INT)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_floats_are_standard_normal_and_keep_their_dtype(dtype):
    values = random_feeds([spec("x", 100, 100, dtype=dtype)])["x"]
    assert values.dtype == np.dtype(dtype)
    assert abs(values.astype(np.float64).mean()) < 0.05
    assert abs(values.astype(np.float64).std() - 1) < 0.05


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int8, np.uint8])
def test_integers_are_zeros_and_ones_and_no_row_is_all_zeros(dtype):
    values = random_feeds([spec("ids", 50, 4, dtype=dtype)])["ids"]
    assert values.dtype == np.dtype(dtype)
    assert set(np.unique(values)) == {0, 1}
    assert values.any(axis=-1).all()


def test_booleans_are_true_and_integer_scalars_one():
    feeds = random_feeds([spec("flag", 2, dtype=bool), spec("k", dtype=INT)])
    assert feeds["flag"].all()
    assert feeds["k"].shape == ()
    assert feeds["k"] == 1


def test_strings_are_not_made_up():
    with pytest.raises(UnsupportedError, match="'text'"):
        random_feeds([spec("text", 1, dtype=object)])


def test_values_depend_on_the_seed_and_the_name_but_not_on_the_order():
    x, y = spec("x", 4, 4), spec("y", 4, 4)
    first = random_feeds([x, y], seed=3)
    second = random_feeds([y, x], seed=3)
    assert np.array_equal(first["x"], second["x"])
    assert not np.array_equal(first["x"], first["y"])
    assert not np.array_equal(first["x"], random_feeds([x], seed=4)["x"])


@settings(deadline=None)
@given(
    batch=st.integers(1, 9),
    symbols=st.lists(st.sampled_from(["seq", "width", 3]), max_size=3),
    sizes=st.fixed_dictionaries({"seq": st.integers(1, 9), "width": st.integers(1, 9)}),
)
def test_resolved_shapes_fit_the_model_and_equal_names_get_equal_sizes(batch, symbols, sizes):
    first = spec("a", "batch", *symbols)
    second = spec("b", "batch", *reversed(symbols))
    given_shape = (batch, *(sizes.get(symbol, symbol) for symbol in symbols))
    shapes = bind([first, second], {"a": given_shape}, batch).shapes
    assert shapes == {"a": given_shape, "b": (batch, *reversed(given_shape[1:]))}
    check_feeds([first, second], random_feeds([first, second], batch, {"a": given_shape}))


def test_graph_inputs_leaves_out_initializers():
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [value("x", onnx.TensorProto.FLOAT16, ["n", None, 2]), value("w", onnx.TensorProto.FLOAT16, [1])],
        [value("y", onnx.TensorProto.FLOAT16, None)],
        [onnx.numpy_helper.from_array(np.zeros(1, np.float16), "w")],
    )
    assert graph_inputs(onnx.helper.make_model(graph)) == (spec("x", "n", None, 2, dtype=np.float16),)


def test_sequence_input_is_not_supported():
    sequence = onnx.helper.make_tensor_sequence_value_info("s", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([], "g", [sequence], [sequence])
    with pytest.raises(UnsupportedError, match="'s' is a sequence; export"):
        graph_inputs(onnx.helper.make_model(graph))


@pytest.mark.parametrize(
    ("feeds", "complaint"),
    [
        ({}, "'x' is missing"),
        ({"x": np.zeros((1, 3, 32, 32), np.float32), "z": np.zeros(1)}, "unknown input 'z'"),
        ({"x": np.zeros((1, 3, 32, 32))}, "'x' is float64, but the model takes float32"),
        ({"x": np.zeros((1, 3, 32), np.float32)}, "'x' has the shape 1,3,32, but the model takes batch,3,32,32"),
        ({"x": np.zeros((1, 4, 32, 32), np.float32)}, "'x' has the shape 1,4,32,32"),
    ],
)
def test_feeds_that_do_not_fit_are_refused_by_name(feeds, complaint):
    with pytest.raises(UsageError, match=complaint):
        check_feeds([IMAGE], feeds)


@pytest.mark.parametrize("shape", [(2**31, 2**31), (9 * 10**18, 4), (10**30,)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_an_input_beyond_any_memory_is_refused(shape, dtype):
    with pytest.raises(UnsupportedError, match=r"'x' of shape .* is beyond the memory of any machine"):
        random_feeds((TensorSpec("x", np.dtype(dtype), shape),))
