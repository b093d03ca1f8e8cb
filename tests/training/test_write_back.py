"""Write-back: the original file with the trained tensors in it, and nothing else changed."""

import copy

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime
import pytest
import torch

import sift_onnx
from sift_onnx.errors import OutputError, PreconditionError, UsageError
from sift_onnx.graphs.constants import array_of
from sift_onnx.models import export
from sift_onnx.training import write_back_file


@pytest.fixture(scope="module")
def resnet(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "resnet.onnx"
    export("resnet18-cifar", path, width=0.125, num_classes=10, keep_batch_norm=True)
    return path


def run(model, x):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def train(module, steps=3):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    module.train()
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.rand(1, 3, 32, 32, generator=generator)
        torch.nn.functional.cross_entropy(module(x), torch.tensor([3])).backward()
        for name, mask in module.masks.items():
            module.get_parameter(name).grad.mul_(mask)
        optimizer.step()
    return module.eval()


def test_an_untrained_module_gives_the_same_bytes(resnet):
    model = onnx.load(resnet)

    assert sift_onnx.write_back(model, sift_onnx.to_torch(model)).SerializeToString() == model.SerializeToString()


def test_what_was_trained_is_in_the_file_and_runs(resnet):
    model = onnx.load(resnet)
    module = train(sift_onnx.to_torch(model))
    written = sift_onnx.write_back(model, module)
    x = np.random.default_rng(0).random((1, 3, 32, 32), dtype=np.float32)

    with torch.no_grad():
        np.testing.assert_allclose(run(written, x), module(torch.from_numpy(x)).numpy(), atol=1e-4)
    blank = copy.deepcopy(model), copy.deepcopy(written)
    for proto in blank:
        for tensor in proto.graph.initializer:
            tensor.ClearField("raw_data")
    assert blank[0] == blank[1]


def test_masks_and_numbers_of_non_zeros_survive(resnet):
    model = sift_onnx.transform(onnx.load(resnet), wide=0.75)
    module = train(sift_onnx.to_torch(model))
    # A weight that training has just brought to zero stays active.
    name, mask = next(iter(module.masks.items()))
    where = tuple(mask.nonzero()[0])
    with torch.no_grad():
        module.get_parameter(name)[where] = 0.0
    written = sift_onnx.write_back(model, module)

    before, after = sift_onnx.masks(model), sift_onnx.masks(written)
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[key], after[key]) for key in before)


def test_sparse_storage_stays_sparse(resnet, tmp_path):
    sift_onnx.save(sift_onnx.transform(resnet, wide=0.75), tmp_path / "sparse.onnx", storage="sparse")
    model = onnx.load(tmp_path / "sparse.onnx")
    module = train(sift_onnx.to_torch(model))
    written = sift_onnx.write_back(model, module)

    def names(proto):
        return [tensor.values.name for tensor in proto.graph.sparse_initializer]

    assert names(model)
    assert names(model) == names(written)
    x = np.random.default_rng(0).random((1, 3, 32, 32), dtype=np.float32)
    with torch.no_grad():
        np.testing.assert_allclose(run(written, x), module(torch.from_numpy(x)).numpy(), atol=1e-4)


def test_a_wrapped_module_is_looked_through(resnet):
    class Wrapper(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    model = onnx.load(resnet)
    for tensor in model.graph.initializer:
        if tensor.name == "fc.bias":
            tensor.name = "module.bias"  # a part of the network may be called as the wrapper's
    for node in model.graph.node:
        node.input[:] = ["module.bias" if name == "fc.bias" else name for name in node.input]
    module = sift_onnx.to_torch(model)
    with torch.no_grad():
        module.get_parameter("module.bias").fill_(2.0)
    written = sift_onnx.write_back(model, Wrapper(Wrapper(module)))

    stored = next(t for t in written.graph.initializer if t.name == "module.bias")
    assert set(onnx.numpy_helper.to_array(stored).tolist()) == {2.0}


def test_the_masks_of_the_module_win(resnet):
    model = sift_onnx.transform(onnx.load(resnet), wide=0.75)
    module = sift_onnx.to_torch(model)
    name = "layer1.0.conv1.weight"
    mask = torch.rand(module.get_parameter(name).shape, generator=torch.Generator().manual_seed(0)) < 0.3
    with torch.no_grad():
        module.get_parameter(name).fill_(1.0)
    module.get_submodule("layer1.0.conv1").register_buffer("weight_mask", mask)
    written = sift_onnx.write_back(model, module)

    np.testing.assert_array_equal(sift_onnx.masks(written)[name], mask.numpy())
    stored = next(t for t in written.graph.initializer if t.name == name)
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(stored), mask.numpy().astype(np.float32))


def test_weights_outside_of_the_mask_are_refused_without_a_mask(resnet):
    model = sift_onnx.transform(onnx.load(resnet), wide=0.75)
    module = sift_onnx.to_torch(model)
    with torch.no_grad():
        module.get_parameter("layer1.0.conv1.weight").fill_(1.0)

    with pytest.raises(PreconditionError, match=r"layer1\.0\.conv1\.weight.*outside of its mask"):
        sift_onnx.write_back(model, module)


def test_another_model_is_refused(resnet):
    model = onnx.load(resnet)
    module = sift_onnx.to_torch(model)

    with pytest.raises(UsageError, match="pass the model"):
        sift_onnx.write_back(sift_onnx.transform(model, wide=0.75), module)


def test_negative_zeros_are_normalised(resnet):
    model = onnx.load(resnet)
    module = sift_onnx.to_torch(model)
    with torch.no_grad():
        module.get_parameter("fc.bias").fill_(-0.0)[0] = 1.0
    written = sift_onnx.write_back(model, module)

    stored = next(t for t in written.graph.initializer if t.name == "fc.bias")
    assert not np.signbit(onnx.numpy_helper.to_array(stored)).any()


@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_a_file_is_written_again_byte_for_byte(storage, resnet, tmp_path):
    sift_onnx.save(sift_onnx.transform(resnet, wide=0.75), tmp_path / "wide.onnx", storage=storage)
    module = sift_onnx.to_torch(tmp_path / "wide.onnx")
    sift_onnx.write_back(tmp_path / "wide.onnx", module).save(tmp_path / "same.onnx", storage=storage)
    write_back_file(tmp_path / "wide.onnx", module, tmp_path / "copy.onnx")

    assert (tmp_path / "same.onnx").read_bytes() == (tmp_path / "wide.onnx").read_bytes()
    assert (tmp_path / "copy.onnx").read_bytes() == (tmp_path / "wide.onnx").read_bytes()


def test_a_file_of_another_writer_is_copied_byte_for_byte(resnet, tmp_path):
    onnx.save(onnx.load(resnet), tmp_path / "protobuf.onnx")
    module = sift_onnx.to_torch(tmp_path / "protobuf.onnx")
    write_back_file(tmp_path / "protobuf.onnx", module, tmp_path / "copy.onnx")

    assert (tmp_path / "copy.onnx").read_bytes() == (tmp_path / "protobuf.onnx").read_bytes()
    with pytest.raises(OutputError, match="use `force=True`"):
        write_back_file(tmp_path / "protobuf.onnx", module, tmp_path / "copy.onnx")


@pytest.mark.parametrize("kind", ["Model", "Graph", "onnx_ir"])
def test_every_kind_of_model_comes_back_as_its_kind(kind, resnet):
    if kind == "onnx_ir":
        model = pytest.importorskip("onnx_ir").from_proto(onnx.load(resnet))
    else:
        model = sift_onnx.load(resnet) if kind == "Model" else gs.import_onnx(onnx.load(resnet))
    module = train(sift_onnx.to_torch(model), steps=1)
    written = sift_onnx.write_back(model, module)

    assert type(written) is type(model)
    stored = sift_onnx.load(written).initializers()["fc.weight"]
    np.testing.assert_array_equal(array_of(stored), module.get_parameter("fc.weight").detach())
    untouched = sift_onnx.load(model).initializers()["fc.weight"]
    assert not np.array_equal(array_of(untouched), array_of(stored))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("raw", [True, False])
def test_halves_are_trained_as_floats_and_written_as_halves(kind, raw):
    data_type = onnx.TensorProto.FLOAT16 if kind == "float16" else onnx.TensorProto.BFLOAT16
    values = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    half = onnx.helper.make_tensor("w", data_type, (4, 3), values.reshape(-1).tolist())
    if raw:
        array = onnx.numpy_helper.to_array(half)
        half = onnx.TensorProto(name="w", data_type=data_type, dims=(4, 3), raw_data=array.tobytes())
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info("x", data_type, (2, 4))],
        [onnx.helper.make_tensor_value_info("y", data_type, (2, 3))],
        [half],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    module = sift_onnx.to_torch(model)

    assert module.get_parameter("w").dtype == torch.float32
    assert module(torch.ones(2, 4, dtype=getattr(torch, kind))).dtype == getattr(torch, kind)
    assert sift_onnx.write_back(model, module).SerializeToString() == model.SerializeToString()
    with torch.no_grad():
        module.get_parameter("w").add_(1.0)
    stored = sift_onnx.write_back(model, module).graph.initializer[0]
    assert stored.data_type == data_type
    assert stored.HasField("raw_data") == raw
    np.testing.assert_allclose(
        onnx.numpy_helper.to_array(stored).astype(np.float32), module.get_parameter("w").detach(), rtol=1e-2
    )
