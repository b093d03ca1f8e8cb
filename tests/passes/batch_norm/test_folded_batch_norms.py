"""Layers whose normalization was folded into them: found in every architecture, and not where there never was one."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from exported_models import export_once
from nets import Net
from onnx import numpy_helper
from torch import nn

import sift_onnx
from sift_onnx.model import Model
from sift_onnx.models import ARCHITECTURES, build
from sift_onnx.passes import FoldBatchNorm, InsertBatchNorm, Wide
from sift_onnx.passes.batch_norm.folded_batch_norms import find_folded
from sift_onnx.passes.pipeline import Recipe, recipe_of, run_recipe

pytestmark = pytest.mark.usefixtures("torch_operators")
EXPORTERS = ["torchscript", "dynamo"]
QUICK = [("resnet18-cifar", "torchscript"), ("mobilenetv2-cifar", "torchscript"), ("retinanet-resnet18", "torchscript")]
NAMES = [name for name in ARCHITECTURES if name.endswith("-cifar") or "plus" in name or "retina" in name]
CASES = [
    pytest.param(name, exporter, marks=() if (name, exporter) in QUICK else pytest.mark.full)
    for name in NAMES
    for exporter in EXPORTERS
]


@contextmanager
def silence() -> Iterator[None]:
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), pytest.warns():
        yield


def exported(module: Any, exporter: str, *shape: int) -> onnx.ModelProto:
    """What torch writes by default of a module in evaluation mode."""
    return both(module, exporter, *shape)[1]


def both(module: Any, exporter: str, *shape: int) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """What torch writes with the normalizations of the module, and by default."""
    arguments = (module.eval(), (torch.zeros(1, *shape),))
    with silence():
        if exporter == "dynamo":
            program = torch.onnx.export(*arguments, dynamo=True, optimize=False, verbose=False)
            kept = onnx.ModelProto.FromString(program.model_proto.SerializeToString())
            program.optimize()  # which is the default
            return kept, program.model_proto
        files = io.BytesIO(), io.BytesIO()
        options = {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False}
        torch.onnx.export(*arguments, files[0], dynamo=False, **options)
        torch.onnx.export(*arguments, files[1], dynamo=False)
    first, second = (onnx.load_model_from_string(file.getvalue()) for file in files)
    return first, second


@cache
def fresh(name: str, exporter: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """:func:`both`, of an architecture."""
    shape = (3, 32, 32) if name.endswith("-cifar") else (3, 64, 64)
    return both(build(name, width=0.125, num_classes=10), exporter, *shape)


def key_of(exporter: str, node: Any) -> str:
    """What a layer is called in both files: TorchScript renames weights, and dynamo nodes."""
    return str(node.name if exporter == "torchscript" else node.inputs[1].name)


def normalized(kept: onnx.ModelProto, exporter: str) -> set[str]:
    graph = Model.load(kept).graph
    norms = [node for node in graph.nodes if node.op == "BatchNormalization"]
    before = [node.inputs[0].inputs[0] for node in norms]
    return {key_of(exporter, node) for node in before if node.op == "Conv"}


def found(model: onnx.ModelProto | Model) -> list[str]:
    return find_folded(Model.load(model)).weights


def unmarked(proto: onnx.ModelProto) -> onnx.ModelProto:
    """As a tool leaves it that renames weights and keeps no notes on nodes."""
    bare = onnx.ModelProto.FromString(proto.SerializeToString())
    bare.producer_name = "a tool"
    for node in bare.graph.node:
        del node.metadata_props[:]
        node.input[:] = [name.replace("onnx::", "tensor") for name in node.input]
        node.output[:] = [name.replace("onnx::", "tensor") for name in node.output]
    for tensor in bare.graph.initializer:
        tensor.name = tensor.name.replace("onnx::", "tensor")
    return bare


@pytest.mark.parametrize(("name", "exporter"), CASES)
def test_what_had_a_normalization_is_found_in_every_architecture(name: str, exporter: str) -> None:
    kept, folded = fresh(name, exporter)
    result = find_folded(Model.load(folded))
    assert {key_of(exporter, node) for node in result.nodes} == normalized(kept, exporter)
    assert result.prevails
    assert "was folded into the layers" in result.what()


@pytest.mark.parametrize(("name", "exporter"), CASES)
def test_where_normalizations_are_kept_none_is_found(name: str, exporter: str) -> None:
    kept, _ = fresh(name, exporter)
    assert found(kept) == found(unmarked(kept)) == []


@pytest.mark.parametrize(("name", "exporter"), CASES)
def test_without_marks_the_structure_tells(name: str, exporter: str) -> None:
    kept, folded = fresh(name, exporter)
    result = find_folded(Model.load(unmarked(folded)))
    # Lateral convolutions of a pyramid, say, look as if they had had one too.
    assert {key_of(exporter, node) for node in result.nodes} >= normalized(kept, exporter)
    assert result.prevails
    assert "as if an exporter had folded it" in result.what()


@pytest.mark.parametrize("name", ["botnet50-cifar", "retinanet-resnet18"])
def test_an_own_export_notes_what_it_folded(name: str, tmp_path: Path) -> None:
    shape = {"width": 0.125, "num_classes": 10}
    export_once(name, tmp_path / "kept.onnx", **shape)
    export_once(name, tmp_path / "folded.onnx", **shape, keep_batch_norm=False)
    graph = Model.load(tmp_path / "kept.onnx").graph
    before = [node.inputs[0].inputs[0] for node in graph.nodes if node.op == "BatchNormalization"]
    assert sorted(found(Model.load(tmp_path / "folded.onnx"))) == sorted(
        node.inputs[1].name for node in before if node.op == "Conv"
    )
    assert found(Model.load(tmp_path / "kept.onnx")) == []


def test_what_the_pass_folded_is_known_after_a_transform_and_until_it_is_put_back(tmp_path: Path) -> None:
    export_once("resnet18-cifar", tmp_path / "m.onnx", width=0.125, num_classes=10)
    folded = FoldBatchNorm()(tmp_path / "m.onnx").model
    wide = Wide(0.5)(folded)
    assert len(found(folded)) == len(found(wide.model)) == 20
    assert "folded" in wide.report["warnings"][0]
    recipe = recipe_of(wide.model)
    assert sift_onnx.transform(tmp_path / "m.onnx", recipe=recipe).to_proto() == wide.model.to_proto()


class Blocks(nn.Module):
    """Each kind of layer that a normalization may follow, and one that has none."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm0 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.wise, self.norm1 = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8)
        self.plain = nn.Conv2d(8, 8, 1)
        self.up, self.norm2 = nn.ConvTranspose2d(8, 4, 2, 2, bias=False), nn.BatchNorm2d(4)
        self.fc, self.norm3 = nn.Linear(4, 16), nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norm1(self.wise(torch.relu(self.norm0(self.stem(x))))))
        x = torch.relu(self.norm2(self.up(torch.relu(self.plain(x)))))
        return self.head(torch.relu(self.norm3(self.fc(x.mean((2, 3))))))


def test_dynamo_folds_into_transposed_convolutions_and_linear_layers_too() -> None:
    weights = ["stem.weight", "wise.weight", "up.weight", "fc.weight"]
    proto = exported(Blocks(), "dynamo", 3, 8, 8)
    assert found(proto) == weights
    assert found(Wide(0.5)(proto).model) == weights


def test_torchscript_folds_into_convolutions_alone() -> None:
    nodes = find_folded(Model.load(exported(Blocks(), "torchscript", 3, 8, 8))).nodes
    assert [node.name for node in nodes] == ["/stem/Conv", "/wise/Conv"]


def by_onnxruntime(proto: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(folder / "optimized.onnx")


def by_onnxslim(proto: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    return pytest.importorskip("onnxslim").slim(proto)


@pytest.mark.parametrize("tool", [by_onnxruntime, by_onnxslim])
def test_names_that_other_tools_give_are_marks(
    tool: Callable[[onnx.ModelProto, Path], onnx.ModelProto], tmp_path: Path
) -> None:
    kept, _ = both(Blocks(), "torchscript", 3, 8, 8)
    result = find_folded(Model.load(tool(kept, tmp_path)))
    assert result.marked
    assert [node.op for node in result.nodes] == ["Conv", "Conv", "ConvTranspose"]


def test_a_bias_of_several_rows_is_none_of_channels() -> None:
    net = Net()
    rows = net.op("Gemm", net.input("x", 2, 8), net.weight(8, 8), net.constant(np.ones((2, 8))), name="rows")
    net.output(net.op("Gemm", net.op("Relu", rows), net.weight(8, 4), name="head"))
    model = net.model()
    for node in model.graph.node:
        node.metadata_props.add(key="pkg.onnxscript.rewriter.rule_name", value="FuseBatchNormIntoGemm")
    assert [node.name for node in find_folded(Model.load(model)).nodes] == ["head"]


def in_one_dimension() -> nn.Module:
    return nn.Sequential(nn.Conv1d(3, 8, 3, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4))


def in_three_dimensions() -> nn.Module:
    return nn.Sequential(nn.Conv3d(3, 8, 1, bias=False), nn.BatchNorm3d(8), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4))


@pytest.mark.parametrize(
    ("make", "shape", "exporter"),
    [
        (in_one_dimension, (3, 8), "torchscript"),
        (in_one_dimension, (3, 8), "dynamo"),
        (in_three_dimensions, (3, 2, 2, 2), "torchscript"),
    ],
)
def test_convolutions_of_any_rank(make: Callable[[], nn.Module], shape: tuple[int, ...], exporter: str) -> None:
    assert len(found(exported(make(), exporter, *shape))) == 1


def plain(depth: int, last: type[nn.Module] = nn.ReLU) -> nn.Module:
    layers = [layer for i in range(depth) for layer in (nn.Conv2d(8 if i else 3, 8, 3, padding=1), last())]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 4))


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_shallow_network_of_an_exporter_that_folded_nothing_is_left_in_peace(exporter: str) -> None:
    shallow, deep = (find_folded(Model.load(exported(plain(depth), exporter, 3, 8, 8))) for depth in (3, 9))
    assert not shallow.prevails
    assert deep.prevails
    assert not deep.marked


def test_in_a_shallow_network_of_unknown_origin_a_bias_is_what_folding_leaves() -> None:
    net = Net()
    net.images_end(net.images(8), 8)
    plain = net.model()
    assert not find_folded(Model.load(plain)).prevails
    biased = onnx.ModelProto.FromString(plain.SerializeToString())
    biased.graph.initializer.append(numpy_helper.from_array(np.zeros(6, np.float32), "stem.bias"))
    biased.graph.node[0].input.append("stem.bias")
    assert find_folded(Model.load(biased)).prevails


def test_networks_that_normalize_themselves_are_left_in_peace() -> None:
    assert found(exported(plain(9, nn.SELU), "torchscript", 3, 8, 8)) == []


def patches(net: Net, norm: Callable[[str], str], depth: int = 3) -> onnx.ModelProto:
    """Convolutions, each with what ``norm`` makes of it, and a head."""
    x = net.images(8)
    for _ in range(depth):
        x = net.op("Relu", norm(net.conv(x, 8, 8)))
    net.output(net.conv(x, 8, 2, name="head"))
    return net.model()


def layer_norm(net: Net) -> Callable[[str], str]:
    def norm(x: str) -> str:
        rows = net.op("Transpose", x, perm=[0, 2, 3, 1])
        scaled = net.op("LayerNormalization", rows, net.constant([1.0] * 8), net.constant([0.0] * 8), axis=-1)
        return str(net.op("Transpose", scaled, perm=[0, 3, 1, 2]))

    return norm


def layer_norm_in_parts(net: Net) -> Callable[[str], str]:
    def norm(x: str) -> str:
        axis = net.constant([1], dtype="int64")
        centred = net.op("Sub", x, net.op("ReduceMean", x, axis))
        variance = net.op("ReduceMean", net.op("Mul", centred, centred), axis)
        return str(net.op("Div", centred, net.op("Sqrt", net.op("Add", variance, net.constant([1e-5])))))

    return norm


def group_norm(net: Net) -> Callable[[str], str]:
    def norm(x: str) -> str:
        return str(net.op("InstanceNormalization", x, net.constant([1.0] * 8), net.constant([0.0] * 8)))

    return norm


@pytest.mark.parametrize("kind", [layer_norm, layer_norm_in_parts, group_norm])
def test_another_normalization_is_one(kind: Callable[[Net], Callable[[str], str]]) -> None:
    net = Net()
    model = patches(net, kind(net))
    # Two convolutions stand before the first of them, which are not more than there are.
    assert "head.weight" not in found(model)
    assert not [name for name in found(model) if name.startswith("conv")]


def test_heads_that_give_probabilities_or_pixels_never_had_one() -> None:
    net = Net()
    x = net.op("Relu", net.images(8))
    net.output(net.op("Sigmoid", net.conv(x, 8, 4, name="map")))
    net.output(net.op("DepthToSpace", net.conv(x, 8, 4, name="pixels"), blocksize=2))
    assert found(net.model()) == ["stem.weight", "before.weight"]


@pytest.mark.parametrize("activation", ["Relu", "SiLU"])
def test_squeeze_and_excitation_never_had_one(activation: str) -> None:
    net = Net()
    x = net.op("Relu", net.images(8))
    squeezed = net.conv(net.op("GlobalAveragePool", x), 8, 4, name="squeeze")
    act = net.op("Mul", squeezed, net.op("Sigmoid", squeezed)) if activation == "SiLU" else net.op("Relu", squeezed)
    # Equal biases are stored once, and read under other names.
    bias = net.op("Identity", net.constant([0.0] * 8))
    excited = net.op("Conv", act, net.weight(8, 4, 1, 1, name="excite.weight"), bias, name="excite")
    gate = net.op("Sigmoid", excited)
    net.images_end(net.op("Mul", x, gate), 8)
    assert found(net.model()) == ["stem.weight", "before.weight", "after.weight"]


def test_pooled_features_that_are_joined_with_others_had_one() -> None:
    net = Net()
    x = net.op("Relu", net.images(8))
    pooled = net.op("Relu", net.conv(net.op("GlobalAveragePool", x), 8, 8, name="pooled"))
    net.images_end(net.op("Add", x, pooled), 8)
    assert "pooled.weight" in found(net.model())


def test_embedded_weights_need_no_normalization_to_start_from(tmp_path: Path) -> None:
    export_once("resnet18-cifar", tmp_path / "m.onnx", width=0.125, num_classes=10, keep_batch_norm=False)
    assert Wide(0.5, init="embed")(tmp_path / "m.onnx").report["warnings"] == []


@pytest.mark.parametrize("member", ["wide", "parallel", "factorized", "doped"])
def test_every_transform_that_draws_weights_says_it_once(member: str, tmp_path: Path) -> None:
    export_once("resnet18-cifar", tmp_path / "m.onnx", width=0.125, num_classes=10, keep_batch_norm=False)
    steps = [{member: {"sparsity": 0.5, "only": [f"layer{i}.*"]}} for i in ((1,) if member == "wide" else (1, 2))]
    recipe = Recipe.of({"version": 1, "passes": steps})
    result = run_recipe(Model.load(tmp_path / "m.onnx"), recipe)
    (warning,) = [text for text in result.report["warnings"] if "folded" in text]
    assert "TrainingMode.PRESERVE" in warning
    assert "InsertBatchNorm" in warning


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_normalization_is_put_back_behind_every_kind_of_layer(exporter: str) -> None:
    proto = exported(Blocks(), exporter, 3, 8, 8)
    name = proto.graph.input[0].name
    feeds = [{name: np.random.default_rng(i).random((1, 3, 8, 8), np.float32)} for i in range(4)]
    result = InsertBatchNorm(feeds)(proto)
    count = len(find_folded(Model.load(proto)).weights)
    kinds = [node.op for node in result.model.graph.nodes]
    assert count == len(result.report["layers"])
    assert kinds.count("BatchNormalization") == 4
    assert found(result.model) == []

    def run(model: onnx.ModelProto) -> Any:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return session.run(None, feeds[0])[0]

    np.testing.assert_allclose(run(result.model.to_proto()), run(proto), rtol=1e-4, atol=1e-5)
