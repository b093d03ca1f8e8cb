"""Where, comparisons, Max, Min and Pow of activations of any sizes in regions, against onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime, left_to_onnxruntime, reasons

from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.backends.cpu.run.session import InferenceSession

pytestmark = pytest.mark.usefixtures("every_region_pays")

WIDTH = 6
SIZES = ((1, 5), (3, 4), (2, 1), (5, 17), (1, 16))
Feeds = dict[str, npt.NDArray[Any]]


class MaskedNet(SparseNet):
    """Tokens ``[n, t, WIDTH]`` behind a layer, and masks of them."""

    def tokens(self, name: str = "x", width: int = WIDTH) -> str:
        return str(self.dense(self.input(name, 2, 4, 5, declared=["n", "t", 5]), 5, width, name=f"{name} before"))

    def mask(self, *axes: int, name: str = "mask") -> str:
        """``[n, t]`` as a boolean of more axes."""
        ids = self.input(name, values=np.ones((2, 4), np.int64), declared=["n", "t"])
        seen = self.op("Cast", ids, to=onnx.TensorProto.BOOL)
        return str(self.op("Unsqueeze", seen, self.integers(*axes))) if axes else str(seen)

    def integers(self, *values: int) -> str:
        return str(self.constant(values, dtype=np.int64))

    def extreme(self, x: str, axis: int, keepdims: int = 1) -> str:
        return str(self.op("ReduceMax", x, self.integers(axis), keepdims=keepdims))

    def ends(self, x: str, width: int = WIDTH) -> MaskedNet:
        self.output(self.dense(x, width, 4, name="after"))
        return self

    def feeds_at(self, batch: int, tokens: int) -> Feeds:
        rng = np.random.default_rng(100 * batch + tokens)
        made: Feeds = {}
        for name, array in self.feeds.items():
            sizes = (batch, tokens, *array.shape[2:])
            is_mask = array.dtype == np.int64
            made[name] = rng.integers(0, 2, sizes) if is_mask else rng.standard_normal(sizes).astype(np.float32)
        return made


def assert_in_one_region(net: MaskedNet, outside: tuple[str, ...] = ("Cast", "Unsqueeze", "Expand")) -> CpuProgram:
    """Compare at all sizes; but for ``outside``, kernels run every node."""
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for batch, tokens in SIZES:
        assert_same_as_onnxruntime(model, net.feeds_at(batch, tokens), program)
    kinds = {node.name: node.op_type for node in model.graph.node}
    assert {name for name in left_to_onnxruntime(program) if kinds[name] not in outside} == set()
    assert len(program.parts) <= 2
    return program


@pytest.mark.parametrize("fill", [0.0, -1.5, float("-inf"), float(np.finfo(np.float32).min)])
@pytest.mark.parametrize("is_first", [False, True])
def test_tokens_of_padding_become_a_number(fill: float, is_first: bool) -> None:
    net = MaskedNet()
    x, number = net.tokens(), net.constant(fill)
    hidden = net.op("Where", net.mask(2), *((number, x) if is_first else (x, number)))
    if np.isfinite(fill):
        net.output(hidden)
    net.ends(net.op("Clip", hidden, net.constant(-3.0), net.constant(3.0)))
    assert_in_one_region(net)


def test_one_activation_or_another() -> None:
    net = MaskedNet()
    x, y = net.tokens(), net.tokens("y")
    assert_in_one_region(net.ends(net.op("Where", net.mask(-1), x, net.op("Exp", y))))


def test_what_is_not_chosen_may_be_infinite() -> None:
    net = MaskedNet()
    x = net.tokens()
    roots = net.op("Log", net.op("Relu", x))
    assert_in_one_region(net.ends(net.op("Where", net.op("Greater", x, net.constant(0.1)), roots, x)))


@pytest.mark.parametrize("is_first", [False, True])
def test_a_stored_vector_is_chosen_for_masked_tokens(is_first: bool) -> None:
    """A mask token, of the channels."""
    net = MaskedNet()
    token = net.constant(np.linspace(-1, 1, WIDTH, dtype=np.float32).reshape(1, 1, WIDTH))
    x = net.tokens()
    assert_in_one_region(net.ends(net.op("Where", net.mask(2), *((token, x) if is_first else (x, token)))))


def test_a_condition_that_is_repeated_to_all_channels() -> None:
    net = MaskedNet()
    x = net.tokens()
    mask = net.op("Expand", net.mask(2), net.op("Shape", x))
    assert_in_one_region(
        net.ends(net.op("Where", mask, x, net.constant(0.0))), ("Cast", "Unsqueeze", "Expand", "Shape")
    )


def test_weights_of_attention_are_hidden_behind_the_softmax() -> None:
    net = MaskedNet()
    x = net.tokens()
    scores = net.op("MatMul", x, net.op("Transpose", x, perm=[0, 2, 1]))
    mask = net.mask(1)
    weights = net.op("Softmax", net.op("Where", mask, scores, net.constant(-1e9)), axis=-1)
    weights = net.op("Where", mask, weights, net.constant(0.0))
    assert_in_one_region(net.ends(net.op("MatMul", weights, x)))


@pytest.mark.parametrize("op", ["Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"])
@pytest.mark.parametrize("is_number_first", [False, True])
def test_comparisons_with_a_number(op: str, is_number_first: bool) -> None:
    net = MaskedNet()
    x = net.op("Relu", net.tokens())
    operands = (net.constant(0.0), x) if is_number_first else (x, net.constant(0.0))
    assert_in_one_region(net.ends(net.op("Where", net.op(op, *operands), net.tokens("y"), x)))


def test_conditions_of_conditions() -> None:
    net = MaskedNet()
    x, y = net.tokens(), net.tokens("y")
    either = net.op("Or", net.op("Less", x, y), net.op("Greater", x, net.constant(0.5)))
    both = net.op("And", net.op("Not", either), net.mask(2))
    assert_in_one_region(net.ends(net.op("Where", both, x, net.constant(2.0))))


def test_conditions_of_some_tokens_are_joined_and_moved() -> None:
    """Some channels that are small, and the others that are large."""
    net = MaskedNet()
    x = net.tokens()
    large = net.op("Greater", x, net.constant(0.0))
    first, others = (
        net.op("Slice", large, net.integers(start), net.integers(end), net.integers(2))
        for start, end in ((0, 2), (2, 2**62))
    )
    joined = net.op("Concat", net.op("Not", first), others, axis=2)
    joined = net.op("Transpose", net.op("Identity", net.op("Transpose", joined, perm=[0, 2, 1])), perm=[0, 2, 1])
    assert_in_one_region(net.ends(net.op("Where", net.op("Cast", joined, to=9), x, net.constant(0.0))), ())


def test_two_numbers_by_what_activations_say() -> None:
    net = MaskedNet()
    x = net.tokens()
    step = net.op("Where", net.op("Greater", x, net.constant(0.0)), net.constant(3.0), net.constant(-0.5))
    assert_in_one_region(net.ends(net.op("Add", x, step)))


@pytest.mark.parametrize("op", ["Max", "Min", "Pow", "Sub", "Div", "Add", "Mul"])
@pytest.mark.parametrize("axes", [(), (1,), (2,), (1, 2)])
@pytest.mark.parametrize("is_smaller_first", [False, True])
def test_two_activations_of_which_one_has_one_position(op: str, axes: tuple[int, ...], is_smaller_first: bool) -> None:
    net = MaskedNet()
    x, y = net.op("Exp", net.tokens()), net.op("Sigmoid", net.tokens("y"))
    for axis in axes:
        y = net.extreme(y, axis)
    assert_in_one_region(net.ends(net.op(op, *((y, x) if is_smaller_first else (x, y)))))


@pytest.mark.parametrize("op", ["Max", "Min", "Sub", "Mul"])
def test_each_of_two_activations_has_one_position_where_the_other_has_more(op: str) -> None:
    net = MaskedNet()
    x = net.extreme(net.tokens(), 1)
    y = net.extreme(net.tokens("y"), 2)
    assert_in_one_region(net.ends(net.op(op, y, x)))


def test_an_operand_may_lack_axes() -> None:
    net = MaskedNet()
    x = net.tokens()
    y = net.extreme(net.tokens("y"), 0, keepdims=0)
    assert_in_one_region(net.ends(net.op("Max", y, x)))


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_the_largest_of_several(op: str) -> None:
    net = MaskedNet()
    table = net.constant(np.linspace(-0.3, 0.3, WIDTH, dtype=np.float32))
    assert_in_one_region(net.ends(net.op(op, table, net.tokens(), net.tokens("y"), net.constant(0.1))))


@pytest.mark.parametrize("exponent", [3.0, -1.0, 1.5, -0.5, 0.0, 1.0, 10.0])
def test_powers(exponent: float) -> None:
    net = MaskedNet()
    assert_in_one_region(net.ends(net.op("Pow", net.op("Exp", net.tokens()), net.constant(exponent))))


def test_odd_powers_of_negative_values() -> None:
    net = MaskedNet()
    assert_in_one_region(net.ends(net.op("Pow", net.tokens(), net.constant([3], dtype=np.int64))))


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_nan_is_the_largest_and_the_smallest(op: str) -> None:
    net = MaskedNet()
    x, y = net.tokens(), net.tokens("y")
    net.output(net.op(op, net.op("Log", x), net.op("Sqrt", y)))
    model = net.model()
    for batch, tokens in SIZES:
        feeds = net.feeds_at(batch, tokens)
        (found,) = CpuProgram(model, ONE_THREAD).run(feeds).values()
        (wanted,) = onnx_reference(model, feeds)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-5)


def onnx_reference(model: onnx.ModelProto, feeds: Feeds) -> list[npt.NDArray[Any]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def test_images_are_selected_by_a_mask_of_pixels() -> None:
    net = MaskedNet()
    x = net.input("x", 2, 4, 5, 7, declared=["n", 4, "h", "w"])
    seen = net.input("mask", values=np.ones((2, 5, 7), np.int64), declared=["n", "h", "w"])
    seen = net.op("Unsqueeze", net.op("Cast", seen, to=onnx.TensorProto.BOOL), net.integers(1))
    y = net.op("Where", seen, net.conv(x, 4, 6, 3), net.constant(0.0))
    net.output(net.conv(net.op("Max", y, net.op("GlobalAveragePool", y)), 6, 4, 3, name="after"))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for batch, height, width in ((1, 5, 7), (3, 8, 4), (17, 3, 3)):
        rng = np.random.default_rng(batch)
        feeds = {
            "x": rng.standard_normal((batch, 4, height, width)).astype(np.float32),
            "mask": rng.integers(0, 2, (batch, height, width)),
        }
        assert_same_as_onnxruntime(model, feeds, program)
    assert len(program.parts) <= 2


def test_a_stored_plan_selects(tmp_path: Path) -> None:
    net = MaskedNet()
    net.ends(net.op("Where", net.mask(2), net.tokens(), net.constant(float("-inf"))))
    model, feeds = net.model(), net.feeds_at(2, 4)
    first, second = (InferenceSession(model, threads=1, packed_cache=tmp_path).run(None, feeds) for _ in range(2))
    np.testing.assert_array_equal(first[0], second[0])


def test_a_constant_condition_is_left_to_onnxruntime() -> None:
    net = MaskedNet()
    x = net.tokens()
    seen = net.constant(np.arange(WIDTH) % 2 == 0, dtype=bool)
    net.ends(net.op("Where", seen, x, net.constant(0.0), name="chosen"))
    program = CpuProgram(net.model(), ONE_THREAD)
    assert_same_as_onnxruntime(net.model(), net.feeds_at(2, 4), program)
    assert reasons(program)["chosen"] == "its condition is a constant, or onnxruntime computes it"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ops=st.lists(st.sampled_from(["Max", "Min", "Where", "Hide", "Less", "Pow", "Div"]), min_size=1, max_size=4),
    reduced=st.lists(st.integers(0, 3), min_size=4, max_size=4), turned=st.booleans(), batch=st.integers(1, 18),
    tokens=st.integers(1, 18),
)  # fmt: skip
def test_any_selections(ops: list[str], reduced: list[int], turned: bool, batch: int, tokens: int) -> None:
    net = MaskedNet()
    x, y = net.tokens(), net.op("Sigmoid", net.tokens("y"))
    mask = net.mask(2)
    for op, axis in zip(ops, reduced, strict=False):
        other = net.extreme(y, axis) if axis < 3 else y
        operands = (other, x) if turned and op not in ("Pow", "Div") else (x, other)
        if op == "Where":
            x = net.op("Where", mask, *operands)
        elif op == "Hide":
            x = net.op("Where", mask, x, net.constant(0.25))
        elif op == "Less":
            x = net.op("Where", net.op("Less", *operands), x, other)
        elif op == "Pow":
            x = net.op("Pow", net.op("Add", net.op("Sigmoid", x), net.constant(0.1)), other)
        else:
            x = net.op(op, *operands)
    net.ends(x)
    assert_same_as_onnxruntime(net.model(), net.feeds_at(batch, tokens), tolerance=1e-4)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("shape", [(2, 1, 1, 1), (1, 3, 1), (1, 3, WIDTH), (2, 1, 3, WIDTH)])
@pytest.mark.parametrize("is_constant_first", [False, True])
def test_constants_that_differ_along_any_axes(op: str, shape: tuple[int, ...], is_constant_first: bool) -> None:
    net = MaskedNet()
    x = net.op("Exp", net.extreme(net.tokens(), 1))
    values = net.constant(np.linspace(0.5, 2, int(np.prod(shape)), dtype=np.float32).reshape(shape))
    x = net.op(op, *((values, x) if is_constant_first else (x, values)))
    net.output(net.dense(net.op("Reshape", x, net.integers(-1, WIDTH)), WIDTH, 4, name="after"))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for batch, tokens in SIZES:
        assert_same_as_onnxruntime(model, net.feeds_at(batch, tokens), program)
    assert left_to_onnxruntime(program) == {}


def test_a_constant_repeats_one_sequence_in_onnxruntime() -> None:
    net = MaskedNet()
    x = net.op("Add", net.tokens(), net.constant(np.ones((3, 1, 1), np.float32)), name="added")
    program = CpuProgram(net.ends(x).model(), ONE_THREAD)
    assert_same_as_onnxruntime(net.model(), net.feeds_at(3, 4), program)
    assert left_to_onnxruntime(program) == {}
    assert_same_as_onnxruntime(net.model(), net.feeds_at(1, 4), program)
    assert "its operands are not known to be of one shape" in reasons(program)["added"]


@pytest.mark.parametrize("fill", [0.0, 2.0])
def test_what_is_no_number_becomes_one(fill: float) -> None:
    net = MaskedNet()
    roots = net.op("Sqrt", net.tokens())
    assert_in_one_region(net.ends(net.op("Where", net.op("IsNaN", roots), net.constant(fill), roots)))
