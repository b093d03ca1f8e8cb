"""Every pass as a library call: a ModelProto, a graphsurgeon graph and an onnx_ir model give the same result."""

from __future__ import annotations

import onnx
import onnx_graphsurgeon as gs
import onnx_ir
import pytest
from function_nets import layers_in_functions
from nets import Net
from onnx.numpy_helper import to_array
from quantized_nets import static

import sift_onnx
from sift_onnx.errors import UsageError
from sift_onnx.passes import (
    Densify,
    Doped,
    Factorized,
    InferenceMode,
    InlineFunctions,
    LiftConstants,
    LowRank,
    Parallel,
    Prune,
    RestoreViews,
    UnshareInitializers,
    Wide,
)
from sift_onnx.passes.base import Pass

PASSES: list[Pass] = [
    Wide("0.75"),
    Wide("0.75", init="embed"),
    Parallel("0.75"),
    Parallel("0.75", activation="none", init="embed"),
    Factorized("0.75"),
    Factorized("0.75", init="svd"),
    Doped("0.75"),
    LowRank(1),
    LowRank("1.41"),
    Prune("0.5"),
    Densify(),
    UnshareInitializers(),
    LiftConstants(),
    InferenceMode(),
    InlineFunctions(),
    RestoreViews(),
]
KINDS = {"proto": lambda proto: proto, "graphsurgeon": gs.import_onnx, "onnx_ir": onnx_ir.from_proto}


def network() -> onnx.ModelProto:
    """A residual network with a normalization, whose two biases an exporter would merge."""
    net = Net()
    x = net.op("Relu", net.conv(net.input("x", 1, 3, 8, 8), 3, 16, 3, name="stem"))
    vectors = [net.constant([1.0] * 16, "bn.weight"), *(net.constant([v] * 16, f"bn.{v}") for v in (0.0, 0.5, 2.0))]
    y = net.op("BatchNormalization", net.conv(x, 16, 16, 3, name="a"), *vectors, name="bn")
    x = net.op("Add", x, net.conv(net.op("Relu", y), 16, 16, 3, name="b"))
    net.output(net.conv(net.op("Relu", x), 16, 4, name="head"))
    return net.model()


def content(proto: onnx.ModelProto) -> dict[str, object]:
    """What a model says, whatever way of saying it a library prefers."""
    graph = proto.graph
    return {
        "nodes": [
            (n.op_type, n.domain, n.name, list(n.input), list(n.output), sorted(map(str, n.attribute)))
            for n in graph.node
        ],
        "inputs": [str(value) for value in graph.input],
        "outputs": [str(value) for value in graph.output],
        "weights": {t.name: (list(t.dims), t.data_type, to_array(t).tobytes()) for t in graph.initializer},
        "metadata": {entry.key: entry.value for entry in proto.metadata_props},
        "opsets": {entry.domain: entry.version for entry in proto.opset_import},
    }


@pytest.mark.parametrize("pass_", PASSES, ids=lambda p: f"{p.name}-{getattr(p, 'init', '')}".rstrip("-"))
def test_a_pass_gives_the_same_for_every_kind_of_model(pass_: Pass) -> None:
    proto = network()
    before = proto.SerializeToString(deterministic=True)
    results = {kind: pass_(make(proto)).model.to_proto() for kind, make in KINDS.items()}
    expected = content(results["proto"])
    for kind, result in results.items():
        assert content(result) == expected, kind
        onnx.checker.check_model(result, full_check=True)
    assert proto.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(
    ("name", "value"), [("wide", "0.75"), ("parallel", "0.75"), ("factorized", "0.5"), ("doped", "0.5")]
)
def test_transform_hands_back_the_kind_that_it_was_given(name: str, value: str) -> None:
    proto = network()
    graph, ir = gs.import_onnx(proto), onnx_ir.from_proto(proto)
    before = gs.export_onnx(graph).SerializeToString(deterministic=True), onnx_ir.to_proto(ir).SerializeToString()
    results = [sift_onnx.transform(source, **{name: value}) for source in (proto, graph, ir)]
    assert [type(result) for result in results] == [onnx.ModelProto, gs.Graph, onnx_ir.Model]
    protos = [results[0], gs.export_onnx(results[1]), onnx_ir.to_proto(results[2])]
    weights = [content(p)["weights"] for p in protos]
    assert weights[0] == weights[1] == weights[2]
    assert len({len(p.graph.node) for p in protos}) == 1
    histories = [{e.key: e.value for e in p.metadata_props}["sift_onnx"] for p in (protos[0], protos[2])]
    assert histories[0] == histories[1] == results[1].metadata_props["sift_onnx"]
    after = gs.export_onnx(graph).SerializeToString(deterministic=True), onnx_ir.to_proto(ir).SerializeToString()
    assert after == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "name exactly one"),
        ({"wide": 0.5, "doped": 0.5}, "name exactly one"),
        ({"wide": 0.5, "activation": "relu"}, "wide has no setting 'activation'; its settings are sparsity, budget"),
        ({"parallel": 0.5, "only": "layer"}, "write a list of names"),
        ({"parallel": 0.5, "seed": "a"}, "write a whole number"),
        ({"doped": None}, "name exactly one"),
        ({"doped": [0.5]}, "write a number"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sift_onnx.transform(network(), **arguments)


def with_a_computed_weight() -> onnx.ModelProto:
    """Two layers, the first of which has a weight that is normalized, as weight normalization does."""
    net = Net()
    direction = net.weight(8, 12, name="v")
    weight = net.op("Mul", net.op("LpNormalization", direction, axis=0, name="unit"), net.weight(1, 12, name="g"))
    h = net.op("MatMul", net.input("x", 2, 8), weight, name="first")
    net.output(net.op("MatMul", net.op("Relu", h), net.weight(12, 4, name="w"), name="last"))
    return net.model()


@pytest.mark.parametrize("idle", [Wide(0), Parallel(0), Doped(0), Prune(0), Densify()], ids=lambda idle: idle.name)
@pytest.mark.parametrize("kind", ["functions", "computed", "quantized"])
def test_a_pass_that_changes_nothing_counts_what_inspect_counts(idle: Pass, kind: str) -> None:
    if kind == "functions":
        proto = layers_in_functions(Net()).model()
    else:
        proto = with_a_computed_weight() if kind == "computed" else static("tokens", "qdq")
    result, counted = idle(proto), sift_onnx.inspect(proto)
    totals = result.report["totals"]
    assert counted.layers
    assert totals["weight_macs_before"] == totals["weight_macs_after"] == counted.totals.effective_macs
    assert totals["nnz_before"] == totals["nnz_after"] == counted.totals.nnz
    assert {layer["name"] for layer in result.report["layers"]} == {layer.name for layer in counted.layers}
    assert not result.changed
    assert result.model.to_proto() == sift_onnx.load(proto).to_proto()
