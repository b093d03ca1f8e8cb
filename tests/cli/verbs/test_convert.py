"""The verb ``convert``."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import linear, mask_weights, random_weight
from click.testing import CliRunner

import sift_onnx
from sift_onnx.cli import main
from sift_onnx.model import Model

W, V = random_weight(60, 50), random_weight(50, 60, seed=1)


def run(*arguments):
    # As the command is called: errors become one line and an exit code.
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def wide(tmp_path):
    mask_weights(Model.load(linear({"w": W, "v": V}))).save(tmp_path / "wide.onnx")
    return tmp_path / "wide.onnx"


def outputs(path):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": random_weight(3, 60)})[0]


def assert_same(path, expected):
    found, wanted = sift_onnx.masks(path), sift_onnx.masks(expected)
    assert found.keys() == wanted.keys()
    assert all(np.array_equal(found[name], mask) for name, mask in wanted.items())
    assert np.array_equal(outputs(path), outputs(expected))


def test_storage_goes_there_and_back(wide, tmp_path):
    result = run("convert", wide, tmp_path / "sparse.onnx", "--storage", "sparse", "--json", "-")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["schema"] == 1
    assert (document["storage"], document["data"], document["masked"]) == ("sparse", None, 2)
    assert (document["weights"], document["nnz"]) == (6000, 1500)
    assert document["bytes"] == (tmp_path / "sparse.onnx").stat().st_size
    assert len(onnx.load(tmp_path / "sparse.onnx").graph.sparse_initializer) == 2
    assert_same(tmp_path / "sparse.onnx", wide)

    assert run("convert", tmp_path / "sparse.onnx", tmp_path / "dense.onnx", "--storage", "dense").exit_code == 0
    assert (tmp_path / "dense.onnx").read_bytes() == wide.read_bytes()


@pytest.mark.parametrize("storage", ["dense", "sparse"])
@pytest.mark.parametrize("size", ["1", "4KiB", "5kb"])
def test_weights_go_beside_the_file(wide, tmp_path, storage, size):
    out = tmp_path / "out.onnx"
    result = run("convert", wide, out, "--storage", storage, "--external-data", size)
    assert result.exit_code == 0, result.output
    assert f"{out} and {out}.data" in result.stdout
    assert out.stat().st_size < 5000
    assert_same(out, wide)
    assert run("convert", out, tmp_path / "one.onnx", "--storage", "dense").exit_code == 0
    assert (tmp_path / "one.onnx").read_bytes() == wide.read_bytes()


def test_weights_below_the_size_stay_in_the_file(wide, tmp_path):
    result = run("convert", wide, tmp_path / "out.onnx", "--storage", "dense", "--external-data", "1MB", "--json", "-")
    assert json.loads(result.stdout)["data"] is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.onnx", "wide.onnx"]


@pytest.mark.parametrize("size", ["0", "-1", "x", "1TB", "1.5MB", ""])
def test_what_is_no_size_is_refused(wide, tmp_path, size):
    result = run("convert", wide, tmp_path / "out.onnx", "--storage", "dense", f"--external-data={size}")
    assert result.exit_code == 2
    assert "not a size in bytes, like 4096, 64KiB or 1MB" in result.output
    assert not (tmp_path / "out.onnx").exists()


def test_a_weight_that_is_an_output_stays_dense(tmp_path):
    proto = linear({"w": W, "v": V})
    proto.graph.output.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, W.shape))
    mask_weights(Model.load(proto)).save(tmp_path / "in.onnx")
    result = run("convert", tmp_path / "in.onnx", tmp_path / "out.onnx", "--storage", "sparse")
    assert "1 masked weights as sparse tensors, 1 that are outputs as dense ones, " in result.stdout
    assert_same(tmp_path / "out.onnx", tmp_path / "in.onnx")
    assert run("check", tmp_path / "out.onnx", tmp_path / "in.onnx").exit_code == 0


def test_model_without_masks_has_nothing_that_is_sparse(tmp_path):
    onnx.save(linear({"w": W}), tmp_path / "m.onnx")
    result = run("convert", tmp_path / "m.onnx", tmp_path / "out.onnx", "--storage", "sparse")
    assert result.exit_code == 2
    assert "has no masks" in result.output
    assert run("convert", tmp_path / "m.onnx", tmp_path / "out.onnx", "--storage", "dense").exit_code == 0


def test_existing_file_needs_force(wide, tmp_path):
    assert run("convert", wide, wide, "--storage", "sparse").exit_code == 2
    assert run("convert", wide, wide, "--storage", "sparse", "--force").exit_code == 0
    assert len(onnx.load(wide).graph.sparse_initializer) == 2


def test_the_storage_has_to_be_named(wide, tmp_path):
    result = run("convert", wide, tmp_path / "out.onnx")
    assert result.exit_code == 2
    assert "Missing option '--storage'" in result.stderr
