"""The plug-in package under docs/: installed by pip, found, and each of its parts at work."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from nets import Net
from plugin_packages import installed

import sift_onnx
from sift_onnx.backends.base import get_backend
from sift_onnx.cli.app import main
from sift_onnx.errors import BackendError

PACKAGE = Path(__file__).resolve().parents[2] / "docs" / "example-plugin"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that pip has installed the package into."""
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("needs setuptools to build the package")
    folder = tmp_path_factory.mktemp("site")
    # Setuptools builds inside of the sources.
    copy = tmp_path_factory.mktemp("sources") / "package"
    subprocess.run(["cp", "-r", str(PACKAGE), str(copy)], check=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    outcome = subprocess.run(
        [*command, "--disable-pip-version-check", "--target", str(folder), str(copy)],
        capture_output=True, text=True, check=False, env={**os.environ, "PIP_NO_INPUT": "1"},
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr
    return folder


@pytest.fixture
def plugin(site: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with installed(site, monkeypatch):
        yield


def network() -> onnx.ModelProto:
    """Three convolutions, with Snake between them; one node has no name."""
    net = Net()
    x = net.conv(net.input("x", 1, 3, 8, 8), 3, 8, 3, name="stem")
    x = net.op("Snake", x, net.constant(np.linspace(0.5, 2, 8), "alpha"), domain="com.example", name="snake")
    x = net.conv(x, 8, 8, 3, name="body")
    x = net.op("Snake", x, net.constant(np.full(8, 0.25), "beta"), domain="com.example", name="again")
    net.output(net.conv(x, 8, 4, name="head"), 1, 4, 8, 8)
    proto = net.model()
    proto.graph.node[2].name = ""
    return proto


def test_doctor_and_help_list_the_package(plugin: None) -> None:
    result = CliRunner().invoke(main, ["doctor", "--json", "-"])
    assert result.exit_code == 0
    entries = {(e["group"], e["name"]): e for e in json.loads(result.stdout)["plugins"]}
    assert {(group.removeprefix("sift_onnx."), name) for group, name in entries} == {
        ("passes", "name-nodes"), ("backends", "reference"), ("axis_rules", "snake"), ("sparsity", "fewestfirst"),
    }  # fmt: skip
    for entry in entries.values():
        assert (entry["package"], entry["version"], entry["error"]) == ("sift-snake", "0.1.0", None)
    _, _, behind = CliRunner().invoke(main, ["--help"]).stdout.partition("\nPlug-ins:\n")
    section, _, _ = behind.partition("\n\n")
    assert [line.split() for line in section.splitlines()] == [
        ["pass", "name-nodes", "sift-snake", "0.1.0"],
        ["back", "end", "reference", "sift-snake", "0.1.0"],
        ["axis", "rules", "snake", "sift-snake", "0.1.0"],
        ["sparsity", "algorithm", "fewestfirst", "sift-snake", "0.1.0"],
    ]


def test_its_pass_runs_in_a_recipe_with_ours_and_its_rule_lets_layers_grow(plugin: None, tmp_path: Path) -> None:
    onnx.save(network(), tmp_path / "in.onnx")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text('version: 1\npasses: [{name-nodes: {prefix: "n_"}}, {wide: {sparsity: "0.75", strict: true}}]\n')
    command = ["transform", str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx"), "--recipe", str(recipe)]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.stderr
    wide = sift_onnx.load(tmp_path / "out.onnx")
    assert [node.name for node in wide.graph.nodes] == ["stem", "snake", "n_Conv_2", "again", "head"]
    assert wide.graph.tensors()["body.weight"].shape == [16, 16, 3, 3]
    assert wide.graph.tensors()["alpha"].shape == [16]
    assert not sift_onnx.passes.get_pass("name-nodes")()(wide).changed


def test_its_back_end_runs_what_onnxruntime_does_not_know(plugin: None) -> None:
    proto = network()
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    outputs = get_backend("reference").compile(proto).run({"x": x})
    assert [(name, y.shape) for name, y in outputs.items()] == [("head", (1, 4, 8, 8))]
    assert np.all(np.isfinite(outputs["head"]))
    with pytest.raises(BackendError, match="the reference evaluator cannot run the model"):
        get_backend("reference").compile(proto).run({})


def test_its_algorithm_is_configured_by_name_and_grows_where_there_are_fewest(plugin: None) -> None:
    torch = pytest.importorskip("torch")
    from sift_onnx.training import sparse

    layer = torch.nn.Linear(16, 4, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(0.1, 1, 64).reshape(4, 16))
    settings = {"sparsity": 0.5, "init_method": "topk", "drop_fraction": 0.5, "update": {"freq": 1}}
    group = sparse.configure({"algorithm": "fewestfirst", "param_filter": "*", **settings})
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    sparse.attach(group, layer, optimizer)
    before = [int(n) for n in layer.weight_mask.sum(dim=1)]
    layer(torch.ones(2, 16)).sum().backward()
    optimizer.step()
    after = [int(n) for n in layer.weight_mask.sum(dim=1)]
    # The smallest half of the weights, all of the third row, are dropped; the two rows that had none get as many.
    assert (before, after[2:], sum(after)) == ([0, 0, 16, 16], [0, 16], 32)
