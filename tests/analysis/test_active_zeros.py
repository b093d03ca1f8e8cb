"""How many active weights of a model are zero, and what is said about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from nets import Net
from onnx import TensorProto, helper, numpy_helper
from sparse_nets import SparseNet, emptied, everything, some_rows

from sift_onnx.analysis.active_zeros import ActiveZeros, active_zero_warnings, active_zeros
from sift_onnx.analysis.cost import inspect
from sift_onnx.graphs.constants import is_masked
from sift_onnx.model import Model
from sift_onnx.passes import Wide
from sift_onnx.sparsity.draw import DrawnWeight


def four_layers() -> SparseNet:
    net = SparseNet()
    net.density = 1.0
    x = net.op("Relu", net.conv(net.input("x", 2, 8, 6, 6), 8, 24, 3, name="first"))
    x = net.op("Relu", net.conv(x, 24, 24, 3, name="grouped", group=3))
    x = net.op("Flatten", net.op("GlobalAveragePool", net.conv(x, 24, 32, 1, name="pointwise")))
    net.output(net.dense(x, 32, 10, name="last"))
    return net


def counted(model: Model) -> dict[str, ActiveZeros]:
    return {layer.name: layer for layer in active_zeros(model)}


@pytest.mark.parametrize("storage", ["memory", "dense", "sparse"])
def test_zeros_are_counted_inside_of_masks(tmp_path: Path, storage: str) -> None:
    model = emptied(four_layers(), some_rows)
    weights = {name: constant.weight for name, constant in model.initializers().items() if is_masked(constant)}
    assert weights.keys() == {"grouped.weight", "pointwise.weight"}
    if storage != "memory":
        model.save(tmp_path / "m.onnx", storage=storage)
        model = Model.load(tmp_path / "m.onnx")
    found = counted(model)
    assert found["first.weight"] == ActiveZeros("first.weight", 24 * 8 * 9, 0)
    assert found["last.weight"] == ActiveZeros("last.weight", 320, 0)
    for name, weight in weights.items():
        zeros = int(np.sum(weight.values == 0))
        assert zeros > 0
        assert found[name] == ActiveZeros(name, weight.nnz, zeros)
    report = inspect(model)
    assert {layer.name: (layer.nnz, layer.active_zeros) for layer in report.layers} == {
        layer.name: (layer.active, layer.zeros) for layer in found.values()
    }
    totals = report.to_dict()["totals"]
    assert totals["active_zeros"] == sum(layer.zeros for layer in found.values())
    # Active weights cost what they cost, whatever their values.
    assert (
        totals["effective_macs"]
        == inspect(emptied(four_layers(), lambda *_: False)).to_dict()["totals"]["effective_macs"]
    )


def test_zeros_without_a_mask_are_pruned_unless_there_is_nothing_else() -> None:
    net = SparseNet()
    x = net.dense(net.input("x", 2, 30), 30, 20, name="pruned")
    zeros = net.constant(np.zeros((20, 5), np.float32), "untrained.weight")
    net.output(net.op("MatMul", x, zeros))
    found = counted(Model.load(net.model()))
    assert found["pruned.weight"].zeros == 0
    assert 0 < found["pruned.weight"].active < 600
    assert found["untrained.weight"] == ActiveZeros("untrained.weight", 100, 100)


def test_what_is_no_weight_is_not_counted() -> None:
    net = Net()
    x = net.op("Add", net.dense(net.input("x", 2, 4), 4, 4), net.constant(np.zeros((2, 4), np.float32)))
    net.output(net.op("Add", x, net.constant(np.zeros(4, np.float32))))
    assert len(active_zeros(Model.load(net.model()))) == 1


def test_weights_of_subgraphs_are_counted() -> None:
    def branch(name: str, value: float) -> onnx.GraphProto:
        weight = numpy_helper.from_array(np.full((3, 3), value, np.float32), f"{name}.weight")
        info = helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3])
        return helper.make_graph([helper.make_node("MatMul", ["x", weight.name], [name])], name, [], [info], [weight])

    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])]
    infos.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("some", 1), else_branch=branch("none", 0))
    proto = helper.make_model(helper.make_graph([node], "g", infos, [y]), opset_imports=[helper.make_opsetid("", 17)])
    assert {layer.name: layer.zeros for layer in active_zeros(Model.load(proto))} == {
        "some.weight": 0,
        "none.weight": 9,
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("energy", [0.0, 1e-38, 1e-8, 2.0])
def test_a_weight_that_is_not_drawn_yet_knows_its_zeros(dtype: Any, energy: float) -> None:
    source = DrawnWeight("w", (60, 70), 2000, 0, energy, np.dtype(dtype), 3)
    assert source.nonzeros == np.count_nonzero(source.read().values)


def test_a_branch_that_starts_at_zero_is_wide_and_said_to_be_zero() -> None:
    net = Net()
    x = net.op("Relu", net.conv(net.input("x", 1, 8, 6, 6), 8, 16, 3, name="first"))
    y = net.op("Relu", net.conv(x, 16, 16, 3, name="middle"))
    zeros = net.constant(np.zeros((16, 16, 3, 3), np.float32), "branch.weight")
    x = net.op("Add", x, net.op("Conv", y, zeros, pads=[1] * 4, name="branch"))
    net.output(net.conv(x, 16, 8, name="last"))
    wide = Wide(0.75)(Model.load(net.model())).model
    found = counted(wide)
    assert found["branch.weight"].zeros == found["branch.weight"].active > 0
    assert found["middle.weight"].zeros == 0
    (warning,) = inspect(wide).to_dict()["warnings"]
    assert "1 layer has only zeros, 'branch.weight'. " in warning


def test_the_warning_names_layers_of_only_zeros_and_the_share() -> None:
    layers = [ActiveZeros(f"w{i}", 100, 100) for i in range(5)] + [ActiveZeros("trained", 1500, 0)]
    (warning,) = active_zero_warnings(layers)
    assert warning.startswith(
        "25.0% of the active weights are zero (500 of 2,000): 5 layers have only zeros, 'w0', 'w1', 'w2' and 2 more. "
    )


def test_the_warning_names_the_layers_with_most_zeros_where_none_has_nothing_else() -> None:
    layers = [ActiveZeros("few", 100, 1), ActiveZeros("many", 100, 50), ActiveZeros("none", 100, 0)]
    (warning,) = active_zero_warnings(layers)
    assert "(51 of 300): no layer has only zeros; most are in 'many', 'few'. " in warning


def test_few_zeros_are_no_warning() -> None:
    assert active_zero_warnings([ActiveZeros("w", 1000, 9)]) == []
    assert active_zero_warnings([ActiveZeros("w", 0, 0)]) == []
    assert active_zero_warnings([]) == []


def test_a_model_of_nothing_but_zeros() -> None:
    report = inspect(emptied(four_layers(), everything)).to_dict()
    assert "2 layers have only zeros" in report["warnings"][0]
