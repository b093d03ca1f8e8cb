"""Undoing what exporters merge, without changing a bit of what the model computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from builders import mask_weights
from nets import Net, run
from onnx import TensorProto, helper, numpy_helper

from sift_onnx.model import Model
from sift_onnx.passes import UnshareInitializers


@pytest.fixture
def net() -> Net:
    """An empty graph."""
    return Net()


@dataclass
class Outcome:
    """What the pass did: the nodes by what they produce, and the report."""

    proto: onnx.ModelProto
    changed: bool
    copies: Mapping[str, list[str]]

    def reads(self, node: str) -> list[str]:
        """The inputs of the node that produces ``node``."""
        return list(next(n for n in self.proto.graph.node if node in n.output).input)

    def value(self, initializer: str) -> np.ndarray[Any, Any]:
        """The values of an initializer."""
        return numpy_helper.to_array(next(t for t in self.proto.graph.initializer if t.name == initializer))

    @property
    def ops(self) -> list[str]:
        """The operators in order."""
        return [n.op_type for n in self.proto.graph.node]


def unshare(net: Net | onnx.ModelProto, feeds: Mapping[str, Any] | None = None) -> Outcome:
    """Apply the pass; the outputs must stay bit for bit, and a second run must change nothing."""
    proto = net.model() if isinstance(net, Net) else net
    feeds = net.feeds if isinstance(net, Net) else feeds
    assert feeds is not None
    original = proto.SerializeToString()
    result = UnshareInitializers()(proto)
    after = result.model.to_proto()
    onnx.checker.check_model(after, full_check=True)
    values = run(proto, feeds), run(after, feeds)
    for output in proto.graph.output:
        assert values[0][output.name].tobytes() == values[1][output.name].tobytes(), output.name
    assert [o.name for o in after.graph.output] == [o.name for o in proto.graph.output]
    again = UnshareInitializers()(after)
    assert not again.changed
    assert again.report == {"copies": {}}
    assert again.model.to_proto() == after
    assert proto.SerializeToString() == original
    if not result.changed:
        assert after == Model.load(proto).to_proto()
    return Outcome(after, result.changed, result.report["copies"])


def batch_norm(net: Net, x: str, gamma: str, beta: str, mean: str, variance: str, name: str) -> str:
    return str(net.op("BatchNormalization", x, gamma, beta, mean, variance, name=name))


# Identity, as TorchScript exports have it.


def test_a_renamed_parameter_gets_its_own_copy_under_its_own_name(net: Net) -> None:
    ones = net.constant(np.ones(4), "bn1.weight")
    names = {"bn1.bias": 0.0, "bn1.running_mean": 0.0, "bn1.running_var": 1.0}
    rest = [net.constant(np.full(4, value), name) for name, value in names.items()]
    h = batch_norm(net, net.input("x", 2, 4, 3), ones, *rest, name="bn1")
    renamed = [net.op("Identity", source, name=f"bn2.{source[4:]}") for source in (ones, *rest)]
    net.output(batch_norm(net, h, *renamed, name="bn2"))
    found = unshare(net)
    assert found.ops == ["BatchNormalization", "BatchNormalization"]
    assert found.reads("bn2")[1:] == ["bn2.weight", "bn2.bias", "bn2.running_mean", "bn2.running_var"]
    assert found.copies["bn1.weight"] == ["bn2.weight"]
    assert found.value("bn2.running_var").tolist() == [1.0] * 4


def test_chains_of_renamings_are_followed(net: Net) -> None:
    h = net.op("Mul", net.input("x", 2, 4), net.constant(np.ones(4), "a"))
    b = net.op("Identity", "a", name="b")
    h = net.op("Add", net.op("Mul", h, b), net.op("Identity", b, name="c"), name="y")
    net.output(h)
    found = unshare(net)
    assert found.reads("y")[1] == "c"
    assert found.copies == {"a": ["b", "c"]}


def test_a_renaming_that_is_an_output_stays(net: Net) -> None:
    ones = net.constant(np.ones(4), "ones")
    net.output(net.op("Mul", net.input("x", 2, 4), ones))
    net.output(net.op("Identity", ones, name="exposed"))
    found = unshare(net)
    assert "Identity" in found.ops
    assert set(found.reads("exposed")) | set(found.reads("mul1")) >= {"ones"}


def test_a_renamed_shape_is_no_parameter(net: Net) -> None:
    shape = net.op("Identity", net.constant([4, 2], "shape"), name="renamed")
    net.output(net.op("Reshape", net.input("x", 2, 4), shape))
    assert not unshare(net).changed


def test_the_copy_of_a_masked_weight_is_masked() -> None:
    net = Net()
    w = net.weight(6, 6, name="w")
    h = net.op("MatMul", net.input("x", 2, 6), w)
    net.output(net.op("MatMul", h, net.op("Identity", w, name="v")))
    masked = mask_weights(Model.load(net.model()))
    result = UnshareInitializers()(masked)
    weights = {name: constant.weight for name, constant in result.model.masked().items()}
    assert set(weights) == {"w", "v"}
    assert np.array_equal(weights["v"].indices, weights["w"].indices)
    assert weights["v"].active_zeros().size == 3


# Running statistics.


def test_statistics_are_taken_apart_from_parameters_that_stay_merged(net: Net) -> None:
    """As the default export of a fresh network by dynamo has them."""
    ones, zeros = net.constant(np.ones(4), "weight"), net.constant(np.zeros(4), "bias")
    h = batch_norm(net, net.input("x", 2, 4, 3), ones, zeros, zeros, ones, name="bn1")
    net.output(batch_norm(net, h, ones, zeros, zeros, ones, name="bn2"))
    proto = net.model()
    result = UnshareInitializers(renamed_only=True)(proto)
    assert result.report["copies"] == {"weight": ["weight_bn1", "weight_bn2"], "bias": ["bias_bn1", "bias_bn2"]}
    reads = [list(node.input)[1:] for node in result.model.to_proto().graph.node]
    assert reads == [["weight", "bias", f"bias_bn{i}", f"weight_bn{i}"] for i in (1, 2)]
    assert not UnshareInitializers(renamed_only=True)(result.model).changed


def test_means_are_taken_apart_from_variances(net: Net) -> None:
    scale, shift = net.constant(np.full(4, 2.0), "scale"), net.constant(np.full(4, 0.5), "shift")
    both = net.constant(np.ones(4), "both")
    net.output(batch_norm(net, net.input("x", 2, 4, 3), scale, shift, both, both, name="bn"))
    result = UnshareInitializers(renamed_only=True)(net.model())
    assert list(result.model.to_proto().graph.node[0].input)[1:] == ["scale", "shift", "both", "both_bn"]


def test_statistics_of_one_module_that_is_applied_twice_stay_one(net: Net) -> None:
    values = {"scale": 2.0, "shift": 0.5, "mean": 0.0, "var": 1.0}
    stored = [net.constant(np.full(4, value), name) for name, value in values.items()]
    h = batch_norm(net, net.input("x", 2, 4, 3), *stored, name="bn1")
    net.output(batch_norm(net, h, *stored, name="bn2"))
    assert not UnshareInitializers(renamed_only=True)(net.model()).changed


# An embedding and the output projection that is tied to it.


@pytest.mark.parametrize("through", ["Identity", "Transpose", "both", "neither"])
def test_a_tied_embedding_stays_one_table(net: Net, through: str) -> None:
    """``lm_head(x) = x @ wte.T``, as GPT-2 is exported by either exporter."""
    ids = net.input("ids", values=np.asarray([[1, 4, 2]]))
    table = net.weight(7, 5, name="wte")
    if through == "neither":
        table = net.constant(np.random.default_rng(0).standard_normal((5, 5)), "wte")
    h = net.op("Gather", table, ids, name="embed")
    for op in {"both": ["Identity", "Transpose"], "neither": []}.get(through, [through]):
        table = net.op(op, table, name=f"lm_head.{op}")
    if through == "Identity":
        net.output(net.op("Gemm", net.op("Reshape", h, net.constant([3, 5])), table, transB=1, name="logits"))
    else:
        net.output(net.op("MatMul", h, table, name="logits"))
    found = unshare(net)
    assert found.copies == {}
    assert found.changed == (through in ("Identity", "both"))
    assert "Identity" not in found.ops
    assert found.reads("embed")[0] == "wte"
    last = found.reads("logits")[1]
    assert (found.reads(last)[0] if through in ("Transpose", "both") else last) == "wte"
    assert [t.name for t in found.proto.graph.initializer if len(t.dims) == 2] == ["wte"]


def test_a_table_that_is_looked_up_through_a_renaming_stays_one(net: Net) -> None:
    ids = net.input("ids", values=np.asarray([1, 4, 2]))
    table = net.weight(7, 5, name="lm_head.weight")
    h = net.op("Gather", net.op("Identity", table, name="wte"), ids, name="embed")
    net.output(net.op("Gemm", h, table, transB=1, name="logits"))
    found = unshare(net)
    assert found.reads("embed")[0] == found.reads("logits")[1] == "lm_head.weight"


# Direct sharing, as dynamo exports have it.


def test_parameters_of_one_value_that_nodes_share_are_separated(net: Net) -> None:
    """Also where one node reads the same tensor twice: the mean is the bias, the variance the weight."""
    ones, zeros = net.constant(np.ones(4), "ones"), net.constant(np.zeros(4), "zeros")
    h = batch_norm(net, net.input("x", 2, 4, 3), ones, zeros, zeros, ones, "bn1")
    net.output(batch_norm(net, h, ones, zeros, zeros, ones, "bn2"))
    found = unshare(net)
    parameters = found.reads("bn1")[1:] + found.reads("bn2")[1:]
    assert len(set(parameters)) == 8
    assert [bool(found.value(name).any()) for name in parameters] == [True, False, False, True] * 2
    assert {name: len(copies) for name, copies in found.copies.items()} == {"ones": 3, "zeros": 3}


def test_zero_initialised_kernels_are_separated(net: Net) -> None:
    zero = net.constant(np.zeros((4, 4, 1, 1)), "zero")
    h = net.op("Add", net.input("x", 1, 4, 3, 3), net.op("Conv", "x", zero, name="a"))
    net.output(net.op("Add", h, net.op("Conv", h, zero, name="b")))
    found = unshare(net)
    assert found.reads("a")[1] != found.reads("b")[1]


def test_mean_and_bias_are_separated_also_beside_a_trained_weight(net: Net) -> None:
    gamma, zeros, ones = net.weight(4, name="gamma"), net.constant(np.zeros(4), "zeros"), net.constant(np.ones(4))
    net.output(batch_norm(net, net.input("x", 2, 4, 3), gamma, zeros, zeros, ones, "bn"))
    found = unshare(net)
    assert len(set(found.reads("bn")[2:4])) == 2


def test_what_a_shared_shape_or_scalar_is_read_with_is_no_tie(net: Net) -> None:
    """Two layer scales, unsqueezed by one constant and limited by another."""
    x = net.input("x", 2, 4, 3)
    scale, axes, two = net.constant(np.full(4, 0.5), "scale"), net.constant([0, 2]), net.constant(np.float32(2), "two")
    for i in range(2):
        x = net.op("Mul", x, net.op("Unsqueeze", scale, axes, name=f"scale{i}"))
    y = net.op("Add", x, net.op("Unsqueeze", net.op("Mul", scale, two, name="twice0"), axes))
    net.output(net.op("Add", y, net.op("Unsqueeze", net.op("Mul", scale, two, name="twice1"), axes)))
    found = unshare(net)
    assert len({found.reads(name)[0] for name in ("scale0", "scale1", "twice0", "twice1")}) == 4


def test_a_layer_that_is_really_shared_keeps_its_bias(net: Net) -> None:
    """One convolution at five scales, as in a detection head; another layer has an equal bias."""
    weight, bias = net.weight(6, 4, 1, 1, name="head.weight"), net.constant(np.full(6, -4.6), "head.bias")
    for i in range(5):
        net.output(net.op("Conv", net.input(f"x{i}", 1, 4, i + 1, i + 1), weight, bias, name=f"head{i}"))
    net.output(net.op("Conv", "x0", net.weight(6, 4, 1, 1, name="other.weight"), bias, name="other"))
    found = unshare(net)
    assert {tuple(found.reads(f"head{i}")[1:]) for i in range(5)} == {("head.weight", "head.bias")}
    assert found.reads("other")[2] != "head.bias"
    assert found.copies == {"head.bias": [found.reads("other")[2]]}


def test_weights_of_differing_values_are_true_ties(net: Net) -> None:
    values = np.random.default_rng(0).standard_normal((4, 4))
    values[-1, -1] = values[0, 0]
    w = net.constant(values, "w")
    net.output(net.op("MatMul", net.op("MatMul", net.input("x", 2, 4), w), w))
    assert not unshare(net).changed


@pytest.mark.parametrize("values", [np.float32(1), np.ones(1, np.float32), np.full(4, 3, np.int64)])
def test_scalars_and_integers_may_be_shared(net: Net, values: np.ndarray[Any, Any]) -> None:
    shared = net.constant(values, "shared")
    x = net.input("x", values=np.arange(4).astype(values.dtype))
    net.op("Mul", x, shared, name="scaled")
    net.output(net.op("Cast", net.op("Add", "scaled", shared), to=TensorProto.FLOAT))
    assert not unshare(net).changed


def test_names_of_copies_do_not_clash(net: Net) -> None:
    ones = net.constant(np.ones(4), "ones")
    x = net.input("x", 2, 4)
    taken = net.op("Mul", x, ones, name="ones_b")
    net.output(net.op("Add", net.op("Mul", x, ones, name="b"), net.op("Mul", taken, ones, name="c")))
    found = unshare(net)
    names = [t.name for t in found.proto.graph.initializer] + [o for n in found.proto.graph.node for o in n.output]
    assert len(set(names)) == len(names)
    assert len({found.reads(name)[1] for name in ("ones_b", "b", "c")}) == 3


# Subgraphs.


def choice(net: Net, branches: Mapping[str, list[onnx.NodeProto]], *shape: int) -> str:
    """An If; the last node of each branch makes its output."""
    graphs = {
        f"{side}_branch": helper.make_graph(
            nodes, side, [], [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, shape)]
        )
        for side, nodes in branches.items()
    }
    return str(net.op("If", net.input("flag", values=np.asarray(True)), name="choice", **graphs))


def test_a_renamed_parameter_that_a_subgraph_reads_is_there_for_it(net: Net) -> None:
    ones = net.constant(np.ones(4), "a")
    net.op("Identity", ones, name="b")
    net.op("Mul", net.input("x", 2, 4), ones, name="h")
    branches = {side: [helper.make_node(op, ["h", "b"], [side])] for side, op in (("then", "Mul"), ("else", "Add"))}
    net.output(choice(net, branches, 2, 4))
    found = unshare(net)
    assert found.copies == {"a": ["b"]}


def test_an_identity_inside_a_subgraph_is_left_alone(net: Net) -> None:
    ones = net.constant(np.ones(4), "a")
    net.output(net.op("Mul", net.input("x", 2, 4), ones))
    net.output(choice(net, {side: [helper.make_node("Identity", ["a"], [side])] for side in ("then", "else")}, 4))
    found = unshare(net)
    branch = next(n for n in found.proto.graph.node if n.op_type == "If").attribute[0].g
    assert [n.op_type for n in branch.node] == ["Identity"]


def test_a_subgraph_goes_on_reading_what_the_main_graph_gets_copies_of(net: Net) -> None:
    ones = net.constant(np.ones(4), "a")
    net.op("Mul", net.op("Mul", net.input("x", 2, 4), ones, name="g"), ones, name="h")
    branches = {side: [helper.make_node(op, ["h", "a"], [side])] for side, op in (("then", "Mul"), ("else", "Add"))}
    net.output(choice(net, branches, 2, 4))
    found = unshare(net)
    assert {found.reads("g")[1], found.reads("h")[1]} == set(found.copies["a"])
    inside = next(n for n in found.proto.graph.node if n.op_type == "If").attribute[0].g.node[0].input
    assert list(inside) == ["h", "a"]
