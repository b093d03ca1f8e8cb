"""Exports of every architecture beside the ResNets, small, against their modules."""

import copy
import dataclasses
from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from sift_onnx.models import ARCHITECTURES, build, export
from sift_onnx.models.exporters import DEFAULT_OPSETS
from sift_onnx.models.fold_batch_norm import fold_batch_norm
from sift_onnx.models.trace import to_onnx

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("torch_operators")]

# Shape of an item, and parameters that several nodes read.
SMALL = {
    "mobilenetv2-cifar": ((3, 32, 32), set()),
    "mobilevit-s-cifar": ((3, 32, 32), set()),
    "botnet50-cifar": ((3, 32, 32), set()),
    "gpt3-small": ((12,), {"wte.weight"}),
    "bert-small": ((12,), {"bert.embeddings.word_embeddings.weight"}),
    "retinanet-resnet18": ((3, 64, 64), {"class_tower", "box_tower", "class_logits", "box_deltas"}),
    "deeplabv3plus-resnet18": ((3, 64, 96), set()),
}
ALIASES = {"lm_head.weight", "cls.predictions.decoder.weight"}
OTHERS = [name for name in ARCHITECTURES if not name.startswith("resnet")]


def small(name):
    layers = {"layers": 2} if "layers" in ARCHITECTURES[name].options else {}
    return {"width": 0.125, "num_classes": 10, **layers}


def random_inputs(architecture, batch, shape):
    generator = torch.Generator().manual_seed(batch)
    if len(architecture.inputs) == 1 and len(shape) > 1:
        return (torch.rand(batch, *shape, generator=generator),)
    tensors = {name: torch.randint(0, 2, (batch, *shape), generator=generator) for name in architecture.inputs}
    tensors["input_ids"] *= 7
    for name, tensor in tensors.items():
        if name == "attention_mask":
            tensor[:, 0] = 1
    return tuple(tensors.values())


def assert_same(model, architecture, module, inputs):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = list(architecture.inputs)
    assert [value.name for value in session.get_inputs()] == names
    assert [value.name for value in session.get_outputs()] == list(architecture.outputs)
    got = session.run(None, {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)})
    with torch.no_grad():
        expected = module(*inputs)
    for one, other in zip(got, expected if isinstance(expected, tuple) else (expected,), strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-4, atol=1e-4 * other.abs().max().item())


@pytest.mark.parametrize("exporter", DEFAULT_OPSETS)
@pytest.mark.parametrize("name", SMALL)
def test_open_axes(name, exporter, shake):
    """One export for all that is asserted of it, since tracing takes seconds."""
    shape, tied = SMALL[name]
    row = dataclasses.replace(ARCHITECTURES[name], input_shape=shape)
    module = shake(build(name, **small(name)))
    folded = copy.deepcopy(module)
    fold_batch_norm(folded)
    model = to_onnx(folded, row, "dynamic", exporter, DEFAULT_OPSETS[exporter], "dynamic").to_proto()
    onnx.checker.check_model(model, full_check=True)
    assert_open_axes_have_their_names(model, row)
    for batch, length in ((1, 12), (3, 5)):
        assert_same(model, row, module, random_inputs(row, batch, shape if len(shape) > 1 else (length,)))
    assert_weights_are_the_modules_and_only_true_ties_are_shared(model, folded, tied)
    assert_no_arithmetic_on_shapes_is_left_but_the_length_of_a_sequence(model, row)


def assert_open_axes_have_their_names(model, row):
    for value in (*model.graph.input, *model.graph.output):
        axes = {**row.inputs, **row.outputs}[value.name]
        assert tuple(dim.dim_param for dim in value.type.tensor_type.shape.dim[: len(axes)]) == axes
    known = {value.name for value in (*model.graph.value_info, *model.graph.output)}
    assert {output for node in model.graph.node for output in node.output} <= known


def assert_weights_are_the_modules_and_only_true_ties_are_shared(model, module, tied):
    state = {key: value for key, value in module.state_dict().items() if key not in ALIASES}
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for key, value in state.items():
        if not key.endswith("num_batches_tracked"):
            np.testing.assert_array_equal(stored[key], value.numpy())
    assert not ALIASES & set(stored)
    readers = Counter(value for node in model.graph.node for value in node.input)
    shared = {key for key in state if readers[key] > 1}
    assert shared == {key for key in state if key in tied or key.split(".")[0] in tied}


def assert_no_arithmetic_on_shapes_is_left_but_the_length_of_a_sequence(model, row):
    shapes = [node for node in model.graph.node if node.op_type == "Shape"]
    assert len(shapes) == (1 if "sequence" in row.options else 0)
    constants = {tensor.name for tensor in model.graph.initializer}
    assert all(node.input[1] in constants for node in model.graph.node if node.op_type == "Reshape")


@pytest.mark.parametrize("name", OTHERS)
def test_static_exports_give_the_outputs_of_the_module(name, tmp_path):
    row = ARCHITECTURES[name]
    length = {"sequence": 6} if "sequence" in row.options else {}
    written = export(name, tmp_path / "m.onnx", batch=2, keep_batch_norm=False, **small(name), **length)
    model = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert not {"Shape", "Range", "Constant", "Expand"} & {node.op_type for node in model.graph.node}
    residuals = {"zero_init_residual": False} if "zero_init_residual" in row.options else {}
    module = build(name, **small(name), **residuals)
    assert (written.sequence, written.data) == (length.get("sequence"), None)
    assert_same(model, row, module, random_inputs(row, 2, (6,) if length else row.input_shape))
    fold_batch_norm(module)
    assert written.parameters == sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("exporter", DEFAULT_OPSETS)
def test_weights_beyond_one_file_lie_beside_it(exporter, tmp_path, monkeypatch):
    monkeypatch.setattr("sift_onnx.model_files.writer.PROTOBUF_LIMIT", 500_000)
    path = tmp_path / "m.onnx"
    written = export("gpt3-small", path, sequence=6, exporter=exporter, **small("gpt3-small"))
    assert written.data == str(tmp_path / "m.onnx.data")
    assert written.bytes == path.stat().st_size + (tmp_path / "m.onnx.data").stat().st_size
    assert path.stat().st_size < 500_000 < written.bytes
    onnx.checker.check_model(path, full_check=True)
    row = ARCHITECTURES["gpt3-small"]
    assert_same(onnx.load(path), row, build("gpt3-small", **small("gpt3-small")), random_inputs(row, 1, (6,)))
