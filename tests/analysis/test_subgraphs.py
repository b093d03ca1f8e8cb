"""If, Loop, Scan: what they read and make stays, the rest grows. Local functions become part of the graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from nets import Net, Widened, widen
from onnx import TensorProto, helper

FLOAT = TensorProto.FLOAT


def node(kind: str, inputs: list[str], output: str, **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, [output], name=output, **attrs)


def graph(name: str, nodes: list[onnx.NodeProto], inputs: dict[str, Any], outputs: dict[str, Any]) -> onnx.GraphProto:
    """A subgraph; inputs and outputs by name, each its shape, or its element type and shape."""

    def value(label: str, spec: Any) -> onnx.ValueInfoProto:
        element, shape = spec if isinstance(spec, tuple) else (FLOAT, spec)
        return helper.make_tensor_value_info(label, element, shape)

    sides = ([value(label, spec) for label, spec in values.items()] for values in (inputs, outputs))
    return helper.make_graph(nodes, name, *sides)


def layers_around(net: Net, width: int = 8) -> str:
    """Two layers whose inner width is free, in front of the one that a test is about."""
    h = net.tokens(6)
    return net.dense(net.dense(h, 6, 10, name="free"), 10, width, name="read")


def check(wide: Widened, kind: str) -> None:
    assert wide.shape("free") == (1, 5, 20)
    assert wide.shape("read.weight") == (20, 8)
    assert kind in wide.reason("read.weight")
    assert "subgraph" in wide.reason("read.weight")
    assert wide.report["unknown"] == []


def test_a_choice_between_two_branches(net: Net) -> None:
    h = layers_around(net)
    branches = {
        f"{side}_branch": graph(side, [node(op, [h], f"{side}.out")], {}, {f"{side}.out": [1, 5, 8]})
        for side, op in (("then", "Relu"), ("else", "Neg"))
    }
    h = net.op("If", net.input("flag", values=np.array(True)), name="chosen", **branches)
    net.tokens_end(h, 8)
    wide = widen(net, strict=True)
    check(wide, "If")
    assert wide.shape("chosen") == (1, 5, 8)


def test_a_loop_with_a_state_and_a_capture(net: Net) -> None:
    h = layers_around(net)
    captured = net.dense("free", 10, 8, name="captured")
    body = graph(
        "body",
        [
            node("Identity", ["going"], "goes"),
            node("Add", ["state", captured], "next"),
        ],
        {"i": (TensorProto.INT64, []), "going": (TensorProto.BOOL, []), "state": [1, 5, 8]},
        {"goes": (TensorProto.BOOL, []), "next": [1, 5, 8]},
    )
    h = net.op("Loop", net.constant(3), net.constant(True), h, name="looped", body=body)
    net.tokens_end(h, 8)
    wide = widen(net, strict=True)
    check(wide, "Loop")
    assert wide.shape("captured.weight") == (20, 8)
    assert "Loop" in wide.reason("captured.weight")


def test_a_scan_over_positions(net: Net) -> None:
    h = layers_around(net)
    h = net.op("Squeeze", h, net.constant([0]))
    initial = net.constant(np.zeros(8), "initial")
    body = graph(
        "body",
        [node("Add", ["state", "row"], "next"), node("Identity", ["next"], "kept")],
        {"state": [8], "row": [8]},
        {"next": [8], "kept": [8]},
    )
    last, rows = net.op("Scan", initial, h, name="scanned", outputs=2, body=body, num_scan_inputs=1)
    net.tokens_end(net.op("Add", rows, last), 8)
    wide = widen(net, strict=True)
    check(wide, "Scan")
    assert wide.shape("initial") == (8,)
    assert wide.shape(rows) == (5, 8)


def test_weights_inside_of_a_subgraph_are_left_alone(net: Net) -> None:
    h = layers_around(net)
    weight = net.weight(8, 8, name="inner")
    branches = {
        f"{side}_branch": graph(side, [node("MatMul", [h, weight], f"{side}.out")], {}, {f"{side}.out": [1, 5, 8]})
        for side in ("then", "else")
    }
    h = net.op("If", net.input("flag", values=np.array(True)), name="chosen", **branches)
    net.tokens_end(h, 8)
    wide = widen(net)
    check(wide, "If")
    assert wide.shape("inner") == (8, 8)


# Local functions.


def function(name: str, inputs: list[str], nodes: list[onnx.NodeProto], attributes: list[str] | None = None) -> Any:
    domains = sorted({n.domain for n in nodes} - {""})
    opsets = [helper.make_opsetid("", 20), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_function("local", name, inputs, ["out"], nodes, opsets, attributes or [])


def test_layers_inside_of_functions_grow(net: Net) -> None:
    product = helper.make_node("MatMul", ["x", "w"], ["product"])
    net.functions.append(function("Layer", ["x", "w"], [product, helper.make_node("Relu", ["product"], ["out"])]))
    h = net.tokens(8)
    h = net.op("Layer", h, net.weight(8, 12, name="w0"), name="layer0", domain="local")
    h = net.op("Layer", h, net.weight(12, 8, name="w1"), name="layer1", domain="local")
    net.tokens_end(h, 8)
    wide = widen(net, "0.9", strict=True)
    assert wide.shape("w0") == (25, 38)
    assert wide.shape("w1") == (38, 25)
    assert wide.status("w0") == wide.status("w1") == "sparse"
    assert not wide.proto.functions


def test_a_shape_stated_in_a_function_becomes_one_for_each_call(net: Net) -> None:
    """The same function splits two widths into heads of two sizes."""
    shape = helper.make_node("Constant", [], ["shape"], value_ints=[1, 5, 2, -1])
    nodes = [shape, helper.make_node("Reshape", ["x", "shape"], ["split"])]
    nodes.append(helper.make_node("Transpose", ["split"], ["out"], perm=[0, 2, 1, 3]))
    net.functions.append(function("Heads", ["x"], nodes))
    h = net.tokens(8)
    wide_heads = net.op("Heads", net.dense(h, 8, 12, name="a"), name="heads_a", domain="local")
    narrow = net.op("Heads", net.dense(h, 8, 4, name="b"), name="heads_b", domain="local")
    joined = net.op("Concat", wide_heads, narrow, axis=-1)
    h = net.op("Reshape", net.op("Transpose", joined, perm=[0, 2, 1, 3]), net.constant([1, 5, 16]))
    net.tokens_end(h, 16)
    wide = widen(net)
    assert wide.shape("heads_a") == (1, 2, 5, 12)
    assert wide.shape("heads_b") == (1, 2, 5, 4)


def test_functions_that_call_functions_and_take_attributes(net: Net) -> None:
    inner = helper.make_node("LeakyRelu", ["x"], ["out"])
    inner.attribute.append(onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope"))
    net.functions.append(function("Slope", ["x"], [inner], ["slope"]))
    outer = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Slope", ["product"], ["out"], domain="local", slope=0.25),
    ]
    net.functions.append(function("Layer", ["x", "w"], outer))
    h = net.op("Layer", net.tokens(8), net.weight(8, 12, name="w0"), name="layer0", domain="local")
    net.tokens_end(h, 12)
    wide = widen(net)
    assert wide.shape("w0") == (16, 24)
    (leaky,) = [n for n in wide.proto.graph.node if n.op_type == "LeakyRelu"]
    assert leaky.attribute[0].f == 0.25
