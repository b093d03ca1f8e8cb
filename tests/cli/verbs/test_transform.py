"""The verbs ``transform`` and ``inspect`` as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sift_onnx.cli import main


@pytest.fixture
def model(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    widths = [(8, 4, 3), (20, 8, 3), (20, 20, 3), (6, 20, 1)]
    nodes, weights = [], []
    for i, (out, channels, kernel) in enumerate(widths):
        weight = rng.standard_normal((out, channels, kernel, kernel)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"conv{i}.weight"))
        source = "x" if i == 0 else f"a{i - 1}"
        nodes.append(
            helper.make_node("Conv", [source, f"conv{i}.weight"], [f"a{i}"], name=f"conv{i}", pads=[kernel // 2] * 4)
        )
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, 6, 6])],
        [helper.make_tensor_value_info("a3", TensorProto.FLOAT, ["n", 6, 6, 6])],
        weights,
    )
    path = tmp_path / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def call(*args: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main(args=[str(a) for a in args])
    return int(stop.value.code or 0)


def test_transform_writes_a_model_and_says_what_it_is(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = model.with_name("wide.onnx")
    assert call("transform", model, target, "--wide", "0.75", "--budget", "layer") == 0
    onnx.checker.check_model(str(target), full_check=True)
    out, err = capfd.readouterr()
    assert "40x16x3x3" in out
    assert "untrained" in out.strip().splitlines()[-1]
    assert f"sift-onnx check {target}" in out.strip().splitlines()[-1]
    assert err == ""


def test_reasons_name_options_in_words_and_in_json(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = (model, model.with_name("w.onnx"), "--wide", "0.5", "--budget", "layer", "--keep-dense", "conv1.*")
    assert call("transform", *options, "--json", model.with_name("w.json")) == 0
    assert "kept dense by --keep-dense" in capfd.readouterr().out
    layers = json.loads(model.with_name("w.json").read_text())["layers"]
    assert "kept dense by --keep-dense" in [layer["reason"] for layer in layers]


def test_json_on_stdout_is_nothing_but_json(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert call("transform", model, model.with_name("w.onnx"), "--wide", "0.5", "--budget", "layer", "--json", "-") == 0
    document = json.loads(capfd.readouterr().out)
    assert next(iter(document)) == "schema"
    assert {"pass", "sparsity", "width_factor", "layers", "totals", "pinned", "seconds"} <= document.keys()
    assert (document["model"], document["out"]) == (str(model), str(model.with_name("w.onnx")))
    assert {
        "name",
        "node",
        "op",
        "kind",
        "shape_before",
        "shape_after",
        "macs_before",
        "macs_after",
        "nnz",
        "sparsity",
        "status",
        "reason",
    } <= document["layers"][0].keys()
    assert {
        "weight_macs_before",
        "weight_macs_after",
        "weight_macs_ratio",
        "attention_macs_before",
        "attention_macs_after",
        "nnz_before",
        "nnz_after",
        "search_space",
    } == document["totals"].keys()


def test_a_json_file_in_a_missing_folder_is_refused_before_anything_is_written(
    model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    target = model.with_name("wide.onnx")
    options = ("--wide", "0.75", "--budget", "layer", "--json", model.parent / "none" / "report.json")
    assert call("transform", model, target, *options) == 2
    assert not target.exists()
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_a_dry_run_writes_nothing(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = model.with_name("wide.onnx")
    assert call("transform", model, target, "--wide", "0.75", "--budget", "layer", "--dry-run") == 0
    assert not target.exists()
    assert "Dry run" in capfd.readouterr().out


def test_a_second_transform_says_that_nothing_changed(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first, second = model.with_name("first.onnx"), model.with_name("second.onnx")
    options = ("--wide", "0.75", "--budget", "layer", "--seed", "5")
    assert call("transform", model, first, *options) == 0
    assert call("transform", first, second, *options) == 0
    assert first.read_bytes() == second.read_bytes()
    assert "as it was" in capfd.readouterr().out.splitlines()[-1]


def test_sparse_storage_is_smaller(model: Path) -> None:
    options = ("--wide", "0.9", "--budget", "layer")
    for storage in ("dense", "sparse"):
        assert call("transform", model, model.with_name(f"{storage}.onnx"), *options, "--storage", storage) == 0
    assert model.with_name("sparse.onnx").stat().st_size < model.with_name("dense.onnx").stat().st_size


@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_what_transform_writes_passes_check(model: Path, storage: str) -> None:
    target = model.with_name("wide.onnx")
    assert call("transform", model, target, "--wide", "0.9", "--budget", "layer", "--storage", storage) == 0
    assert call("check", target) == 0


def test_inspect_counts_the_non_zeros_of_the_file(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = model.with_name("wide.onnx")
    assert call("transform", model, target, "--wide", "0.75", "--budget", "layer") == 0
    capfd.readouterr()
    assert call("inspect", target, "--json", "-") == 0
    document = json.loads(capfd.readouterr().out)
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(target).graph.initializer}
    for layer in document["layers"]:
        assert layer["nnz"] == np.count_nonzero(stored[layer["name"]])
        assert layer["effective_macs"] == layer["nnz"] * 36
        assert layer["macs"] == stored[layer["name"]].size * 36
    assert document["totals"]["nnz"] == sum(layer["nnz"] for layer in document["layers"])
    assert document["model"] == str(target)


def test_macs_follow_the_batch_that_is_asked_for(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    totals = []
    for batch in (1, 5):
        assert call("inspect", model, "--input-shapes", f"x:{batch},4,6,6", "--json", "-") == 0
        totals.append(json.loads(capfd.readouterr().out)["totals"]["macs"])
    assert totals[1] == 5 * totals[0]


@pytest.mark.parametrize("shape", ["x:1,3,6,6", "y:1,4,6,6", "x:1,4,6"])
def test_input_shapes_that_contradict_the_model_are_refused(
    model: Path, shape: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call("inspect", model, "--input-shapes", shape) == 2
    assert len(capfd.readouterr().err.splitlines()) == 1
