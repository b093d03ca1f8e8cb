import os
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from sift_onnx.models import ARCHITECTURES, Architecture, build, export
from sift_onnx.models.exporters import DEFAULT_OPSETS, OPSETS
from sift_onnx.models.fold_batch_norm import fold_batch_norm
from sift_onnx.models.trace import to_onnx

NARROW = 0.125
BATCH_NORMS = {"resnet18": 20, "resnet34": 36, "resnet50": 53}
EXPORTERS = tuple(OPSETS)

pytestmark = pytest.mark.usefixtures("torch_operators")


def load(path):
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    return model


def run(model, x):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["input"]
    assert [value.name for value in session.get_outputs()] == ["logits"]
    return session.run(None, {"input": x.numpy()})[0]


def assert_same(got, module, x):
    with torch.no_grad():
        expected = module(x).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def images(batch, size=32):
    return torch.rand(batch, 3, size, size, generator=torch.Generator().manual_seed(1))


def ops(model):
    return Counter(node.op_type for node in model.graph.node)


def arrays(model):
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def batch_axes(model):
    dims = [value.type.tensor_type.shape.dim[0] for value in (*model.graph.input, *model.graph.output)]
    return {dim.dim_param or dim.dim_value for dim in dims}


@pytest.fixture(scope="session")
def variant(tmp_path_factory):
    """Exports of narrow ResNet-18 for CIFAR, each made once: variant(exporter, batch, keep_batch_norm)."""
    made = {}

    def get(exporter, batch=1, keep_batch_norm=False):
        key = (exporter, batch, keep_batch_norm)
        if key not in made:
            path = tmp_path_factory.mktemp("variant") / "model.onnx"
            written = export(
                "resnet18-cifar",
                path,
                width=NARROW,
                num_classes=7,
                batch=batch,
                keep_batch_norm=keep_batch_norm,
                exporter=exporter,
            )
            made[key] = (path, written, load(path))
        return made[key]

    return get


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name.startswith("resnet")])
def test_every_resnet_gives_the_outputs_of_its_module(name, tmp_path):
    written = export(name, tmp_path / "m.onnx", width=NARROW, num_classes=10, keep_batch_norm=False)
    model = load(tmp_path / "m.onnx")
    # Without batch normalization in the file, nothing holds residual branches at zero.
    module = build(name, width=NARROW, num_classes=10, zero_init_residual=False)
    x = images(1, ARCHITECTURES[name].input_shape[-1])
    assert_same(run(model, x), module, x)
    assert "BatchNormalization" not in ops(model)
    assert written.nodes == len(model.graph.node)
    assert written.bytes == (tmp_path / "m.onnx").stat().st_size
    assert written.parameters == sum(array.size for array in arrays(model).values())


@pytest.mark.parametrize("name", ["resnet18", "resnet34-cifar", "resnet50-cifar"])
def test_kept_batch_norms_are_all_there_in_inference_mode(name, tmp_path):
    written = export(name, tmp_path / "m.onnx", width=NARROW, num_classes=10)
    model = load(tmp_path / "m.onnx")
    norms = [node for node in model.graph.node if node.op_type == "BatchNormalization"]
    assert len(norms) == BATCH_NORMS[name.removesuffix("-cifar")]
    for node in norms:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        assert attributes.get("training_mode", 0) == 0
        assert len(node.output) == 1
    module = build(name, width=NARROW, num_classes=10)
    assert written.parameters == sum(p.numel() for p in module.parameters())
    x = images(1, ARCHITECTURES[name].input_shape[-1])
    assert_same(run(model, x), module, x)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize(
    ("batch", "keep_batch_norm"),
    [(1, True), (1, False), (3, False), ("dynamic", True), ("dynamic", False)],
)
def test_every_variant_gives_the_outputs_of_the_module(variant, exporter, batch, keep_batch_norm):
    _, written, model = variant(exporter, batch, keep_batch_norm)
    assert batch_axes(model) == {"batch" if batch == "dynamic" else batch}
    assert (written.batch, written.exporter) == (batch, exporter)
    module = build("resnet18-cifar", width=NARROW, num_classes=7, zero_init_residual=keep_batch_norm)
    for size in (1, 3) if batch == "dynamic" else (batch,):
        x = images(size)
        assert_same(run(model, x), module, x)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_trained_model_is_exported_value_by_value(exporter):
    """Statistics, scales and shifts that are all different: none is shared, swapped or dropped."""
    module = build("resnet50-cifar", width=NARROW, num_classes=7, zero_init_residual=False)
    generator = torch.Generator().manual_seed(0)
    for norm in module.modules():
        if isinstance(norm, torch.nn.BatchNorm2d):
            for tensor in (norm.weight.data, norm.bias.data, norm.running_mean, norm.running_var):
                tensor.uniform_(0.5, 1.5, generator=generator)
    x = images(2)
    architecture = ARCHITECTURES["resnet50-cifar"]
    kept = to_onnx(module, architecture, 2, exporter, DEFAULT_OPSETS[exporter]).to_proto()
    assert_same(run(kept, x), module, x)
    stored = arrays(kept)
    for key, value in module.state_dict().items():
        if not key.endswith("num_batches_tracked"):
            np.testing.assert_array_equal(stored[key], value.numpy())
    expected = build("resnet50-cifar", width=NARROW, num_classes=7)
    expected.load_state_dict(module.state_dict())
    assert len(fold_batch_norm(module)) == 53
    folded = to_onnx(module, architecture, 2, exporter, DEFAULT_OPSETS[exporter]).to_proto()
    assert_same(run(folded, x), expected, x)


class Tied(torch.nn.Module):
    """Linear layers on a 3-D tensor, two of which are one, as in a language model."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (torch.nn.Linear(8, 8) for _ in range(3))
        self.third.weight = self.first.weight

    def forward(self, x):
        return self.third(self.second(self.first(x)))


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_transposed_weights_keep_their_names_and_tied_ones_their_tie(exporter):
    architecture = Architecture("tied", "", "-", input_shape=(5, 8), num_classes=8, builder="")
    module = Tied().eval()
    model = to_onnx(module, architecture, "dynamic", exporter, DEFAULT_OPSETS[exporter]).to_proto()
    floats = {name for name, array in arrays(model).items() if array.dtype == np.float32}
    tie = floats & {"first.weight", "third.weight"}
    assert len(tie) == 1
    assert floats - tie == {"first.bias", "second.weight", "second.bias", "third.bias"}
    x = torch.rand(3, 5, 8)
    assert_same(run(model, x), module, x)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_initializers_are_named_by_the_state_dict_and_shared_by_none(variant, exporter):
    keys = {key for key in build("resnet18-cifar", width=NARROW).state_dict() if not key.endswith("_tracked")}
    _, _, kept = variant(exporter, 1, True)
    floats = {name for name, array in arrays(kept).items() if array.dtype == np.float32}
    assert floats == keys
    _, _, folded = variant(exporter, 1, False)
    convolutions = [node for node in folded.graph.node if node.op_type == "Conv"]
    assert len({name for node in convolutions for name in node.input[1:]}) == 2 * len(convolutions)
    for node in convolutions:
        layer = node.input[1].removesuffix(".weight")
        assert node.input[2] == f"{layer}.bias"


def test_the_default_exporter_writes_operators_that_every_tool_knows(variant):
    _, written, model = variant("torchscript", "dynamic")
    assert written.opset == model.opset_import[0].version == 17
    assert ops(model) == {"Conv": 20, "Relu": 17, "Add": 8, "GlobalAveragePool": 1, "Flatten": 1, "Gemm": 1}


@pytest.mark.parametrize("batch", [1, "dynamic"])
@pytest.mark.parametrize("keep_batch_norm", [True, False], ids=["kept", "folded"])
def test_dynamo_leaves_no_arithmetic_on_shapes(variant, batch, keep_batch_norm):
    _, _, model = variant("dynamo", batch, keep_batch_norm)
    expected = {"Conv": 20, "Relu": 17, "Add": 8, "ReduceMean": 1, "Reshape": 1, "Gemm": 1}
    assert ops(model) == (expected | {"BatchNormalization": 20} if keep_batch_norm else expected)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_every_value_in_between_has_a_shape(variant, exporter):
    _, _, model = variant(exporter, "dynamic", True)
    known = {value.name for value in (*model.graph.value_info, *model.graph.output)}
    assert {output for node in model.graph.node for output in node.output} <= known


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("end", [0, -1], ids=["lowest", "highest"])
def test_opsets_at_either_end_of_the_range_are_written(exporter, end, tmp_path):
    opset = OPSETS[exporter][end]
    written = export(
        "resnet18-cifar", tmp_path / "m.onnx", width=NARROW, keep_batch_norm=True, exporter=exporter, opset=opset
    )
    model = load(tmp_path / "m.onnx")
    assert written.opset == opset
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", opset)]
    x = images(1)
    assert_same(run(model, x), build("resnet18-cifar", width=NARROW), x)


@pytest.mark.slow
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_same_arguments_give_the_same_bytes_in_another_process(variant, exporter, tmp_path):
    path, _, _ = variant(exporter, "dynamic", True)
    script = (
        "import sys; from sift_onnx.models import export; export('resnet18-cifar', 'again.onnx', num_classes=7, "
        "width=float(sys.argv[1]), batch='dynamic', keep_batch_norm=True, exporter=sys.argv[2])"
    )
    folders = [os.path.abspath(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(folders)}
    subprocess.run([sys.executable, "-c", script, str(NARROW), exporter], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "again.onnx").read_bytes() == path.read_bytes()


def test_another_seed_gives_other_weights(variant, tmp_path):
    path, _, _ = variant("torchscript")
    export("resnet18-cifar", tmp_path / "m.onnx", width=NARROW, num_classes=7, keep_batch_norm=False, seed=1)
    assert (tmp_path / "m.onnx").read_bytes() != path.read_bytes()


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_the_file_carries_no_path_and_no_source(variant, exporter):
    path, _, _ = variant(exporter, 1, True)
    content = path.read_bytes()
    folders = (
        str(path.parent),
        os.getcwd(),
        str(Path(__file__).parent),
        sysconfig.get_path("purelib"),
        str(Path.home()),
    )
    for trace in (*(folder for folder in folders if len(folder) > 1), "site-packages", ".py", "stack_trace"):
        assert trace.encode() not in content, trace


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_nothing_is_printed_and_no_warning_shown(exporter, tmp_path, capfd, recwarn):
    export("resnet18-cifar", tmp_path / "m.onnx", width=NARROW, exporter=exporter)
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list


def test_folding_leaves_no_convolution_of_zeros(variant):
    _, _, model = variant("torchscript")
    assert all(np.count_nonzero(array) for name, array in arrays(model).items() if name.endswith("weight"))


def test_residuals_begin_at_zero_where_batch_norm_is_kept(variant):
    _, _, model = variant("torchscript", 1, True)
    stored = arrays(model)
    assert not stored["layer1.0.bn2.weight"].any()
    assert stored["layer1.0.bn1.weight"].all()
