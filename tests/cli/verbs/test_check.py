import json

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from sift_onnx.cli import main


def scale(factor, inner=4):
    """y = x * factor, x of N x inner."""
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "factor"], ["y"], "scale")],
        "scale",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", inner])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", inner])],
        [numpy_helper.from_array(np.full(1, factor, np.float32), "factor")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(scale(2), "two.onnx")
    onnx.save(scale(3), "three.onnx")
    onnx.save(scale(2, "width"), "dynamic.onnx")
    return tmp_path


def check(*arguments):
    return CliRunner().invoke(main, ["check", *arguments])


def test_sound_model_leaves_with_zero(folder):
    result = check("two.onnx")
    assert result.exit_code == 0
    assert "onnx" in result.stdout
    assert "FAILED" not in result.stdout
    assert result.stderr == ""


def test_differing_reference_leaves_with_one_and_says_where(folder):
    result = check("three.onnx", "two.onnx")
    assert result.exit_code == 1
    assert "FAILED" in result.stdout
    assert result.stderr.startswith("Error: three.onnx: check 'close-values' failed: output 'y'")
    assert result.stderr.count("\n") == 1


def test_tolerance_options_reach_the_comparison(folder):
    assert check("three.onnx", "two.onnx", "--rtol", "0.6").exit_code == 0
    assert check("three.onnx", "two.onnx", "--atol", "100").exit_code == 0


def test_json_on_stdout_is_nothing_but_json(folder):
    result = check("three.onnx", "two.onnx", "--json", "-")
    document = json.loads(result.stdout)
    assert result.exit_code == 1
    assert next(iter(document)) == "schema"
    assert document["ok"] is False
    assert document["max_abs_error"] > 0
    assert (document["model"], document["reference"]) == ("three.onnx", "two.onnx")


def test_json_file_is_written_beside_the_table(folder):
    result = check("two.onnx", "--json", "out.json")
    assert json.loads((folder / "out.json").read_text())["ok"] is True
    assert "finite" in result.stdout


def test_unreadable_model_leaves_with_two(folder):
    (folder / "bad.onnx").write_bytes(b"")
    for name in ("bad.onnx", "gone.onnx"):
        result = check(name)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"Error: {name}")
        assert result.stdout == ""


def test_dynamic_axis_leaves_with_two_unless_it_is_given(folder):
    assert check("dynamic.onnx").exit_code == 2
    assert check("dynamic.onnx", "--input-shapes", "x:2,5").exit_code == 0


def test_missing_onnxruntime_leaves_with_four(folder, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "sift_onnx.backends.onnxruntime", raising=False)
    result = check("two.onnx")
    assert result.exit_code == 4
    assert "pip install onnxruntime" in result.stderr


def test_verbose_says_what_is_loaded_and_quiet_does_not(folder):
    assert "loading two.onnx" in check("two.onnx", "-v").stderr
    assert check("two.onnx", "-q").stderr == ""
