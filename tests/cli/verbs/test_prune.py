"""The verbs ``prune`` and ``densify`` as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from nets import Net

import sift_onnx
from sift_onnx.cli import main


@pytest.fixture
def model(tmp_path: Path) -> Path:
    net = Net()
    net.tokens_end(net.dense(net.tokens(8), 8, 8, name="mid"), 8)
    onnx.save(net.model(), tmp_path / "in.onnx")
    return tmp_path / "in.onnx"


def call(*args: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main(args=[str(a) for a in args])
    return int(stop.value.code or 0)


def test_prune_writes_masks_and_a_table_and_densify_drops_them(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sparse, dense = model.with_name("sparse.onnx"), model.with_name("dense.onnx")
    assert call("prune", model, sparse, "--sparsity", "0.5", "--pattern", "2:4", "--storage", "sparse") == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert "mid.weight" in out
    assert "50.00%" in out
    assert out.splitlines()[-1].endswith(f"Next: sift-onnx inspect {sparse}")
    assert sift_onnx.masks(sparse)["mid.weight"].sum() == 32
    assert call("densify", sparse, dense) == 0
    assert "has no masks" in capfd.readouterr().out
    assert sift_onnx.masks(dense) == {}
    assert call("check", dense, sparse) == 0


def test_json_has_the_layers_of_transform(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = model.with_name("sparse.onnx")
    assert call("prune", model, target, "--sparsity", "0.75", "--distribution", "erk", "--json", "-") == 0
    document = json.loads(capfd.readouterr().out)
    assert next(iter(document)) == "schema"
    assert (document["pass"], document["sparsity"], document["method"]) == ("prune", 0.75, "magnitude")
    assert (document["pattern"], document["distribution"]) == ("unstructured", "erk")
    assert {
        "name", "node", "op", "kind", "shape_before", "shape_after", "macs_before", "macs_after", "nnz", "sparsity",
        "status", "reason",
    } <= document["layers"][0].keys()  # fmt: skip
    assert {"weight_macs_before", "weight_macs_after", "weight_macs_ratio", "nnz_before", "nnz_after"} <= document[
        "totals"
    ].keys()
    assert document["seconds"] > 0
    assert call("densify", target, model.with_name("dense.onnx"), "--json", "-") == 0
    assert json.loads(capfd.readouterr().out)["pass"] == "densify"


def test_transform_takes_patterns_and_distributions(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = model.with_name("wide.onnx")
    options = ("--wide", "0.75", "--pattern", "1:4-transposable", "--distribution", "erk")
    assert call("transform", model, target, *options) == 0
    assert "Sparse Wide at sparsity 0.75, 1:4-transposable masks" in capfd.readouterr().out
    assert call("transform", model, target, *options, "--force", "--json", "-") == 0
    document = json.loads(capfd.readouterr().out)
    assert (document["pattern"], document["distribution"]) == ("1:4-transposable", "erk")
    assert call("transform", model, target, "--wide", "0.75", "--distribution", "erk", "--budget", "layer") == 2


def test_what_is_done_already_says_so(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sparse = model.with_name("sparse.onnx")
    assert call("prune", model, sparse, "--sparsity", "0.5") == 0
    assert call("prune", sparse, model.with_name("again.onnx"), "--sparsity", "0.5") == 0
    assert "as it was: first layer, it is as sparse already, last layer." in capfd.readouterr().out
    assert sparse.read_bytes() == model.with_name("again.onnx").read_bytes()
    assert call("densify", model, model.with_name("dense.onnx")) == 0
    assert "as it was: it has no mask." in capfd.readouterr().out


def test_a_dry_run_writes_nothing(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for arguments in (("prune", model, "out.onnx", "--sparsity", "0.5"), ("densify", model, "out.onnx")):
        assert call(*arguments, "--dry-run") == 0
        assert "Dry run: nothing was written to out.onnx." in capfd.readouterr().out
    assert not Path("out.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sparsity", "0.4", "--pattern", "2:4"), "use a sparsity of 0.5 or above"),
        (("--sparsity", "0.5", "--pattern", "24"), "pattern '24' is unknown"),
        (("--sparsity", "1.5"), "out of range"),
        (("--sparsity", "0.5", "--only", "nothing*"), "matches no weight"),
        ((), "Missing option '--sparsity'"),
    ],
)
def test_mistakes_are_one_line(
    model: Path, arguments: tuple[str, ...], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call("prune", model, model.with_name("out.onnx"), *arguments) == 2
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith("Error: ")
    assert message in line
    assert not model.with_name("out.onnx").exists()


def test_an_existing_output_needs_force(model: Path) -> None:
    for verb in (("prune", "--sparsity", "0.5"), ("densify",)):
        assert call(verb[0], model, model, *verb[1:]) == 2
    assert call("prune", model, model, "--sparsity", "0.5", "--force") == 0
