"""Shapes behind numbers that a graph computes: against onnxruntime, and where nothing is certain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nets import Net, run
from onnx import TensorProto, helper

from sift_onnx.errors import UnsupportedError
from sift_onnx.model import Model
from sift_onnx.shapes import bind_inputs, infer_shapes, infer_values

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def images(net: Net, height: int, width: int) -> str:
    return net.input("x", 1, 3, height, width, declared=["n", 3, "h", "w"])


def size(net: Net, x: str, axis: int) -> str:
    return str(net.op("Gather", net.op("Shape", x), net.constant(axis)))


def as_float(net: Net, value: str) -> str:
    return str(net.op("Cast", value, to=FLOAT))


def as_integer(net: Net, value: str) -> str:
    return str(net.op("Cast", value, to=INT64))


def listed(net: Net, *scalars: str) -> str:
    return str(net.op("Concat", *(net.op("Unsqueeze", s, net.constant([0])) for s in scalars), axis=0))


def compared(net: Net, proto: onnx.ModelProto | None = None) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors, which have to be those that come out of onnxruntime."""
    proto = net.model() if proto is None else proto
    model = Model.load(proto)
    shapes = infer_shapes(model, bind_inputs(model, {name: feed.shape for name, feed in net.feeds.items()}))
    made = {name: array.shape for name, array in run(proto, net.feeds).items()}
    assert {name: shapes.get(name) for name in made} == made
    return made


# Tables of positions.


def by_scales(net: Net, x: str, table: str) -> str:
    """As ``F.interpolate(table, scale_factor=((h / 14 + 0.1) / 5, ...))`` is exported."""
    parts = [
        net.op("Div", net.op("Add", as_float(net, net.op("Div", size(net, x, axis), net.constant(14))),
                             net.constant(0.1)), net.constant(5.0))
        for axis in (2, 3)
    ]  # fmt: skip
    scales = net.op("Concat", net.constant([1.0, 1.0]), listed(net, *parts), axis=0)
    return str(net.op("Resize", table, "", scales, mode="cubic", name="resized"))


def by_sizes(net: Net, x: str, table: str) -> str:
    """As ``F.interpolate(table, size=(h // 14, w // 14))`` is exported."""
    front = net.op("Slice", net.op("Shape", table), net.constant([0]), net.constant([2]), net.constant([0]))
    parts = [as_integer(net, as_integer(net, net.op("Div", size(net, x, axis), net.constant(14)))) for axis in (2, 3)]
    sizes = net.op("Concat", front, listed(net, *parts), axis=0)
    return str(net.op("Resize", table, "", "", sizes, mode="cubic", name="resized"))


@pytest.mark.parametrize("resize", [by_scales, by_sizes])
@pytest.mark.parametrize(("height", "width"), [(84, 84), (98, 70), (71, 97)])
def test_a_table_of_positions_is_resized_to_the_patches_of_an_image(
    resize: Callable[[Net, str, str], str], height: int, width: int
) -> None:
    net = Net()
    x = images(net, height, width)
    side = as_integer(net, net.op("Pow", net.constant(25.0), net.constant(0.5)))
    square = listed(net, net.constant(1), side, side, net.constant(8))
    table = net.op("Transpose", net.op("Reshape", net.weight(1, 25, 8), square), perm=[0, 3, 1, 2])
    net.output(net.op("Relu", resize(net, x, table)), 1, 8, height // 14, width // 14)
    assert compared(net)["resized"] == (1, 8, height // 14, width // 14)


def test_windows_that_an_image_is_padded_to() -> None:
    """``x`` is padded to windows of 7 and cut into them, as Swin and BEiT do it for images of any size."""
    net = Net()
    x = images(net, 17, 30)
    seven = net.constant(7)
    pads = [net.op("Mod", net.op("Sub", seven, net.op("Mod", size(net, x, axis), seven)), seven) for axis in (2, 3)]
    zeros = net.constant([0, 0, 0, 0, 0, 0])
    padded = net.op("Pad", x, net.op("Concat", zeros, listed(net, *pads), axis=0), name="padded")
    counts = [net.op("Div", size(net, padded, axis), seven) for axis in (2, 3)]
    cut = [size(net, padded, 0), size(net, padded, 1), counts[0], seven, counts[1], seven]
    net.output(net.op("Reshape", padded, listed(net, *cut), name="windows"), 1, 3, 3, 7, 5, 7)
    assert compared(net)["windows"] == (1, 3, 3, 7, 5, 7)


# Whatever chains of arithmetic come along.

UNARY = ["Abs", "Ceil", "Floor", "Neg", "Reciprocal", "Round", "Sign", "Sqrt"]
BINARY = ["Add", "Div", "Max", "Min", "Mul", "Pow", "Sub"]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(UNARY), st.none()),
        st.tuples(st.sampled_from(BINARY), st.sampled_from([0.1, 0.5, 0.7, 1.5, 2.0, 3.0, 14.0])),
        st.tuples(st.sampled_from(["Floor", "Ceil", "Round"]), st.none()),
        st.tuples(st.just("integer"), st.none()),
    ),
    min_size=1,
    max_size=7,
)


def chain(net: Net, value: str, steps: list[tuple[str, float | None]]) -> str:
    """A size that is taken through the steps in floating point, and is 1 to 64 in the end."""
    value = as_float(net, value)
    for op, operand in steps:
        if op == "integer":
            value = as_float(net, as_integer(net, net.op("Clip", value, net.constant(-1e6), net.constant(1e6))))
        elif operand is None:
            value = net.op(op, net.op("Abs", value) if op == "Sqrt" else value)
        else:
            value = net.op(op, net.op("Abs", value) if op == "Pow" else value, net.constant(operand))
    bounded = net.op("Min", net.op("Max", value, net.constant(1.0)), net.constant(64.0))
    return as_integer(net, bounded)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, height=st.integers(1, 300), width=st.integers(1, 300))
def test_evaluated_shapes_are_those_of_onnxruntime(
    steps: list[tuple[str, float | None]], height: int, width: int
) -> None:
    net = Net()
    x = net.input("x", 1, 3, height, width)
    sizes = [chain(net, size(net, x, axis), steps) for axis in (2, 3)]
    net.output(net.op("Expand", net.constant(1.0), listed(net, *sizes), name="filled"), 0)
    proto = net.model()
    made = run(proto, net.feeds)
    model = Model.load(proto)
    shapes = infer_shapes(model, bind_inputs(model))
    found = {name: shape for name, shape in shapes.items() if name in made and None not in shape}
    assert found == {name: made[name].shape for name in found}
    values = infer_values(proto)[1]
    assert all(np.array_equal(values[name], made[name], equal_nan=True) for name in values)
    # What a runtime makes of infinity and of powers that are rounded is not certain.
    scalars = [array for array in made.values() if array.dtype == np.float32 and array.ndim == 0]
    assert "filled" in found or not np.isfinite(scalars).all() or "Pow" in dict(steps)
