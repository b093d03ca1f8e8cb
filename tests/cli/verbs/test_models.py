import json
import subprocess
import sys

import onnx
import pytest
from click.testing import CliRunner

from sift_onnx.cli.app import main
from sift_onnx.models import ARCHITECTURES

NARROW = ("--width", "0.125", "--num-classes", "10")


def sift(*arguments):
    return CliRunner().invoke(main, ["models", *(str(argument) for argument in arguments)])


def test_list_names_every_architecture():
    result = sift("list")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["name", *ARCHITECTURES]


def test_list_as_json():
    result = sift("list", "--json", "-")
    document = json.loads(result.stdout)
    assert next(iter(document)) == "schema"
    assert document["schema"] == 1
    assert [row["name"] for row in document["models"]] == list(ARCHITECTURES)
    assert document["models"][0]["input_shape"] == [3, 224, 224]
    assert document["models"][0]["num_classes"] == 1000


def test_list_needs_no_torch():
    script = "import sys; sys.modules['torch'] = None; from sift_onnx.cli.app import main; main(['models', 'list'])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "resnet50-cifar" in result.stdout


def test_export_without_torch_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    result = sift("export", "resnet18", tmp_path / "m.onnx")
    assert result.exit_code == 4
    assert result.stderr.count("\n") == 1
    assert "pip install 'sift-onnx[train]'" in result.stderr


def test_an_unknown_name_is_a_usage_error(tmp_path):
    result = sift("export", "resnet19", tmp_path / "m.onnx")
    assert result.exit_code == 2
    assert "did you mean resnet18" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("batch", ["0", "-1", "many", "1.5"])
def test_a_batch_that_is_none_is_refused(batch, tmp_path):
    result = sift("export", "resnet18", tmp_path / "m.onnx", "--batch", batch)
    assert result.exit_code == 2
    assert "--batch" in result.stderr


def test_export_prints_what_it_wrote(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "m.onnx"
    result = sift("export", "resnet18", path, "--fold-batch-norm")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{path}: 46.8 MB, 11,684,712 parameters, 49 nodes, opset 17\n"
    assert result.stderr == ""


@pytest.mark.parametrize("options", [(), ("--keep-batch-norm",)])
def test_normalization_stays_unless_it_is_to_be_folded(options, tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "m.onnx"
    assert sift("export", "resnet18-cifar", path, *NARROW, *options).exit_code == 0
    assert sum(node.op_type == "BatchNormalization" for node in onnx.load(path).graph.node) == 20


def test_export_as_json_with_every_option(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "m.onnx"
    options = ("--batch", "dynamic", "--no-zero-init-residual", "--opset", "18", "--seed", "3")
    result = sift("export", "resnet18-cifar", path, *NARROW, *options, "--exporter", "torchscript", "--json", "-", "-q")
    document = json.loads(result.stdout)
    assert next(iter(document)) == "schema"
    expected = {"schema": 1, "model": "resnet18-cifar", "file": str(path), "bytes": path.stat().st_size, "opset": 18}
    assert expected.items() <= document.items()
    assert {"batch": "dynamic", "exporter": "torchscript", "nodes": 68}.items() <= document.items()
    model = onnx.load(path)
    scale = next(t for t in model.graph.initializer if t.name == "layer1.0.bn2.weight")
    assert onnx.numpy_helper.to_array(scale).all()
    assert model.graph.output[0].type.tensor_type.shape.dim[1].dim_value == 10


def test_a_language_model_takes_a_length_and_layers(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "m.onnx"
    options = ("--sequence", "dynamic", "--layers", "1", "--batch", "2")
    result = sift("export", "gpt3-small", path, *NARROW, *options, "--json", "-")
    document = json.loads(result.stdout)
    assert {"sequence": "dynamic", "batch": 2, "data": None}.items() <= document.items()
    dims = onnx.load(path).graph.input[0].type.tensor_type.shape.dim
    assert (dims[0].dim_value, dims[1].dim_param) == (2, "sequence")


def test_weights_beyond_one_file_are_mentioned(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr("sift_onnx.model_files.writer.PROTOBUF_LIMIT", 300_000)
    path = tmp_path / "m.onnx"
    result = sift("export", "gpt3-small", path, *NARROW, "--layers", "1", "--sequence", "4")
    assert result.stdout.startswith(f"{path} and {path}.data: ")


@pytest.mark.parametrize("option", ["--sequence", "--layers"])
def test_an_image_model_takes_neither_length_nor_layers(option, tmp_path):
    pytest.importorskip("torch")
    result = sift("export", "resnet18-cifar", tmp_path / "m.onnx", option, "4")
    assert result.exit_code == 2
    assert option.removeprefix("--") in result.stderr


def test_an_existing_file_needs_force(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "m.onnx"
    assert sift("export", "resnet18-cifar", path, *NARROW).exit_code == 0
    refused = sift("export", "resnet18-cifar", path, *NARROW)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--force" in refused.stderr
    assert sift("export", "resnet18-cifar", path, *NARROW, "--force").exit_code == 0


def test_folding_scales_of_zero_is_remarked_on_unless_quiet(tmp_path):
    pytest.importorskip("torch")
    arguments = (
        "export",
        "resnet18-cifar",
        tmp_path / "m.onnx",
        *NARROW,
        "--zero-init-residual",
        "--fold-batch-norm",
        "--force",
    )
    assert "their weights are 0" in sift(*arguments).stderr
    assert sift(*arguments, "--quiet").stderr == ""
