import sys

import onnx
import pytest

from sift_onnx.errors import MissingExtraError, OutputError, UnsupportedError, UsageError
from sift_onnx.models import export

NARROW = 0.125


def test_an_existing_file_is_kept_unless_forced(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"precious")
    with pytest.raises(OutputError, match="use `force=True`"):
        export("resnet18-cifar", path, width=NARROW)
    assert path.read_bytes() == b"precious"
    export("resnet18-cifar", path, width=NARROW, force=True)
    onnx.checker.check_model(path)


def test_a_failure_on_the_way_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"precious")
    monkeypatch.setattr("sift_onnx.models.trace.clean", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export("resnet18-cifar", path, width=NARROW, force=True)
    assert path.read_bytes() == b"precious"
    assert list(tmp_path.iterdir()) == [path]


def test_the_output_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(OutputError, match="does not exist"):
        export("resnet18", tmp_path / "missing" / "m.onnx")
    with pytest.raises(OutputError, match="folder"):
        export("resnet18", tmp_path)


def test_missing_extras_are_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match=r"onnxscript.*pip install 'sift-onnx\[train\]'"):
        export("resnet18", tmp_path / "m.onnx", exporter="dynamo")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"torch.*pip install 'sift-onnx\[train\]'"):
        export("resnet18", tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "resnet19"}, "did you mean resnet18"),
        ({"opset": 12}, "opsets 13 to 20, not 12"),
        ({"exporter": "dynamo", "opset": 17}, "opsets 18 to 23, not 17"),
        ({"exporter": "tracing"}, "torchscript or dynamo"),
        ({"batch": 0}, "batch must be"),
        ({"batch": "any"}, "batch must be"),
        ({"batch": True}, "batch must be"),
        ({"width": 0.001}, "width 0.001"),
        ({"num_classes": 0}, "num_classes"),
        ({"sequence": 8}, "resnet18 has no sequence axis"),
        ({"name": "gpt3-small", "sequence": 0}, "sequence must be"),
        ({"layers": 2}, "resnet18 has no option layers"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        export(**{"name": "resnet18", "path": tmp_path / "m.onnx", **arguments})
    assert not any(tmp_path.iterdir())


def test_a_model_beyond_the_memory_is_refused_before_it_is_built(tmp_path):
    with pytest.raises(UnsupportedError, match="GiB of weights"):
        export("resnet50", tmp_path / "m.onnx", width=100)
