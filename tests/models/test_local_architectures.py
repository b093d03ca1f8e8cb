"""Parallel, Factorized and Doped on the architectures: same cost, same shapes, runs, repeats."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime
import pytest

from sift_onnx.analysis.cost import inspect
from sift_onnx.models import ARCHITECTURES, export
from sift_onnx.passes import Doped, Factorized, Parallel
from sift_onnx.passes.layerwise.base import LayerwisePass
from sift_onnx.shapes.random_inputs import random_feeds
from sift_onnx.shapes.tensor_specs import graph_inputs

pytestmark = pytest.mark.slow

MEMBERS = (Parallel, Factorized, Doped)
SPARSITIES = ("0.5", "0.75", "0.9")
# Every kind of layer that the zoo has; its other architectures are these with other stems, widths and depths.
EVERY_SPARSITY = ("gpt3-small", "bert-small")
ONE_SPARSITY = (
    "mobilevit-s-cifar",
    "botnet50-cifar",
    "mobilenetv2-cifar",
    "retinanet-resnet18",
    "deeplabv3plus-resnet18",
    "resnet18-cifar",
)
CASES = [(name, member, s) for name in EVERY_SPARSITY for member in MEMBERS for s in SPARSITIES] + [
    (name, member, SPARSITIES[(i + j) % 3]) for i, name in enumerate(ONE_SPARSITY) for j, member in enumerate(MEMBERS)
]
# Why a layer of such a model may stay as it is.
REASONS = (
    "first layer",
    "last layer",
    "embedding",
    "tied embedding",
    "depthwise (paper, appendix A.1.1)",
    "too few for two factors",
    "do not pay for a rank of 1",
)


@lru_cache
def exported(name: str) -> onnx.ModelProto:
    options = {"layers": 1, "sequence": 8} if "layers" in ARCHITECTURES[name].options else {}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        width = 0.25 if "mobile" in name else 0.125
        export(name, path, width=width, num_classes=10, keep_batch_norm=False, **options)
        return onnx.load(path)


def run(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = random_feeds(graph_inputs(proto))
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def shapes(proto: onnx.ModelProto) -> dict[str, list[int]]:
    inferred = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    infos = [*inferred.graph.input, *inferred.graph.output, *inferred.graph.value_info]
    return {info.name: [d.dim_value for d in info.type.tensor_type.shape.dim] for info in infos}


@pytest.mark.parametrize(("name", "member", "sparsity"), CASES)
def test_a_member_costs_what_the_original_costs(name: str, member: type[LayerwisePass], sparsity: str) -> None:
    original = exported(name)
    result = member(sparsity)(original)
    proto = result.model.to_proto()
    report = result.report

    totals = report["totals"]
    assert totals["weight_macs_after"] == totals["weight_macs_before"]
    counted = inspect(result.model).to_dict()["totals"]
    assert counted["effective_macs"] == totals["weight_macs_after"]
    assert counted["nnz"] == totals["nnz_after"]
    assert counted["search_space"] == totals["search_space"] > 0
    for layer in report["layers"]:
        assert layer["status"] == "sparse" or any(reason in layer["reason"] for reason in REASONS), layer

    onnx.checker.check_model(proto, full_check=True)
    before, after = shapes(original), shapes(proto)
    assert {key: after[key] for key in before.keys() & after.keys()} == {
        key: before[key] for key in before.keys() & after.keys()
    }
    outputs, expected = run(proto), run(original)
    for key, values in outputs.items():
        assert values.shape == expected[key].shape
        assert np.isfinite(values).all()

    again = member(sparsity)(proto)
    assert not again.changed
    assert again.model.to_proto().SerializeToString() == proto.SerializeToString()


@pytest.mark.parametrize("member", MEMBERS)
def test_the_same_seed_gives_the_same_bytes(member: type[LayerwisePass]) -> None:
    first, second, other = (
        member("0.75", seed=seed)(exported("gpt3-small")).model.to_proto().SerializeToString() for seed in (3, 3, 4)
    )
    assert first == second
    assert first != other


def test_tied_heads_of_a_detector_stay_tied() -> None:
    """RetinaNet applies one head at five scales: its branches are stored once and applied five times."""
    result = Parallel("0.5")(exported("retinanet-resnet18"))
    proto = result.model.to_proto()
    readers = Counter(name for node in proto.graph.node for name in node.input)
    heads = [layer["parts"] for layer in result.report["layers"] if layer["name"].startswith("box_tower.0.")]
    assert [readers[part["name"]] for part in heads[0]] == [5, 5]
