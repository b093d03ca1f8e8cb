"""Weights that nodes compute from stored ones become stored weights; nothing else does."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from nets import Net, run

import sift_onnx
from sift_onnx.analysis.computed_parameters import store_computed_parameters
from sift_onnx.graphs.constants import replace_values
from sift_onnx.model import Model
from sift_onnx.passes import StoreComputedParameters
from sift_onnx.weights.sparse import SparseWeight


@pytest.fixture
def net() -> Net:
    """An empty graph."""
    return Net()


def cut(net: Net, x: str, first: int, last: int) -> str:
    """Rows of a matrix."""
    return str(net.op("Slice", x, *(net.constant([n]) for n in (first, last, 0))))


def stored(net: Net | onnx.ModelProto, feeds: Any = None) -> tuple[onnx.ModelProto, list[str]]:
    """Apply the pass: outputs must stay to rounding, and a second run must change nothing."""
    proto = net.model() if isinstance(net, Net) else net
    feeds = net.feeds if isinstance(net, Net) else feeds
    result = StoreComputedParameters()(proto)
    after = result.model.to_proto()
    onnx.checker.check_model(after, full_check=True)
    before, now = run(proto, feeds), run(after, feeds)
    for name in [output.name for output in proto.graph.output]:
        np.testing.assert_allclose(now[name], before[name], rtol=1e-5, atol=1e-5)
    assert not StoreComputedParameters()(after).changed
    names = result.report["stored"]
    assert result.changed == bool(names)
    assert set(names) <= {t.name for t in after.graph.initializer}
    return after, names


def gated_recurrence(net: Net, width: int = 6) -> None:
    """A GRU whose gates are put in another order by nodes, as by torch's dynamo exporter."""
    x = net.input("x", 4, 2, 5)
    weights = []
    for name, columns in (("w", 5), ("r", width)):
        rows = net.weight(3 * width, columns, name=name)
        order = [cut(net, rows, n * width, (n + 1) * width) for n in (1, 0, 2)]
        gates = net.op("Concat", *order, axis=0)
        weights.append(net.op("Unsqueeze", gates, net.constant([0]), name=f"{name}.gates"))
    y, _ = net.op("GRU", x, *weights, hidden_size=width, outputs=2)
    net.output(y)


def test_gates_that_are_put_in_order_are_stored(net: Net) -> None:
    gated_recurrence(net)
    after, names = stored(net)
    assert names == ["w.gates", "r.gates"]
    assert [node.op_type for node in after.graph.node] == ["GRU"]


def test_costs_masks_and_widths_see_them(net: Net) -> None:
    x = net.input("x", 2, 3, 8)
    for i in range(3):
        inputs = 3 if i == 0 else 8
        v, g = net.weight(8, inputs, 3, name=f"v{i}"), net.constant(np.full((8, 1, 1), 2, np.float32), f"g{i}")
        norm = net.op("ReduceL2", v, net.constant([1, 2]))
        weight = net.op("Mul", g, net.op("Div", v, norm), name=f"conv{i}.weight")
        x = net.op("Relu", net.op("Conv", x, weight, pads=[1, 1]))
    net.output(x)
    model = net.model()

    layers = {layer.name: layer.macs for layer in sift_onnx.inspect(model).layers}
    assert layers == {f"conv{i}.weight": 8 * (3 if i == 0 else 8) * 3 * 16 for i in range(3)}
    assert {layer.name for layer in sift_onnx.simulate(model).layers} >= set(layers)
    assert set(sift_onnx.prune(model, sparsity=0.5, keep_dense=("conv0.weight",)).model.masked()) == {"conv1.weight"}
    wide = sift_onnx.transform(model, wide=0.75, init="embed")
    assert {t.name: list(t.dims) for t in wide.graph.initializer}["conv1.weight"] == [16, 16, 3]
    np.testing.assert_allclose(run(wide, net.feeds)[x], run(model, net.feeds)[x], rtol=1e-4, atol=1e-5)


def test_a_shape_that_an_identity_hands_on_is_known(net: Net) -> None:
    """As exporters write equal constants, here the shapes of two standardized weights."""
    shape = net.constant([8, 8, 1, 1])
    x = net.op("Reshape", net.input("x", 2, 8), net.constant([2, 8, 1, 1]))
    for i, same in enumerate((shape, net.op("Identity", shape))):
        rows = net.weight(8, 8, name=f"v{i}")
        rows = net.op("Sub", rows, net.op("ReduceMean", rows, net.constant([1])))
        x = net.op("Conv", x, net.op("Reshape", rows, same, name=f"conv{i}.weight"))
    net.output(x)
    assert stored(net)[1] == ["conv0.weight", "conv1.weight"]


def test_masks_go_with_elements_that_are_moved(net: Net) -> None:
    gated_recurrence(net)
    model = net.model()
    weight = next(t for t in model.graph.initializer if t.name == "w")
    dense = np.where(np.arange(90).reshape(18, 5) % 3 == 0, onnx.numpy_helper.to_array(weight), 0)
    dense[0, 0] = 0
    loaded = sift_onnx.load(model.SerializeToString())
    mask = np.arange(90).reshape(18, 5) % 3 == 0
    replace_values(loaded.initializers()["w"], SparseWeight.from_dense(dense, np.flatnonzero(mask)))
    result, _ = store_computed_parameters(loaded)
    np.testing.assert_array_equal(
        sift_onnx.masks(result)["w.gates"][0], np.concatenate([mask[6:12], mask[:6], mask[12:]])
    )


def test_what_arithmetic_makes_of_a_masked_weight_is_masked_where_it_is_zero(net: Net) -> None:
    x = net.tokens(4)
    net.tokens_end(net.op("MatMul", x, net.op("Mul", net.weight(4, 4, name="w"), net.constant(2.0), name="twice")), 4)
    loaded = sift_onnx.load(net.model().SerializeToString())
    replace_values(loaded.initializers()["w"], SparseWeight.from_dense(np.eye(4, dtype=np.float32)))
    result, _ = store_computed_parameters(loaded)
    np.testing.assert_array_equal(sift_onnx.masks(result)["twice"], np.eye(4, dtype=bool))


def test_a_tied_weight_stays_tied(net: Net) -> None:
    table = net.weight(7, 4, name="table")
    ids = net.input("ids", 1, 3, values=np.array([[1, 5, 2]]))
    head = net.op("Mul", net.op("Transpose", table, perm=[1, 0]), net.constant(2.0))
    net.output(net.op("MatMul", net.op("Gather", table, ids), head))
    assert stored(net)[1] == []


def test_a_constant_of_one_value_ties_nothing(net: Net) -> None:
    ones = net.constant(np.ones((4, 1), np.float32), "ones")
    x = net.tokens(4)
    for i in range(2):
        x = net.op("MatMul", x, net.op("Mul", net.weight(4, 4), ones, name=f"scaled{i}"))
    net.output(net.op("Mul", x, net.op("Reshape", ones, net.constant([1, 1, 4]))))
    assert stored(net)[1] == ["scaled0", "scaled1"]


def test_a_product_of_small_factors_stays_a_product(net: Net) -> None:
    weight = net.op("MatMul", net.weight(64, 2), net.weight(2, 64))
    net.output(net.op("MatMul", net.tokens(64), weight))
    assert stored(net)[1] == []


def test_a_low_rank_update_becomes_part_of_its_weight(net: Net) -> None:
    update = net.op("MatMul", net.weight(64, 2), net.weight(2, 64))
    net.output(net.op("MatMul", net.tokens(64), net.op("Add", net.weight(64, 64), update, name="updated")))
    assert stored(net)[1] == ["updated"]


def test_weights_of_quantized_layers_stay(net: Net) -> None:
    integers = net.constant(np.arange(16).reshape(4, 4), dtype=np.int8)
    weight = net.op("DequantizeLinear", integers, net.constant(0.1, dtype=np.float32))
    cast = net.op("Mul", net.op("Cast", integers, to=onnx.TensorProto.FLOAT), net.constant(0.1, dtype=np.float32))
    net.output(net.op("MatMul", net.op("MatMul", net.tokens(4), weight), cast))
    assert stored(net)[1] == []


def test_weights_that_are_rounded_stay_for_who_reads_them_as_integers(net: Net) -> None:
    scales = net.constant(np.full((1, 4), 0.1), dtype=np.float32)
    integers = net.constant(np.arange(16).reshape(4, 4), dtype=np.int8)
    cast = net.op("Mul", net.op("Cast", integers, to=onnx.TensorProto.FLOAT), scales, name="cast")
    rounded = net.op("Mul", net.op("Round", net.op("Div", net.weight(4, 4), scales)), scales, name="rounded")
    net.output(net.op("MatMul", net.op("MatMul", net.tokens(4), cast), rounded))
    assert stored(net)[1] == ["cast", "rounded"]
    assert store_computed_parameters(Model.load(net.model()), integers=True)[1] == []


def test_every_output_of_a_node_can_be_a_parameter(net: Net) -> None:
    parts = net.op("Split", net.op("Neg", net.weight(4, 8)), axis=1, num_outputs=2, outputs=2)
    x = net.op("MatMul", net.tokens(4), parts[0])
    net.output(net.op("MatMul", x, parts[1]))
    after, names = stored(net)
    assert names == list(parts)
    assert not {"Neg", "Split"} & {node.op_type for node in after.graph.node}


def test_a_node_with_an_output_that_something_else_reads_stays(net: Net) -> None:
    parts = net.op("Split", net.op("Neg", net.weight(4, 8)), axis=1, num_outputs=2, outputs=2)
    net.output(net.op("Add", net.op("MatMul", net.tokens(4), parts[0]), net.op("ReduceMax", parts[1])))
    assert stored(net)[1] == []


def test_nothing_to_do_gives_the_same_model(net: Net) -> None:
    net.output(net.dense(net.tokens(4), 4, 4))
    model = sift_onnx.load(net.model().SerializeToString())
    assert store_computed_parameters(model)[0] is model
