"""Models that were exported in training mode: what is trained and written is for inference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper
from training.trainer.cases import arrays, classifier, examples, settings

import sift_onnx
from sift_onnx.errors import UnsupportedError
from sift_onnx.training import write_back_file
from sift_onnx.training.trainer import train_file


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The classifier, as ``torch.onnx.export(..., training=TrainingMode.TRAINING)`` writes it."""
    path = classifier(tmp_path / "net.onnx")
    proto = onnx.load(path)
    for node in proto.graph.node:
        if node.op_type == "BatchNormalization":
            node.attribute.append(helper.make_attribute("training_mode", 1))
            node.output.extend(["norm.mean.new", "norm.var.new"])
        if node.op_type == "Dropout":
            node.name = "drop"
            node.input.append("trains")
            node.output.append("kept")
    proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "trains"))
    onnx.save(proto, path)
    return path


def scores(source: Path | onnx.ModelProto, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    content = source.read_bytes() if isinstance(source, Path) else source.SerializeToString()
    (found,) = onnxruntime.InferenceSession(content).run(None, {"x": x})
    return np.asarray(found)


def assert_for_inference(source: Path | onnx.ModelProto) -> None:
    proto = onnx.load(source) if isinstance(source, Path) else source
    # onnx infers no shapes of a model with sparse tensors.
    onnx.checker.check_model(proto, full_check=not proto.graph.sparse_initializer)
    x, _ = examples(6)
    together = scores(source, x)
    for i in range(len(x)):
        np.testing.assert_allclose(scores(source, x[i : i + 1])[0], together[i], rtol=1e-4, atol=1e-5)


def test_a_file_that_was_trained_is_as_good_one_by_one_as_it_was_validated(model: Path, tmp_path: Path) -> None:
    target, said = tmp_path / "out.onnx", list[dict[str, Any]]()
    chosen = settings(epochs=12, optimizer={"lr": 0.1})
    document = train_file(model, target, arrays(tmp_path / "d.npz"), chosen, device="cpu", report=said.append)
    assert document is not None
    assert document["validation"]["accuracy"] > 0.8
    assert document["inference_mode"] == ["norm", "drop"]
    warnings = [event["text"] for event in said if event["event"] == "warning"]
    assert "2 nodes were exported in training mode, and put into inference mode: 'norm', 'drop'" in warnings
    x, labels = examples(40, seed=1)
    one_by_one = np.concatenate([scores(target, image[None]) for image in x])
    assert (one_by_one.argmax(1) == labels).mean() == pytest.approx(document["validation"]["accuracy"])
    assert_for_inference(target)


def test_statistics_of_the_batch_are_refused_before_the_training(model: Path, tmp_path: Path) -> None:
    proto = onnx.load(model)
    nodes = list(proto.graph.node)
    index = next(i for i, node in enumerate(nodes) if node.op_type == "BatchNormalization")
    nodes[index].input[3], nodes[index].input[4] = "batch.mean", "batch.var"
    for name in ("batch.mean", "batch.var"):
        given = [nodes[index].input[0]] if name == "batch.mean" else ["batch.square"]
        nodes.insert(index, helper.make_node("ReduceMean", given, [name], axes=[0, 2, 3], keepdims=0))
        index += 1
    nodes.insert(index - 1, helper.make_node("Mul", [nodes[index].input[0]] * 2, ["batch.square"]))
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(copies)
    onnx.save(proto, model)
    with pytest.raises(UnsupportedError, match=r"'norm' .* no running statistics"):
        train_file(model, tmp_path / "out.onnx", str(tmp_path / "there-is-none.npz"), settings(), device="cpu")


def trained(model: Any) -> torch.nn.Module:
    """A module after a step that changes weights and statistics."""
    module = sift_onnx.to_torch(model).train()
    torch.manual_seed(0)
    module(torch.from_numpy(examples(8)[0])).square().sum().backward()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter -= 0.01 * parameter.grad  # type: ignore[operator]
    return module.eval()


@pytest.mark.parametrize("trains", [False, True])
def test_a_proto_is_written_back_for_inference(model: Path, trains: bool) -> None:
    proto = onnx.load(model)
    before = proto.SerializeToString()
    module = trained(proto) if trains else sift_onnx.to_torch(proto)
    written = sift_onnx.write_back(proto, module)
    assert isinstance(written, onnx.ModelProto)
    assert proto.SerializeToString() == before
    assert_for_inference(written)
    x = examples(6)[0]
    with torch.no_grad():
        np.testing.assert_allclose(scores(written, x), module(torch.from_numpy(x)).numpy(), rtol=1e-4, atol=1e-5)
    # A second time there is nothing to do.
    again = sift_onnx.write_back(written, sift_onnx.to_torch(written))
    assert again.SerializeToString() == written.SerializeToString()


def test_models_graphs_and_paths_are_written_back_for_inference(model: Path) -> None:
    for source in (str(model), sift_onnx.load(str(model)), sift_onnx.load(str(model)).graph):
        written = sift_onnx.write_back(source, trained(source))
        assert_for_inference(sift_onnx.load(written).to_proto())


@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_a_file_is_written_back_for_inference_in_its_storage(model: Path, tmp_path: Path, storage: Any) -> None:
    """As an exporter's tools wrote it, in the order of protobuf, and as this package does."""
    pruned = sift_onnx.passes.Prune(0.5)(str(model)).model
    pruned.save(tmp_path / "pruned.onnx", storage=storage)
    proto = onnx.load(tmp_path / "pruned.onnx")
    norm = next(node for node in proto.graph.node if node.op_type == "BatchNormalization")
    norm.attribute.append(helper.make_attribute("training_mode", 1))
    norm.output.extend(["new.mean", "new.var"])
    (tmp_path / "trains.onnx").write_bytes(proto.SerializeToString())
    module = sift_onnx.to_torch(str(tmp_path / "trains.onnx"))
    write_back_file(tmp_path / "trains.onnx", module, tmp_path / "out.onnx")
    found = onnx.load(tmp_path / "out.onnx")
    assert len(found.graph.sparse_initializer) == (storage == "sparse")
    before, after = sift_onnx.masks(str(tmp_path / "pruned.onnx")), sift_onnx.masks(str(tmp_path / "out.onnx"))
    assert before.keys() == after.keys()
    assert all(np.array_equal(mask, after[name]) for name, mask in before.items())
    assert_for_inference(tmp_path / "out.onnx")


def test_statistics_that_are_outputs_are_no_matter_for_the_module_and_refused_when_it_is_written(model: Path) -> None:
    proto = onnx.load(model)
    proto.graph.output.append(helper.make_tensor_value_info("norm.mean.new", onnx.TensorProto.FLOAT, [8]))
    module = sift_onnx.to_torch(proto)
    assert len(module(torch.zeros(2, 1, 6, 6))) == 2
    with pytest.raises(UnsupportedError, match=r"'norm' .* the model returns its running statistics 'norm\.mean\.new'"):
        sift_onnx.write_back(proto, module)
