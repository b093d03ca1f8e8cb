"""ArgMax, ArgMin and TopK, and what is done with their integers, in regions, against onnxruntime."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from exact_nets import CHANNELS, SIZE, WIDTH, ExactNet, assert_exact, exact_feeds, integers, tokens
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime, left_to_onnxruntime, places, reasons

from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.errors import UsageError

pytestmark = pytest.mark.usefixtures("every_region_pays")

FLOAT = onnx.TensorProto.FLOAT


def images(net: SparseNet, channels: int = CHANNELS) -> str:
    x = net.input("x", 2, 4, SIZE, SIZE, declared=["n", 4, SIZE, SIZE])
    return str(net.conv(net.op("Relu", net.conv(x, 4, 6)), 6, channels, name="before"))


def rows(net: SparseNet) -> str:
    return str(net.dense(net.input("x", 2, 5, declared=["n", 5]), 5, 40, name="before"))


def outputs(net: SparseNet, *names: str) -> None:
    for name in names:
        net.output(name)


def classes_of_pixels(net: SparseNet) -> None:
    net.output(net.op("ArgMax", images(net), axis=1, keepdims=0))


def last_classes_of_pixels(net: SparseNet) -> None:
    net.output(net.op("ArgMin", images(net), axis=1, select_last_index=1))


def rows_of_images(net: SparseNet) -> None:
    x = images(net)
    outputs(net, net.op("ArgMax", x, axis=2), net.op("ArgMin", x, axis=-1, keepdims=0))


def images_of_the_batch(net: SparseNet) -> None:
    net.output(net.op("ArgMax", images(net), axis=0, select_last_index=1))


def classes_of_tokens(net: SparseNet) -> None:
    x = tokens(net)
    outputs(net, net.op("ArgMax", x, axis=-1, keepdims=0), net.op("ArgMin", x, axis=2, select_last_index=1))


def tokens_of_channels(net: SparseNet) -> None:
    net.output(net.op("ArgMax", tokens(net), axis=1, keepdims=0))


def classes(net: SparseNet) -> None:
    net.output(net.op("ArgMax", rows(net), axis=1, keepdims=0))


def first_classes(net: SparseNet) -> None:
    x = rows(net)
    outputs(net, *net.op("TopK", x, integers(net, 5), outputs=2), *net.op("TopK", x, integers(net, 1), outputs=2))


def smallest(net: SparseNet) -> None:
    outputs(net, *net.op("TopK", rows(net), integers(net, 30), outputs=2, axis=1, largest=0))


def first_channels(net: SparseNet) -> None:
    outputs(net, *net.op("TopK", images(net), integers(net, 3), outputs=2, axis=1))


def first_columns(net: SparseNet) -> None:
    outputs(net, *net.op("TopK", images(net), integers(net, 2), outputs=2, axis=-1, largest=0))


def first_tokens(net: SparseNet) -> None:
    outputs(net, *net.op("TopK", tokens(net), integers(net, 4), outputs=2, axis=1))


def values_alone(net: SparseNet) -> None:
    values, _ = net.op("TopK", net.op("Relu", tokens(net)), integers(net, 4), outputs=2)
    net.output(net.dense(values, 4, 3))


def places_alone(net: SparseNet) -> None:
    _, found = net.op("TopK", tokens(net), integers(net, 2), outputs=2)
    net.output(found)


def other_sizes(net: SparseNet) -> None:
    """As exporters drop and add axes of what is found; one of the results is read as it was, too."""
    found = net.op("ArgMax", images(net), axis=1)
    numbers = net.op("Cast", net.op("Squeeze", found, integers(net, 1)), to=FLOAT)
    _, first = net.op("TopK", net.op("Relu", numbers), integers(net, 2), outputs=2)
    outputs(
        net,
        net.op("Reshape", found, integers(net, 0, SIZE * SIZE)),
        found,
        net.op("Unsqueeze", first, integers(net, 3)),
    )


def chosen_by_others(net: SparseNet) -> None:
    """A router's: values of one product by the places of the largest ones of another, and these as numbers."""
    x = net.op("Relu", tokens(net))
    _, found = net.op("TopK", net.dense(x, WIDTH, WIDTH), integers(net, 3), outputs=2)
    taken = net.op("GatherElements", x, found, axis=-1)
    numbers = net.op("Cast", found, to=FLOAT)
    net.output(net.dense(net.op("Add", taken, numbers), 3, 4))


def chosen_tokens(net: SparseNet) -> None:
    x = tokens(net)
    _, found = net.op("TopK", net.dense(x, WIDTH, 1), integers(net, 3), outputs=2, axis=1)
    net.output(net.op("GatherElements", net.dense(x, WIDTH, 1), found, axis=1))
    net.output(found)


def chosen_queries(net: SparseNet) -> None:
    """A detector's: tokens by the best of their classes, with all of their channels, for a decoder."""
    x = tokens(net)
    best = net.op("ReduceMax", net.dense(x, WIDTH, 3), integers(net, -1), keepdims=0)
    _, found = net.op("TopK", best, integers(net, 4), outputs=2, axis=1)
    tiled = net.op("Tile", net.op("Unsqueeze", found, integers(net, -1)), integers(net, 1, 1, WIDTH))
    net.output(net.dense(net.op("GatherElements", x, tiled, axis=1), WIDTH, 4))


def nearest_codes(net: SparseNet) -> None:
    """Vector quantization: the vector of a codebook that is nearest to each token."""
    x = tokens(net)
    codes = np.random.default_rng(1).integers(-2, 3, (12, WIDTH)).astype(np.float32)
    squares = net.constant((codes**2).sum(1))
    distances = net.op("Sub", squares, net.op("MatMul", x, net.constant(2 * codes.T)))
    found = net.op("ArgMin", distances, axis=-1, keepdims=0)
    nearest = net.op("Gather", net.constant(codes), found)
    net.output(found)
    net.output(net.dense(net.op("Add", x, net.op("Sub", nearest, x)), WIDTH, 4))


NETS: dict[str, Callable[[SparseNet], None]] = {
    make.__name__.replace("_", " "): make
    for make in (
        classes_of_pixels, last_classes_of_pixels, rows_of_images, images_of_the_batch, classes_of_tokens,
        tokens_of_channels, classes, first_classes, smallest, first_channels, first_columns, first_tokens, values_alone,
        places_alone, other_sizes, chosen_by_others, chosen_tokens, chosen_queries, nearest_codes,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_the_whole_net_is_one_region(name: str) -> None:
    net = ExactNet()
    NETS[name](net)
    program = assert_exact(net)
    assert left_to_onnxruntime(program) == {}
    assert len(program.parts) == 1


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    op=st.sampled_from(["ArgMax", "ArgMin", "TopK", "ReduceMax", "ReduceMin"]),
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=3), axis=st.integers(-4, 3), is_kept=st.booleans(),
    is_last=st.booleans(), k=st.integers(1, 4), batch=st.sampled_from([1, 2, 16, 19]),
)  # fmt: skip
# As many rows as images, whose pixels the channels of a row are.
@example(op="ArgMax", sizes=[1, 1, 2], axis=1, is_kept=False, is_last=False, k=1, batch=1)
@example(op="TopK", sizes=[1, 1, 2], axis=1, is_kept=False, is_last=False, k=1, batch=16)
def test_any_axis(op: str, sizes: list[int], axis: int, is_kept: bool, is_last: bool, k: int, batch: int) -> None:
    net, rank = ExactNet(), len(sizes) + 1
    axis = axis % rank
    x = net.dense(net.input("x", 2, *sizes, declared=["n", *sizes]), sizes[-1], sizes[-1])
    if op == "TopK":
        k = min(k, batch if axis == 0 else sizes[axis - 1])
        outputs(net, *net.op(op, x, integers(net, k), outputs=2, axis=axis, largest=int(is_last)))
    elif op.startswith("Arg"):
        net.output(net.op(op, x, axis=axis, keepdims=int(is_kept), select_last_index=int(is_last)))
    else:
        net.output(net.op(op, x, integers(net, axis), keepdims=int(is_kept)))
    assert set(places(assert_exact(net, [batch])).values()) == {"kernels"}


@pytest.mark.parametrize("isa", ["avx2", "portable"])
@pytest.mark.parametrize("name", ["classes of pixels", "classes", "first classes"])
def test_other_instruction_sets(name: str, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIFT_ISA", isa)
    net = ExactNet()
    NETS[name](net)
    assert assert_exact(net, [2, 17]).isa == isa


@pytest.mark.parametrize("opset", [11, 12, 13, 18, 23])
def test_versions_of_the_operators(opset: int) -> None:
    net = ExactNet(opset)
    x = rows(net)
    outputs(net, net.op("ArgMax", x, axis=-1), *net.op("TopK", x, integers(net, 3), outputs=2, sorted=1))
    assert set(places(assert_exact(net, [2])).values()) == {"kernels"}


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_values_that_are_no_numbers(op: str) -> None:
    """NaN is taken only where it is the first value."""
    net = ExactNet()
    y = net.input("y", 2, 40, declared=["n", 40])
    net.output(net.op(op, net.op("Add", rows(net), y), axis=1))
    image = net.input("z", 2, CHANNELS, SIZE, SIZE, declared=["n", CHANNELS, SIZE, SIZE])
    net.output(net.op(op, net.op("Add", net.conv(image, CHANNELS, CHANNELS), image), axis=1))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    feeds = exact_feeds(program, 6)
    feeds["y"][0, 3], feeds["y"][1, 0] = math.nan, math.nan
    feeds["y"][2], feeds["y"][3] = math.nan, -math.inf
    feeds["y"][4, 7:9], feeds["y"][5, 0] = math.inf, math.inf
    assert_same_as_onnxruntime(model, feeds, program, tolerance=0)


@pytest.mark.parametrize("k", [1, 4, 33])
def test_nan_is_larger_than_any_number(k: int) -> None:
    net = ExactNet()
    y = net.input("y", 2, 40, declared=["n", 40])
    x = net.op("Add", rows(net), y)
    for largest in (0, 1):
        outputs(net, *net.op("TopK", x, integers(net, k), outputs=2, largest=largest))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    feeds = exact_feeds(program, 4)
    feeds["y"][:, 10:13], feeds["y"][:, 20] = math.nan, math.inf
    feeds["y"][1, 0], feeds["y"][2], feeds["y"][3, 1:38] = math.nan, math.nan, math.nan
    assert_same_as_onnxruntime(model, feeds, program, tolerance=0)


def test_open_sizes_are_those_of_the_run() -> None:
    net = ExactNet()
    x = tokens(net, length="t")
    outputs(net, *net.op("TopK", x, integers(net, 3), outputs=2, axis=1), net.op("ArgMax", x, axis=1, keepdims=0))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for batch, length in ((2, 3), (1, 20), (0, 5)):
        assert_same_as_onnxruntime(model, exact_feeds(program, batch, t=length), program, tolerance=0)
    with pytest.raises(UsageError, match="cannot make"):
        program.run(exact_feeds(program, 1, t=2))


def test_other_readers_of_integers_are_in_onnxruntime() -> None:
    net = ExactNet()
    x = tokens(net)
    _, found = net.op("TopK", x, integers(net, 2), outputs=2, name="top")
    table = net.constant(np.arange(2 * WIDTH, dtype=np.float32).reshape(2, WIDTH))
    net.output(net.dense(net.op("Gather", table, found, axis=1, name="looked up"), 2, 3, name="after"))
    net.output(net.op("Cast", net.op("ArgMax", x, axis=-1, name="best"), to=onnx.TensorProto.INT32, name="cast"))
    program = assert_exact(net)
    where = places(program)
    assert [where[name] for name in ("top", "best", "after")] == ["kernels"] * 3
    assert where["looked up"] == where["cast"] == "onnxruntime"


def test_places_of_what_onnxruntime_makes_are_found_there() -> None:
    net = ExactNet()
    x = net.op("Erf", tokens(net), name="elsewhere")
    _, found = net.op("TopK", x, integers(net, 2), outputs=2, name="top")
    net.output(found)
    net.output(net.dense(x, WIDTH, 3, name="after"))
    assert reasons(CpuProgram(net.model(), ONE_THREAD))["top"] == "it is between nodes of onnxruntime"


def test_integers_of_onnxruntime_are_read() -> None:
    net = ExactNet()
    x = tokens(net)
    found = net.op("ArgMax", net.op("Erf", x), axis=-1, name="elsewhere")
    numbers = net.op("Cast", found, to=FLOAT, name="cast")
    net.output(net.dense(net.op("Mul", x, numbers), WIDTH, 3))
    where = places(assert_exact(net))
    assert (where["elsewhere"], where["cast"]) == ("onnxruntime", "kernels")


def test_reasons_name_what_is_not_known() -> None:
    net = ExactNet()
    x = rows(net)
    k = net.input("k", 1, values=np.array([2], np.int64))
    outputs(net, *net.op("TopK", x, k, outputs=2, name="open"))
    why = reasons(CpuProgram(net.model(), ONE_THREAD))
    assert "its k 'k' is an input of the model" in why["open"]


def test_profiles_name_the_kernels() -> None:
    net = ExactNet()
    chosen_by_others(net)
    kernels = {node.op: node.kernel for node in CpuProgram(net.model(), ONE_THREAD).profile().nodes}
    assert {kernels[op].split()[0] for op in ("TopK", "GatherElements", "Cast")} == {
        "topk", "gatherelements", "castintegers",
    }  # fmt: skip
