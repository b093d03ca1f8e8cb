"""Conditions of activations that are cast to floats, and casts of floats to conditions, against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime, left_to_onnxruntime

from sift_onnx.backends.cpu.run.program import CpuProgram

pytestmark = pytest.mark.usefixtures("every_region_pays")

WIDTH = 6
SIZES = ((1, 5), (3, 4), (2, 1), (8, 17))
# What a cast to a boolean does not leave as it is.
VALUES = np.array([0, 1, -1, 3, -0.0, 0.5, 1e-30, -1e-38, np.inf, -np.inf], np.float32)


class ConditionNet(SparseNet):
    """Activations behind a layer, in some places exactly one of ``VALUES``."""

    def activations(self, name: str) -> str:
        x = self.input(name, 2, 4, 5, declared=["n", "t", 5])
        chosen = self.input(f"{name} values", 2, 4, WIDTH, declared=["n", "t", WIDTH])
        zeros = self.op("Mul", self.op("Relu", self.dense(x, 5, WIDTH, name=f"{name} before")), self.constant(0.0))
        return str(self.op("Add", zeros, chosen))

    def boolean(self, name: str) -> str:
        return str(self.op("Cast", self.activations(name), to=onnx.TensorProto.BOOL))

    def compared(self, name: str, op: str = "Greater", number: float = 0.3) -> str:
        return str(self.op(op, self.activations(name), self.constant(number)))

    def floats(self, condition: str) -> str:
        return str(self.op("Cast", condition, to=onnx.TensorProto.FLOAT))

    def ends(self, x: str) -> ConditionNet:
        self.output(self.dense(x, WIDTH, 4, name="after"))
        return self

    def feeds_at(self, batch: int, tokens: int) -> dict[str, Any]:
        rng = np.random.default_rng(100 * batch + tokens)
        made = {}
        for name, array in self.feeds.items():
            sizes = (batch, tokens, *array.shape[2:])
            made[name] = (
                rng.choice(VALUES, sizes) if "values" in name else rng.standard_normal(sizes).astype(np.float32)
            )
        return made


def assert_in_one_region(net: ConditionNet) -> CpuProgram:
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for batch, tokens in SIZES:
        assert_same_as_onnxruntime(model, net.feeds_at(batch, tokens), program)
    assert left_to_onnxruntime(program) == {}
    assert len(program.parts) == 1
    return program


def negated(net: ConditionNet) -> str:
    return str(net.op("Not", net.boolean("x")))


def both(net: ConditionNet) -> str:
    return str(net.op("And", net.boolean("x"), net.boolean("y")))


def either(net: ConditionNet) -> str:
    return str(net.op("Or", net.boolean("x"), net.boolean("y")))


def between(net: ConditionNet) -> str:
    x = net.activations("x")
    return str(net.op("And", net.op("GreaterOrEqual", x, net.constant(0.0)), net.op("Less", x, net.constant(1.0))))


def moved(net: ConditionNet) -> str:
    hidden = net.op("Transpose", net.compared("x"), perm=[0, 2, 1])
    return str(net.op("Transpose", net.op("Not", hidden), perm=[0, 2, 1]))


LOGIC = [negated, both, either, between, moved]


@pytest.mark.parametrize("condition", LOGIC)
def test_conditions_as_floats(condition: Callable[[ConditionNet], str]) -> None:
    net = ConditionNet()
    assert_in_one_region(net.ends(net.floats(condition(net))))


@pytest.mark.parametrize("condition", [*LOGIC, lambda net: net.boolean("x")])
def test_what_is_chosen_where_floats_are_not_zero(condition: Callable[[ConditionNet], str]) -> None:
    net = ConditionNet()
    x = net.dense(net.input("z", 2, 4, 5, declared=["n", "t", 5]), 5, WIDTH)
    assert_in_one_region(net.ends(net.op("Where", condition(net), x, net.op("Tanh", x))))


@pytest.mark.parametrize("condition", LOGIC)
def test_a_condition_that_is_an_output_too(condition: Callable[[ConditionNet], str]) -> None:
    net = ConditionNet()
    made = condition(net)
    net.output(made)
    net.ends(net.floats(made))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    for batch, tokens in SIZES:
        feeds = net.feeds_at(batch, tokens)
        wanted = assert_same_values(model, program, feeds)
        assert wanted[0].dtype == np.bool_


def assert_same_values(model: Any, program: CpuProgram, feeds: dict[str, Any]) -> list[Any]:
    import onnxruntime as ort

    wanted = ort.InferenceSession(model.SerializeToString()).run(None, feeds)
    made = list(program.run(feeds).values())
    for first, second in zip(made, wanted, strict=True):
        np.testing.assert_allclose(first, second, rtol=0, atol=2e-5)
    return made


@pytest.mark.parametrize("op", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("number", [2, [1], [0, 2, 3]])
def test_places_are_compared_with_constants(op: str, is_first: bool, number: int | list[int]) -> None:
    """Experts of a mixture are those that are among the best."""
    net = SparseNet(opset=18)
    x = net.input("x", 2, 4, 5, declared=["n", "t", 5])
    scores = net.dense(x, 5, 8, name="scores")
    _, places = net.op("TopK", scores, net.constant([3], dtype=np.int64), outputs=2)
    operands = (places, net.constant(number, dtype=np.int64))
    chosen = net.op("Cast", net.op(op, *(operands if is_first else operands[::-1])), to=onnx.TensorProto.FLOAT)
    net.output(net.dense(net.op("Tanh", chosen), 3, 4, name="after"))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    rng = np.random.default_rng(0)
    for batch, tokens in SIZES:
        feeds = {"x": rng.standard_normal((batch, tokens, 5)).astype(np.float32)}
        assert_same_as_onnxruntime(model, feeds, program)
    assert left_to_onnxruntime(program) == {}
    assert len(program.parts) == 1


def test_places_are_not_compared_with_what_floats_round() -> None:
    net = SparseNet(opset=18)
    scores = net.dense(net.input("x", 2, 4, 5, declared=["n", "t", 5]), 5, 8, name="scores")
    places = net.op("ArgMax", scores, axis=-1)
    chosen = net.op("Cast", net.op("Less", places, net.constant(1 << 24, dtype=np.int64)), to=onnx.TensorProto.FLOAT)
    net.output(net.dense(net.op("Tanh", net.op("Add", scores, chosen)), 8, 4, name="after"))
    model = net.model()
    program = CpuProgram(model, ONE_THREAD)
    assert_same_as_onnxruntime(model, net.feeds, program)
    assert "floats are exact" in " ".join(left_to_onnxruntime(program).values())
