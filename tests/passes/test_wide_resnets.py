"""Sparse Wide on ResNets from both exporters: budgets, runnable results, activations in range."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest

from sift_onnx.model import Model
from sift_onnx.passes import InferenceMode, UnshareInitializers, Wide

# All exports of the smallest network; of the larger ones each exporter and batch, with normalization folded and kept.
CASES = [
    *(
        ("resnet18", f"{exporter}-{norm}-{batch}")
        for exporter in ("torchscript", "dynamo")
        for norm in ("folded", "kept")
        for batch in ("static", "dynamic")
    ),
    ("resnet34", "torchscript-kept-static"),
    ("resnet34", "dynamo-folded-dynamic"),
    ("resnet50", "torchscript-folded-dynamic"),
    ("resnet50", "dynamo-kept-static"),
]
Export = Callable[..., onnx.ModelProto]
pytestmark = pytest.mark.slow
SPARSITIES = ("0.5", "0.75", "0.9", "0.95")


def run(proto: onnx.ModelProto, feed: np.ndarray, extra: list[str] | None = None) -> dict[str, np.ndarray]:
    proto = onnx.ModelProto.FromString(proto.SerializeToString())
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in extra or ())
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {session.get_inputs()[0].name: feed}), strict=True))


@pytest.mark.parametrize(("network", "variant"), CASES)
def test_every_budget_is_exact_at_full_size(exported: Export, network: str, variant: str) -> None:
    separate = UnshareInitializers()(Model.load(exported(network, variant))).model
    for sparsity in SPARSITIES:
        plan = Wide(sparsity).plan(separate)
        before, after = sum(plan.before.values()), sum(plan.after.values())
        assert abs(after - before) <= 1e-4 * before
        statuses = {status: [n for n, (s, _) in plan.statuses.items() if s == status] for status in ("sparse", "dense")}
        assert len(statuses["dense"]) == 2
        assert len(statuses["sparse"]) == len(plan.statuses) - 2
        share = (before - sum(plan.after[n] for n in statuses["dense"])) / sum(
            plan.before[n] for n in statuses["sparse"]
        )
        for name in statuses["sparse"]:
            positions = plan.after[name] // plan.nnz[name]
            assert plan.after[name] == plan.nnz[name] * positions
            assert abs(plan.after[name] - share * plan.before[name]) <= positions

        layerwise = Wide(sparsity, budget="layer").plan(separate)
        for name in statuses["sparse"]:
            layer = layerwise.analysis.layers[name]
            assert layerwise.nnz[name] == math.prod(layerwise.analysis.system.original(a.size) for a in layer.axes)


@pytest.mark.parametrize(("network", "variant"), CASES)
def test_the_result_is_valid_and_runs_at_the_inputs_of_the_original(
    exported: Export, network: str, variant: str
) -> None:
    proto = exported(f"{network}-cifar", variant, 0.25)
    result = Wide(0.75)(proto)
    wide = result.model.to_proto()
    onnx.checker.check_model(wide, full_check=True)
    onnx.shape_inference.infer_shapes(wide, strict_mode=True, data_prop=True)
    for batch in (1, 3) if variant.endswith("dynamic") else (1,):
        feed = np.random.default_rng(batch).standard_normal((batch, 3, 32, 32)).astype(np.float32)
        (expected,) = run(proto, feed).values()
        (found,) = run(wide, feed).values()
        assert found.shape == expected.shape
        assert np.all(np.isfinite(found))
    assert [i.type for i in wide.graph.input] == [i.type for i in proto.graph.input]
    assert [o.name for o in wide.graph.output] == [o.name for o in proto.graph.output]
    masked = result.model.masked()
    for layer in result.report["layers"]:
        if layer["status"] == "sparse":
            assert masked[layer["name"]].weight.nnz == layer["nnz"]
        else:
            assert layer["name"] not in masked


@pytest.mark.parametrize(
    ("network", "variant"),
    [
        ("resnet18", "torchscript-kept-static"),
        ("resnet18", "torchscript-folded-static"),
        ("resnet18", "dynamo-folded-dynamic"),
        ("resnet50", "dynamo-kept-static"),
    ],
)
def test_no_layer_changes_its_scale_at_initialisation(exported: Export, network: str, variant: str) -> None:
    """Spread of each weight layer's output: within a factor of 3 of the original's."""
    # Exported in training mode, it would normalize by the batch, and what is made of it by running statistics.
    ready = InferenceMode()(Model.load(exported(network, variant))).model
    original = UnshareInitializers()(ready).model.to_proto()
    wide = Wide(0.9)(original).model.to_proto()
    outputs = [node.output[0] for node in original.graph.node if node.op_type in ("Conv", "Gemm")]
    feed = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    before, after = run(original, feed, outputs), run(wide, feed, outputs)
    for name in outputs:
        expected, found = float(before[name].std()), float(after[name].std())
        if expected == 0:  # a zero-initialised residual branch stays one
            assert found == 0, name
        else:
            assert 1 / 3 <= found / expected <= 3, name


@pytest.mark.parametrize("variant", ["torchscript-folded-static", "dynamo-kept-dynamic"])
def test_a_sparsity_of_zero_returns_the_input_bit_for_bit(exported: Export, variant: str) -> None:
    proto = exported("resnet18-cifar", variant, 0.25)
    result = Wide(0)(proto)
    assert not result.changed
    same = result.model.to_proto()
    weights = {t.name: t.SerializeToString() for t in proto.graph.initializer}
    assert {t.name: t.SerializeToString() for t in same.graph.initializer} == weights
    feed = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)
    (expected,), (found,) = run(proto, feed).values(), run(same, feed).values()
    assert np.array_equal(expected, found)
