"""Bodies of functions and of decided choices in their place."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from nets import Net
from onnx import TensorProto, helper

import sift_onnx
from sift_onnx.passes import InlineFunctions, Prune, Wide


def tiled(rank: int = 2) -> onnx.ModelProto:
    """Layers with a choice between them that torch writes for ``tile``: whether there are more counts than axes."""
    net = Net(opset=17)
    x = layer(net, net.input("x", 2, 8, declared=["n", 8]), 8, 16)
    counts = net.op("Size", net.op("Shape", x))
    more = net.op("Greater", counts, net.constant(rank, dtype=np.int64))
    branches = {}
    for name, op in (("then_branch", "Neg"), ("else_branch", "Identity")):
        node = helper.make_node(op, [x], [name])
        info = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        branches[name] = helper.make_graph([node], name, [], [info])
    chosen = net.op("If", more, name="choice", **branches)
    hidden = layer(net, net.op("Relu", chosen), 16, 16)
    net.output(layer(net, net.op("Relu", hidden), 16, 4))
    return net.model()


def layer(net: Net, x: str, inputs: int, outputs: int) -> str:
    return str(net.op("MatMul", x, net.weight(inputs, outputs)))


@pytest.mark.parametrize(("rank", "kept"), [(2, "Identity"), (1, "Neg")])
def test_a_choice_that_known_sizes_decide_is_taken(rank: int, kept: str) -> None:
    proto = tiled(rank)
    result = InlineFunctions()(proto)
    assert result.changed
    assert len(result.report["decided"]) == 1
    made = result.model.to_proto()
    assert "If" not in {node.op_type for node in made.graph.node}
    assert kept in {node.op_type for node in made.graph.node}
    x = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)
    results = [
        onnxruntime.InferenceSession(each.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
        for each in (proto, made)
    ]
    np.testing.assert_array_equal(*results)
    assert not InlineFunctions()(made).changed


def test_layers_behind_such_a_choice_are_counted_pruned_and_widened() -> None:
    proto = tiled()
    assert [layer.macs for layer in sift_onnx.inspect(proto).layers] == [8 * 16, 16 * 16, 16 * 4]
    pruned = Prune(0.5)(proto)
    assert len(pruned.model.masked()) >= 1
    wide = Wide(0.75)(proto)
    assert [layer["shape_after"] for layer in wide.report["layers"]] == [[8, 32], [32, 32], [32, 4]]
