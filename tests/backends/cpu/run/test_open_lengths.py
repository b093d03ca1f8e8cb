"""Values that are cut and joined along axes whose sizes only a run knows, against onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime, left_to_onnxruntime, places, reasons

from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.cpu.run.session import InferenceSession
from sift_onnx.errors import UsageError

pytestmark = pytest.mark.usefixtures("every_region_pays")

WIDTH = 6
END = 2**63 - 1


def integers(net: SparseNet, *values: int) -> str:
    return net.constant(values, dtype=np.int64)


def tokens(net: SparseNet, name: str = "x", *sizes: Any) -> str:
    """``[n, t, WIDTH]``, or of other ``sizes`` before the channels, behind a layer."""
    declared = [*(sizes or ("n", "t")), 5]
    x = net.input(name, *(size if isinstance(size, int) else 2 for size in declared), declared=declared)
    return str(net.dense(x, 5, WIDTH, name=f"{name} before"))


def cut(net: SparseNet, x: str, start: int, end: int = END, axis: int = 1, step: int = 1, **attributes: Any) -> str:
    return str(net.op("Slice", x, *(integers(net, n) for n in (start, end, axis, step)), **attributes))


def layer_behind(net: SparseNet, x: str) -> SparseNet:
    net.output(net.dense(net.op("Relu", x), WIDTH, 4, name="after"))
    return net


def feeds_of(net: SparseNet, **sizes: int) -> dict[str, Any]:
    rng = np.random.default_rng(sum(sizes.values()))
    shapes = {info.name: info.type.tensor_type.shape.dim for info in net.model().graph.input}
    return {
        name: rng.standard_normal([sizes[dim.dim_param] if dim.dim_param else dim.dim_value for dim in dims]).astype(
            np.float32
        )
        for name, dims in shapes.items()
    }


def assert_one_region(net: SparseNet, *all_sizes: dict[str, int]) -> CpuProgram:
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for sizes in all_sizes:
        assert_same_as_onnxruntime(model, feeds_of(net, **sizes), program)
    assert left_to_onnxruntime(program) == {}
    assert len(program.parts) == 1
    return program


LENGTHS = [{"n": n, "t": t} for n, t in ((1, 4), (2, 7), (3, 17), (16, 5), (1, 33))]


@pytest.mark.parametrize(
    ("start", "end", "step"),
    [(1, END, 1), (2, -1, 1), (0, -2, 1), (0, 3, 1), (1, 4, 1), (-3, END, 1), (-3, -1, 1), (0, END, 2), (1, END, 3),
     (0, 1, 1), (-1, END, 1), (0, 1, 2)],
)  # fmt: skip
def test_ranges_of_an_open_axis(start: int, end: int, step: int) -> None:
    net = SparseNet(opset=18)
    assert_one_region(layer_behind(net, cut(net, tokens(net), start, end, step=step)), *LENGTHS)


def test_ranges_that_have_no_expression_are_left_to_onnxruntime() -> None:
    net = SparseNet(opset=18)
    net = layer_behind(net, cut(net, tokens(net), -5, 3, name="cut"))
    program = CpuProgram(net.model(), ONE_THREAD)
    for sizes in LENGTHS:
        assert_same_as_onnxruntime(net.model(), feeds_of(net, **sizes), program)
    assert reasons(program)["cut"] == "it takes a range of an axis of unknown size"


def test_what_a_range_leaves_may_be_nothing() -> None:
    """Tokens behind the first one of a single token, joined with it again."""
    net = SparseNet(opset=18)
    x = tokens(net)
    first, others = cut(net, x, 0, 1), cut(net, x, 1)
    joined = net.op("Concat", net.op("Relu", others), net.op("Sigmoid", first), axis=1)
    assert_one_region(layer_behind(net, joined), *LENGTHS, {"n": 1, "t": 1}, {"n": 3, "t": 1})


def test_a_range_of_no_tokens_is_an_output() -> None:
    net = SparseNet(opset=18)
    net.output(net.dense(net.op("Relu", cut(net, tokens(net), 2)), WIDTH, 4))
    assert_one_region(net, {"n": 2, "t": 5}, {"n": 2, "t": 2}, {"n": 2, "t": 1}, {"n": 2, "t": 3})


def test_a_position_that_is_not_there_is_an_error() -> None:
    net = SparseNet(opset=18)
    x = tokens(net)
    net = layer_behind(net, net.op("Gather", x, net.constant(3, dtype=np.int64), axis=1, name="taken"))
    program = assert_one_region(net, *LENGTHS)
    with pytest.raises(UsageError, match=r"'taken' cannot make \[2, 6\] of \[2, 3, 6\]"):
        program.run(feeds_of(net, n=2, t=3))


def test_several_positions_of_an_open_axis_are_gathered_by_onnxruntime() -> None:
    """All of them have to be there."""
    net = SparseNet(opset=18)
    net = layer_behind(net, net.op("Gather", tokens(net), integers(net, 0, 1, 2), axis=1, name="taken"))
    program = CpuProgram(net.model(), ONE_THREAD)
    assert_same_as_onnxruntime(net.model(), feeds_of(net, n=2, t=3), program)
    assert places(program)["taken"] == "onnxruntime"


@pytest.mark.parametrize("axis", [1, -2])
def test_tokens_of_two_kinds_are_joined(axis: int) -> None:
    net = SparseNet(opset=18)
    joined = net.op("Concat", tokens(net, "x"), tokens(net, "y", "n", "k"), axis=axis)
    sizes = [{"n": n, "t": t, "k": k} for n, t, k in ((1, 1, 1), (2, 7, 3), (3, 4, 17), (16, 5, 2), (1, 33, 8))]
    assert_one_region(layer_behind(net, joined), *sizes)


def test_a_class_token_and_a_number_of_others_are_in_front() -> None:
    net = SparseNet(opset=18)
    x = tokens(net)
    batch = net.op("Gather", net.op("Shape", x), integers(net, 0), axis=0)
    target = net.op("Concat", batch, integers(net, 1, WIDTH), axis=0)
    token = net.op("Expand", net.weight(1, 1, WIDTH), target)
    joined = net.op("Concat", token, tokens(net, "y", "n", 3), x, cut(net, x, 0, 1), axis=1)
    assert_one_region(layer_behind(net, joined), *LENGTHS)


def test_a_value_is_joined_with_itself() -> None:
    net = SparseNet(opset=18)
    x = tokens(net)
    assert_one_region(layer_behind(net, net.op("Concat", x, net.op("Relu", x), x, axis=1)), *LENGTHS)


def test_images_are_joined_along_their_width() -> None:
    net = SparseNet(opset=18)
    x, y = (
        net.conv(net.input(name, 2, 4, 5, 6, declared=["n", 4, 5, width]), 4, WIDTH, 3)
        for name, width in (("x", "t"), ("y", "k"))
    )
    net.output(net.conv(net.op("Relu", net.op("Concat", x, y, axis=3)), WIDTH, 4, 3))
    assert_one_region(net, *({"n": n, "t": t, "k": k} for n, t, k in ((1, 5, 3), (3, 4, 8), (17, 3, 3))))


def test_scores_are_joined_along_their_keys() -> None:
    """The channels are joined: queries attend to two kinds of keys with one softmax."""
    net = SparseNet(opset=18)
    x, y = tokens(net, "x"), tokens(net, "y", "n", "k")
    scores = [net.op("MatMul", x, net.op("Transpose", keys, perm=[0, 2, 1])) for keys in (x, y)]
    weights = net.op("Softmax", net.op("Concat", *scores, axis=-1), axis=-1)
    values = net.op("Concat", x, y, axis=1)
    net = layer_behind(net, net.op("MatMul", weights, values))
    assert_one_region(net, *({"n": n, "t": t, "k": k} for n, t, k in ((1, 5, 3), (3, 4, 8), (16, 3, 1))))


def test_joined_tokens_attend_to_each_other() -> None:
    net = SparseNet(opset=18)
    x = net.op("Concat", tokens(net, "y", "n", 3), tokens(net), axis=1)
    queries, keys, values = (net.dense(x, WIDTH, WIDTH) for _ in range(3))
    scores = net.op("MatMul", queries, net.op("Transpose", keys, perm=[0, 2, 1]))
    net = layer_behind(net, net.op("MatMul", net.op("Softmax", scores, axis=-1), values))
    assert_one_region(net, *LENGTHS)


def test_what_grows_from_run_to_run_is_appended_to_by_onnxruntime() -> None:
    net = SparseNet(opset=18)
    past = net.input("past", 2, 3, WIDTH, declared=["n", "p", WIDTH])
    x = tokens(net)
    net = layer_behind(net, net.op("Concat", past, x, axis=1, name="appended"))
    program = CpuProgram(net.model(), ONE_THREAD)
    for sizes in LENGTHS:
        assert_same_as_onnxruntime(net.model(), feeds_of(net, p=4, **sizes), program)
    assert reasons(program)["appended"] == "it appends to what grows from run to run"


@pytest.mark.parametrize("index", ["outside", "computed"])
def test_rows_of_an_activation_are_gathered_by_places_from_outside(index: str) -> None:
    """As the last token of each text, by its place among the tokens of all texts."""
    net = SparseNet(opset=18)
    x = tokens(net)
    flat = net.op("Flatten", x, axis=2)
    found = net.input("ends", 2, values=np.zeros(2, np.int64), declared=["n"])
    if index == "computed":
        size = [net.op("Gather", net.op("Shape", x), net.constant(axis, dtype=np.int64)) for axis in (0, 1)]
        rows = net.op("Range", net.constant(0), size[0], net.constant(1))
        found = net.op("Add", net.op("Mul", rows, size[1]), found)
    last = net.op("Gather", flat, found, axis=0, name="last")
    model = layer_behind(net, last).model()
    program = CpuProgram(model, ONE_THREAD)
    rng = np.random.default_rng(0)
    for n, t in ((1, 1), (2, 7), (16, 5), (35, 3)):
        feeds = {"x": rng.standard_normal((n, t, 5)).astype(np.float32), "ends": rng.integers(0, t, n)}
        assert_same_as_onnxruntime(model, feeds, program)
    assert places(program)["last"] == "kernels"
    assert len(program.parts) == (1 if index == "outside" else 2)
    with pytest.raises(UsageError, match="index 70 of an axis of"):
        program.run({"x": np.zeros((1, 7, 5), np.float32), "ends": np.full(1, 70)})


def test_rows_of_all_images_may_be_taken_for_each() -> None:
    """A slab of images does not have the rows of others."""
    net = SparseNet(opset=18)
    x = net.conv(net.input("x", 2, 4, 3, 3, declared=["n", 4, 3, 3]), 4, WIDTH, 3)
    pooled = net.op("Flatten", net.op("GlobalAveragePool", x), axis=1)
    order = net.input("order", 2, values=np.zeros(2, np.int64), declared=["n"])
    net = layer_behind(net, net.op("Gather", pooled, order, axis=0))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    rng = np.random.default_rng(0)
    for n in (1, 3, 16, 35):
        feeds = {"x": rng.standard_normal((n, 4, 3, 3)).astype(np.float32), "order": rng.permutation(n)}
        assert_same_as_onnxruntime(model, feeds, program)


def test_a_stored_plan_has_them(tmp_path: Path) -> None:
    net = SparseNet(opset=18)
    x = tokens(net)
    times = net.op("Concat", integers(net, 1), net.op("Gather", net.op("Shape", x), integers(net, 1)), integers(net, 1),
                   axis=0)  # fmt: skip
    tiled = net.op("Tile", cut(net, x, 0, 1), times)
    joined = net.op("Concat", cut(net, x, 1), net.op("Add", x, tiled), axis=1)
    model = layer_behind(net, joined).model()
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    (tmp_path / "cache").mkdir(mode=0o700)
    made = [InferenceSession(str(path), packed_cache=str(tmp_path / "cache"), threads=1) for _ in range(2)]
    for sizes in LENGTHS:
        feeds = feeds_of(net, **sizes)
        first, second = (session.run(None, feeds)[0] for session in made)
        np.testing.assert_array_equal(first, second)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(parts=[(1, None, 1), (0, 1, 1)], lengths=[1, 2], batch=1, axis=1)
@example(parts=[(-2, None, 1), (0, None, 1)], lengths=[2, 3], batch=2, axis=1)
@given(
    parts=st.lists(
        st.tuples(st.integers(-3, 3), st.none() | st.integers(-3, 4), st.integers(1, 3)), min_size=2, max_size=4
    ),
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    batch=st.integers(1, 3),
    axis=st.integers(1, 2),
)
def test_any_ranges_are_joined(
    parts: list[tuple[int, int | None, int]], lengths: list[int], batch: int, axis: int
) -> None:
    net = SparseNet(opset=18)
    sizes: list[Any] = ["n", "t", 3] if axis == 1 else ["n", 3, "t"]
    x = tokens(net, "x", *sizes)
    ranges = [
        cut(net, net.op("Relu" if i % 2 else "Tanh", x), start, END if end is None else end, axis, step)
        for i, (start, end, step) in enumerate(parts)
    ]
    net = layer_behind(net, net.op("Concat", *ranges, axis=axis))
    model = net.model()
    assume(all(sum(len(range(t)[a:b:c]) for a, b, c in parts) for t in lengths))
    program = CpuProgram(model, ONE_THREAD)
    for length in lengths:
        # One position is taken to be there.
        if all(len(range(length)[a:b:c]) or a + 1 != (0 if b is None else b) for a, b, c in parts):
            assert_same_as_onnxruntime(model, feeds_of(net, n=batch, t=length), program)


@pytest.mark.parametrize("pads", [
    (0, 1, 0, 0, -1, 0), (0, 2, 0, 0, 3, 0), (0, -1, 0, 0, 1, 0), (0, 0, 0, 0, 2, 1), (0, -1, 1, 0, -1, 0),
])  # fmt: skip
def test_tokens_are_padded_and_cropped(pads: tuple[int, ...]) -> None:
    """A time shift, blocks of local attention, and windows that overlap."""
    net = SparseNet()
    x = net.op("Pad", tokens(net), integers(net, *pads), net.constant(0.5))
    width = WIDTH + pads[2] + pads[5]
    net.output(net.dense(net.op("Relu", x), width, 4, name="after"))
    least = 1 - min(pads[1] + pads[4], 0)
    assert_one_region(net, *({"n": n, "t": t + least} for n, t in ((1, 0), (2, 1), (3, 16), (17, 2))))


def test_all_of_an_open_axis_may_be_cropped() -> None:
    net = SparseNet()
    x = net.op("Pad", tokens(net), integers(net, 0, 1, 0, 0, -1, 0))
    layer_behind(net, x)
    assert_one_region(net, {"n": 2, "t": 1}, {"n": 3, "t": 5}, {"n": 1, "t": 1})


def test_a_class_token_before_no_others() -> None:
    """All tokens but the first: there may be no others, and then the class token is all there is."""
    net = SparseNet()
    token = net.constant(np.linspace(-1, 1, WIDTH, dtype=np.float32).reshape(1, 1, WIDTH))
    x = cut(net, tokens(net), 1)
    batch = net.op("Slice", net.op("Shape", x), integers(net, 0), integers(net, 1))
    sizes = net.op("Concat", batch, integers(net, 1, WIDTH), axis=0)
    net = layer_behind(net, net.op("Concat", net.op("Expand", token, sizes), x, axis=1))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for n, t in ((2, 1), (17, 1), (1, 1), (3, 4)):
        assert_same_as_onnxruntime(model, feeds_of(net, n=n, t=t), program)
    assert set(places(program).values()) <= {"kernels", "folded"}


@pytest.mark.parametrize("axis", [1, 2])
def test_the_mean_of_nothing_is_zero(axis: int) -> None:
    """As in onnxruntime: of a text without words behind the first one."""
    net = SparseNet(opset=18)
    rest = cut(net, tokens(net), 1)
    rest = net.op("Transpose", rest, perm=[0, 2, 1]) if axis == 2 else rest
    net.output(net.dense(net.op("ReduceMean", rest, integers(net, axis), keepdims=0), WIDTH, 4))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for n, t in ((2, 3), (1, 1), (17, 1), (3, 2)):
        assert_same_as_onnxruntime(model, feeds_of(net, n=n, t=t), program)
