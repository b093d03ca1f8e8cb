"""Verbs on a model whose image size is open: they take a usual one, and say so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner, Result
from nets import Net

from sift_onnx.cli import main
from sift_onnx.model import Model

LINE = (
    "axes 2 and 3 of input 'x' are open (without a name): 224 x 224 is assumed; --input-shapes x:1,3,N,N says otherwise"
)
VERBS = [
    ("inspect", "in.onnx"),
    ("transform", "in.onnx", "out.onnx", "--wide", "0.75", "--budget", "layer"),
    ("transform", "in.onnx", "out.onnx", "--factorized", "0.5"),
    ("prune", "in.onnx", "out.onnx", "--sparsity", "0.5"),
    ("densify", "in.onnx", "out.onnx"),
    ("check", "in.onnx"),
    ("profile", "in.onnx", "--threads", "1"),
    ("benchmark", "in.onnx", "--seconds", "0.01", "--warmup", "0", "--backend", "cpu", "--backend", "onnxruntime"),
    ("benchmark", "in.onnx", "--seconds", "0.01", "--warmup", "0", "--backend", "dataflow"),
    ("simulate", "in.onnx"),
    ("simulate", "in.onnx", "--fidelity", "functional"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``in.onnx``, as Paddle's exporter names its axes."""
    monkeypatch.chdir(tmp_path)
    net = Net()
    h = net.conv(net.input("x", 1, 3, 8, 8, declared=["?", 3, "?", "?"]), 3, 4, 3, name="stem", strides=[4, 4])
    for name in ("one", "two"):
        h = net.conv(net.op("Relu", h), 4, 4, 3, name=name, strides=[2, 2])
    net.output(net.dense(net.op("Flatten", net.op("GlobalAveragePool", h)), 4, 2, name="head"))
    model = net.model()
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "?"
    onnx.save(model, "in.onnx")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def document(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json", "-").stdout)
    return found


@pytest.mark.parametrize("arguments", VERBS, ids=lambda arguments: "-".join(arguments[:1] + arguments[3:5]))
def test_a_verb_says_which_size_it_took_and_how_to_give_another(arguments: tuple[str, ...]) -> None:
    result = run(*arguments, "--json", "result.json")
    assert result.exit_code == 0, result.stderr
    assert [line.removeprefix("in.onnx: ") for line in result.stderr.splitlines()] == [LINE]
    found = json.loads(Path("result.json").read_text())
    places = found["runs"] if arguments[0] == "benchmark" else [found]
    assert [place["nominal"] for place in places] == [{"x": [1, 3, 224, 224]}] * len(places)


@pytest.mark.parametrize("arguments", VERBS, ids=lambda arguments: "-".join(arguments[:1] + arguments[3:5]))
def test_given_shapes_win_and_nothing_is_said(arguments: tuple[str, ...]) -> None:
    result = run(*arguments, "--input-shapes", "x:1,3,48,32", "--json", "result.json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "nominal" not in Path("result.json").read_text()


def test_quiet_verbs_say_nothing_of_it() -> None:
    assert run("inspect", "in.onnx", "-q").stderr == ""


def test_a_batch_is_taken_beside_the_assumed_size() -> None:
    found = document(
        "benchmark", "in.onnx", "--seconds", "0.01", "--warmup", "0", "--batch", "1,2", "--backend", "onnxruntime"
    )
    assert [place["nominal"] for place in found["runs"]] == [{"x": [1, 3, 224, 224]}, {"x": [2, 3, 224, 224]}]


def test_the_written_file_keeps_the_marks_of_the_original() -> None:
    assert run("transform", "in.onnx", "out.onnx", "--wide", "0.75", "--budget", "layer").exit_code == 0
    written = Model.load("out.onnx").graph
    assert (written.inputs[0].shape, written.outputs[0].shape) == (["?", 3, "?", "?"], ["?", 2])
    assert run("check", "out.onnx", "--input-shapes", "x:2,3,64,96").exit_code == 0


def test_a_recipe_says_it_once() -> None:
    passes = "- parallel: {sparsity: 0.5, only: ['one*']}\n- prune: {sparsity: 0.5}\n"
    Path("recipe.yaml").write_text(f"version: 1\npasses:\n{passes}")
    result = run("transform", "in.onnx", "out.onnx", "--recipe", "recipe.yaml", "--json", "result.json")
    assert result.exit_code == 0, result.stderr
    assert result.stderr.count(LINE) == 1
    assert json.loads(Path("result.json").read_text())["nominal"] == {"x": [1, 3, 224, 224]}
