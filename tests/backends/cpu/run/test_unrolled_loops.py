"""Loops over an open axis that an exporter unrolled: they are of one length, and the rest of the graph is of any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sparse_nets import ONE_THREAD, SparseNet, assert_same_as_onnxruntime, reasons

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.errors import SiftError

pytestmark = pytest.mark.usefixtures("every_region_pays")

STEPS = 5


def integers(net: SparseNet, *values: int) -> str:
    return str(net.constant(values, dtype=np.int64))


def rows_of(net: SparseNet) -> str:
    return str(net.dense(net.input("x", 2, STEPS, 6, declared=["n", "t", 6]), 6, 8, name="before"))


def ended(net: SparseNet, values: str) -> Any:
    net.output(net.dense(net.op("Relu", values), 8, 4, name="after"))
    return net.model()


def scanned() -> Any:
    """A state is carried from step to step; the states are added to what they were made of."""
    net = SparseNet(opset=18)
    rows = rows_of(net)
    state, states = "", []
    for step in range(STEPS):
        own = net.op("Gather", rows, net.constant(step, dtype=np.int64), axis=1)
        state = net.op("Tanh", net.op("Add", own, net.op("Mul", state, net.constant(0.5))) if state else own)
        states.append(net.op("Unsqueeze", state, integers(net, 1)))
    return ended(net, net.op("Add", net.op("Concat", *states, axis=1), rows))


def added_to_table() -> Any:
    """A table of as many positions as the model was traced with; one position is repeated for each of them."""
    net = SparseNet(opset=18)
    return ended(net, net.op("Add", rows_of(net), net.weight(STEPS, 8)))


def added_to_table_of_more() -> Any:
    """As above, where the table is of an expression: twice the axis and one more."""
    net = SparseNet(opset=18)
    rows = rows_of(net)
    first = net.op("Unsqueeze", net.op("Gather", rows, net.constant(0, dtype=np.int64), axis=1), integers(net, 1))
    more = net.op("Concat", first, rows, net.op("Neg", rows), axis=1)
    return ended(net, net.op("Add", more, net.weight(2 * STEPS + 1, 8)))


def feeds_of(batch: int, length: int) -> dict[str, Any]:
    rng = np.random.default_rng(batch + 31 * length)
    return {"x": rng.standard_normal((batch, length, 6)).astype(np.float32)}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("made", [scanned, added_to_table])
def test_the_length_that_was_unrolled_is_in_one_region(made: Callable[[], Any], threads: int) -> None:
    model = made()
    program = CpuProgram(model, CompileOptions(threads=threads, deterministic=True))
    for batch in (1, 3, 8, 2):
        assert_same_as_onnxruntime(model, feeds_of(batch, STEPS), program)
    assert len(program.parts) == 1
    assert f"'t' of {STEPS}" in reasons(program)["after"]


def test_an_expression_that_meets_a_number_says_what_its_name_is() -> None:
    model = added_to_table_of_more()
    program = CpuProgram(model, ONE_THREAD)
    for batch in (1, 3):
        assert_same_as_onnxruntime(model, feeds_of(batch, STEPS), program)
    assert len(program.parts) == 1


def test_one_position_is_repeated_between_requests_of_the_planned_length() -> None:
    model = added_to_table()
    program = CpuProgram(model, ONE_THREAD)
    for batch, length in ((2, STEPS), (2, 1), (1, 1), (3, STEPS), (8, 1)):
        assert_same_as_onnxruntime(model, feeds_of(batch, length), program)
        assert ("planned for any sizes" in reasons(program)["after"]) == (length == 1)


@pytest.mark.parametrize("made", [scanned, added_to_table])
def test_other_lengths_are_refused_as_onnxruntime_refuses_them(made: Callable[[], Any]) -> None:
    model = made()
    program = CpuProgram(model, ONE_THREAD)
    for length in (STEPS - 1, STEPS + 1):
        with pytest.raises(SiftError, match=f"'t' is {length}|node 'gather"):
            program.run(feeds_of(2, length))
        assert_same_as_onnxruntime(model, feeds_of(2, STEPS), program)


def test_a_length_that_is_given_and_differs_is_planned_for() -> None:
    model = added_to_table()
    program = CpuProgram(model, CompileOptions(threads=1, deterministic=True, input_shapes={"x": (2, 1, 6)}))
    assert_same_as_onnxruntime(model, feeds_of(2, 1), program)
    assert f"'t' of {STEPS}" not in reasons(program)["after"]
