import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sift_onnx.errors import UnsupportedError, UsageError
from sift_onnx.feeds import TensorSpec, batch_of, check_feeds, graph_inputs, random_feeds, resolve_shapes

FLOAT = np.dtype(np.float32)
INT = np.dtype(np.int64)


def spec(name, *shape, dtype=FLOAT):
    return TensorSpec(name, np.dtype(dtype), shape)


IMAGE = spec("x", "batch", 3, 32, 32)
IDS = spec("ids", "batch", "seq", dtype=INT)
MASK = spec("mask", "batch", "seq", dtype=INT)


def test_dynamic_first_axis_is_the_batch():
    assert resolve_shapes([IMAGE], batch=64) == {"x": (64, 3, 32, 32)}


def test_unnamed_first_axis_is_the_batch():
    assert resolve_shapes([spec("x", None, 3)], batch=5) == {"x": (5, 3)}


def test_without_a_batch_a_dynamic_first_axis_is_one():
    assert resolve_shapes([IMAGE]) == {"x": (1, 3, 32, 32)}


def test_without_a_batch_the_exported_one_holds_for_all_inputs():
    inputs = [spec("x", 8, 3), spec("y", "n", 3)]
    shapes = resolve_shapes(inputs)
    assert shapes == {"x": (8, 3), "y": (8, 3)}
    assert batch_of(inputs, shapes) == 8


def test_batch_other_than_the_exported_one_is_refused():
    with pytest.raises(UsageError, match=r"exported with batch 8 \(input 'x' is 8,3\)"):
        resolve_shapes([spec("x", 8, 3)], batch=64)


def test_fixed_inputs_beside_a_dynamic_one_are_left_alone():
    assert resolve_shapes([IDS, spec("positions", 1, 16)], 4, {"ids": (4, 16)})["positions"] == (1, 16)


def test_given_shape_fixes_the_same_name_elsewhere():
    assert resolve_shapes([IDS, MASK], 2, {"ids": (2, 128)}) == {"ids": (2, 128), "mask": (2, 128)}


def test_given_shape_fixes_the_batch():
    inputs = [spec("x", "n", 4), spec("y", "n", 2)]
    assert resolve_shapes(inputs, None, {"y": (7, 2)}) == {"x": (7, 4), "y": (7, 2)}


def test_scalar_input_has_no_axes():
    assert resolve_shapes([spec("scale"), IMAGE], 2) == {"scale": (), "x": (2, 3, 32, 32)}


@pytest.mark.parametrize("shape", [("batch", 3, "height", "width"), ("batch", 3, None, None)])
def test_other_dynamic_axes_must_be_given(shape):
    with pytest.raises(UsageError, match=r"input 'x': the size of axis 2 .* --input-shapes x:4,3,"):
        resolve_shapes([spec("x", *shape)], batch=4)


def test_first_axis_named_like_an_inner_one_is_not_taken_for_the_batch():
    with pytest.raises(UsageError, match=r"'positions': the size of axis 0 \(seq\)"):
        resolve_shapes([spec("positions", "seq"), IDS], batch=4)


@pytest.mark.parametrize(
    ("shapes", "complaint"),
    [
        ({"z": (1,)}, "names the input 'z', but the model's inputs are 'x'"),
        ({"x": (1, 3, 32)}, "1,3,32, but the model has batch,3,32,32"),
        ({"x": (1, 4, 32, 32)}, "axis 1 was exported with the fixed size 3"),
        ({"x": (0, 3, 32, 32)}, "sizes start at 1"),
        ({"x": (2, 3, 32, 32)}, "batch 1 was asked for, but --input-shapes makes it 2"),
    ],
)
def test_contradictions_are_refused(shapes, complaint):
    with pytest.raises(UsageError, match=complaint):
        resolve_shapes([IMAGE], 1, shapes)


def test_two_sizes_under_one_name_are_refused():
    with pytest.raises(UsageError, match="'seq' is 16 in another place"):
        resolve_shapes([IDS, MASK], 1, {"ids": (1, 16), "mask": (1, 17)})


def test_batch_without_an_axis_for_it_is_refused():
    with pytest.raises(UsageError, match="no input with a batch axis"):
        resolve_shapes([spec("scale")], batch=2)
    assert batch_of([spec("scale")], resolve_shapes([spec("scale")], batch=1)) == 1


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
    shapes = resolve_shapes([first, second], batch, {"a": given_shape})
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
    with pytest.raises(UnsupportedError, match="'s' is a sequence_type"):
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
