"""Arithmetic that rounds becomes QuantizeLinear and DequantizeLinear, and everything else stays what it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nets import Net
from quantized_nets import MICROSOFT
from rewritten_graphs import operators_left

from sift_onnx.backends.lowering.graph import GraphView
from sift_onnx.backends.lowering.standard_quantization import with_standard_quantization
from sift_onnx.model import Model


def rewritten(net: Net) -> list[str]:
    """The operators that are left."""
    return operators_left(net, with_standard_quantization, tolerance=1e-5)


def number(net: Net, value: float) -> str:
    return net.constant(np.float32(value))


def values(count: int = 400) -> np.ndarray[Any, Any]:
    """Some are far beyond what bytes stand for; none is halfway between two steps."""
    return np.random.default_rng(0).normal(0, 3, (2, count)).astype(np.float32)


def bounded(net: Net, x: str, low: float, high: float, is_split: bool) -> str:
    if is_split:
        return str(net.op("Min", net.op("Max", x, number(net, low)), number(net, high)))
    return str(net.op("Clip", x, number(net, low), number(net, high)))


@settings(max_examples=16, deadline=None)
@given(
    scale=st.sampled_from([0.01, 0.037, 0.25]),
    zero=st.sampled_from([0, 3, 128]),
    is_signed=st.booleans(),
    levels=st.sampled_from([16, 128, 256]),
    is_product=st.booleans(),
    clips_first=st.booleans(),
    is_split=st.booleans(),
    rounds_last=st.booleans(),
    makes_floats=st.booleans(),
)
def test_rounding_in_any_order(
    scale: float, zero: int, is_signed: bool, levels: int, is_product: bool, clips_first: bool, is_split: bool,
    rounds_last: bool, makes_floats: bool,
) -> None:  # fmt: skip
    low = -(levels // 2) if is_signed else 0
    zero = low + min(zero, levels - 1)
    high = low + levels - 1
    net = Net(opset=21)
    x = net.input("x", values=values())
    u = net.op("Mul", x, number(net, 1 / scale)) if is_product else net.op("Div", x, number(net, scale))
    ends = (low, high)
    if rounds_last:
        u = net.op("Add", u, number(net, zero))
    else:
        ends = (low - zero, high - zero)
    u = (
        net.op("Round", bounded(net, u, *ends, is_split))
        if clips_first
        else bounded(net, net.op("Round", u), *ends, is_split)
    )
    if makes_floats:
        u = net.op("Sub", u, number(net, zero)) if rounds_last else u
        net.output(net.op("Mul", u, number(net, scale)), 2, 400)
        assert set(rewritten(net)) <= {"QuantizeLinear", "Clip", "DequantizeLinear"}
    else:
        u = u if rounds_last else net.op("Add", u, number(net, zero))
        kind = onnx.TensorProto.INT8 if is_signed else onnx.TensorProto.UINT8
        q = net.op("Cast", u, to=kind)
        y = net.op("Sub", net.op("Cast", q, to=onnx.TensorProto.FLOAT), number(net, zero))
        net.output(net.op("Mul", y, number(net, scale)), 2, 400)
        made = rewritten(net)
        assert made[0] == "QuantizeLinear"
        assert made[-1] == "DequantizeLinear"
        assert made[1:-1] == (["Clip"] if levels < 256 else [])


def test_weights_that_are_rounded_for_each_channel() -> None:
    net = Net(opset=21)
    weight = net.constant(np.random.default_rng(1).normal(0, 1, (3, 5)), "weight")
    scales = net.constant(np.array([[0.01], [0.02], [0.03]]))
    q = net.op("Clip", net.op("Round", net.op("Div", weight, scales)), number(net, -127), number(net, 127))
    net.output(net.op("MatMul", net.input("x", 2, 3), net.op("Mul", q, scales)), 2, 5)
    assert rewritten(net) == ["QuantizeLinear", "Clip", "DequantizeLinear", "MatMul"]


def test_weights_of_integers_that_are_cast() -> None:
    net = Net(opset=21)
    integers = [net.constant(np.arange(-7, 8).reshape(5, 3), f"w{i}", dtype=np.int8) for i in range(2)]
    scales = net.constant(np.array([0.1, 0.2, 0.3]))
    x = net.op("MatMul", net.input("x", 2, 5), net.op("Mul", net.op("Cast", integers[0], to=1), scales))
    x = net.op("MatMul", x, net.op("Transpose", net.op("Cast", integers[1], to=1)))
    net.output(x, 2, 5)
    assert rewritten(net) == ["DequantizeLinear", "MatMul", "DequantizeLinear", "Transpose", "MatMul"]


def test_zero_points_of_integers_that_are_taken_off_in_int32() -> None:
    net = Net(opset=21)
    point = number(net, 0.1), net.constant(7, dtype=np.uint8)
    q = net.op("Cast", net.op("QuantizeLinear", net.input("x", values=values()), *point), to=onnx.TensorProto.INT32)
    centred = net.op("Cast", net.op("Sub", q, net.constant(7, dtype=np.int32)), to=onnx.TensorProto.FLOAT)
    net.output(net.op("Mul", centred, point[0]), 2, 400)
    assert rewritten(net) == ["QuantizeLinear", "DequantizeLinear"]


def test_casts_that_leave_values_as_they_are() -> None:
    net = Net(opset=21)
    point = number(net, 0.1), net.constant(7, dtype=np.uint8)
    q = net.op("QuantizeLinear", net.input("x", values=values()), *point)
    q = net.op("Identity", net.op("Cast", q, to=onnx.TensorProto.UINT8))
    y = net.op("Cast", net.op("DequantizeLinear", q, *point), to=onnx.TensorProto.FLOAT)
    net.output(net.op("Relu", y), 2, 400)
    assert rewritten(net) == ["QuantizeLinear", "DequantizeLinear", "Relu"]


def test_the_operators_of_onnxruntime() -> None:
    net = Net(opset=21)
    point = number(net, 0.1), net.constant(7, dtype=np.uint8)
    q = net.op("QuantizeLinear", net.input("x", values=values()), *point, domain=MICROSOFT)
    wide = number(net, 0.001), net.constant(7, dtype=np.uint16)
    y = net.op("DequantizeLinear", q, *point, domain=MICROSOFT)
    net.output(net.op("QuantizeLinear", y, *wide, domain=MICROSOFT), 2, 400)
    view = with_standard_quantization(GraphView(Model.load(net.model())))
    assert [node.domain for node in view.nodes] == ["", "", MICROSOFT]


def other_factor(net: Net, x: str) -> str:
    return str(net.op("Mul", bounded(net, net.op("Round", net.op("Div", x, number(net, 0.1))), 0, 255, False),
                      number(net, 0.2)))  # fmt: skip


def no_ends(net: Net, x: str) -> str:
    return str(net.op("Mul", net.op("Round", net.op("Div", x, number(net, 0.1))), number(net, 0.1)))


def zero_between_two_integers(net: Net, x: str) -> str:
    u = net.op("Add", net.op("Div", x, number(net, 0.1)), number(net, 0.5))
    u = bounded(net, net.op("Round", u), 0, 255, False)
    return str(net.op("Mul", net.op("Sub", u, number(net, 0.5)), number(net, 0.1)))


def more_than_a_byte(net: Net, x: str) -> str:
    u = bounded(net, net.op("Round", net.op("Div", x, number(net, 0.1))), -200, 200, False)
    return str(net.op("Mul", u, number(net, 0.1)))


def scale_for_each_channel(net: Net, x: str) -> str:
    scales = net.constant(np.linspace(0.1, 0.2, 400))
    return str(net.op("Mul", bounded(net, net.op("Round", net.op("Div", x, scales)), 0, 255, False), scales))


def steps_that_are_read(net: Net, x: str) -> str:
    steps = net.op("Round", net.op("Div", x, number(net, 0.1)))
    net.output(steps, 2, 400)
    return str(net.op("Mul", bounded(net, steps, 0, 255, False), number(net, 0.1)))


def turned_order(net: Net, x: str) -> str:
    u = bounded(net, net.op("Round", net.op("Mul", x, number(net, -10))), -128, 127, False)
    return str(net.op("Mul", u, number(net, -0.1)))


def bytes_of_a_request(net: Net, x: str) -> str:
    q = net.input("bytes", values=np.arange(800, dtype=np.uint8).reshape(2, 400))
    return str(net.op("Add", x, net.op("Mul", net.op("Cast", q, to=1), number(net, 1 / 255))))


@pytest.mark.parametrize(
    "write",
    [other_factor, no_ends, zero_between_two_integers, more_than_a_byte, scale_for_each_channel, steps_that_are_read,
     turned_order, bytes_of_a_request],
)  # fmt: skip
def test_what_no_bytes_stand_for_stays(write: Any) -> None:
    net = Net(opset=21)
    net.output(write(net, net.input("x", values=values())), 2, 400)
    before = [node.op_type for node in net.model().graph.node]
    assert rewritten(net) == before


@pytest.mark.parametrize("readers", [1, 2])
@pytest.mark.parametrize("of_bytes", [True, False])
def test_bytes_are_never_nan(readers: int, of_bytes: bool) -> None:
    """Torch's attention asks whether weights are NaN; onnxruntime's optimizer dequantizes bytes for each reader."""
    net = Net(opset=21)
    step, zero = number(net, 0.1), net.constant(np.uint8(7))
    x = net.input("x", values=values())
    bytes_ = net.op("QuantizeLinear", x, step, zero)
    floats = [net.op("DequantizeLinear", bytes_, step, zero) if of_bytes else x for _ in range(readers)]
    guarded = net.op("Where", net.op("IsNaN", floats[0]), number(net, 0), floats[-1])
    net.output(net.op("Relu", guarded), 2, 400)
    left = ["QuantizeLinear", "DequantizeLinear", "Relu"]
    assert rewritten(net) == (left if of_bytes else ["QuantizeLinear", "IsNaN", "Where", "Relu"])
