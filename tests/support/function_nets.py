"""Nets whose layers are inside of local functions, as exporters write a function for each kind of module."""

from __future__ import annotations

from typing import TypeVar

from nets import Net
from onnx import helper

AnyNet = TypeVar("AnyNet", bound=Net)

WIDTHS = (8, 12, 10, 6)


def layers_in_functions(net: AnyNet) -> AnyNet:
    """Three matrix products ``w0``, ``w1``, ``w2`` of ``WIDTHS``, the first two in calls of one function."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["product"]), helper.make_node("Relu", ["product"], ["out"])]
    net.functions.append(
        helper.make_function("local", "Layer", ["x", "w"], ["out"], nodes, [helper.make_opsetid("", net.opset)])
    )
    h = net.input("x", 2, WIDTHS[0], declared=["n", WIDTHS[0]])
    for index in range(2):
        weight = net.weight(*WIDTHS[index : index + 2], name=f"w{index}")
        h = net.op("Layer", h, weight, name=f"layer{index}", domain="local")
    net.output(net.op("MatMul", h, net.weight(*WIDTHS[2:], name="w2"), name="head"))
    return net
