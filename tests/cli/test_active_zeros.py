"""What benchmark, profile and inspect say of active weights that are zero."""

import json
import re

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from sparse_nets import SparseNet, emptied, everything

from sift_onnx.backends.base import CompileOptions
from sift_onnx.backends.cpu.run.program import CpuProgram
from sift_onnx.cli import main

QUICK = ("--seconds", "0.01", "--warmup", "0")
CALLS = {
    "inspect": ("inspect",),
    "profile": ("profile", "--threads", "1"),
    "benchmark": ("benchmark", "--backend", "cpu", "--threads", "1", *QUICK),
}


@pytest.fixture
def paths(tmp_path):
    """An untrained model and a trained one; and how many active weights and zeros the first has."""
    models = {}
    for name, zeros in (("untrained", everything), ("trained", lambda *_: False)):
        net = SparseNet()
        net.density = 1.0
        x = net.op("Relu", net.conv(net.input("x", 1, 8, 10, 10, declared=["n", 8, 10, 10]), 8, 16, 3, name="first"))
        x = net.op("Relu", net.conv(x, 16, 32, 3, name="middle"))
        net.output(net.conv(x, 32, 4, 1, name="last"))
        models[name] = emptied(net, zeros)
        models[name].save(tmp_path / f"{name}.onnx")
    nnz = models["untrained"].initializers()["middle.weight"].nnz
    active = nnz + 16 * 8 * 9 + 32 * 4
    return tmp_path / "untrained.onnx", tmp_path / "trained.onnx", active, nnz


def call(verb, *arguments):
    first, *rest = CALLS[verb]
    done = CliRunner().invoke(main, [first, *map(str, arguments), *rest])
    assert done.exit_code == 0, done.output
    return done


@pytest.mark.parametrize("verb", CALLS)
def test_the_count_is_in_words_and_the_warning_names_the_layer(paths, verb):
    untrained, trained, active, zeros = paths
    done = call(verb, untrained)
    assert f"{zeros:,} of {active:,} active weights are zero ({zeros / active:.2%})" in re.sub(r"\s+", " ", done.stdout)
    assert "1 layer has only zeros, 'middle.weight'" in done.stderr
    done = call(verb, trained)
    assert "are zero" not in done.output
    assert "Warning" not in done.output


def test_json_of_inspect_has_the_count_of_each_layer(paths):
    untrained, _, active, zeros = paths
    result = json.loads(call("inspect", untrained, "--json", "-").stdout)
    assert {layer["name"]: layer["active_zeros"] for layer in result["layers"]} == {
        "first.weight": 0,
        "middle.weight": zeros,
        "last.weight": 0,
    }
    assert (result["totals"]["nnz"], result["totals"]["active_zeros"]) == (active, zeros)
    assert len(result["warnings"]) == 1


def test_json_of_profile_has_the_count_of_the_model(paths):
    untrained, trained, active, zeros = paths
    result = json.loads(call("profile", untrained, "--json", "-").stdout)
    assert (result["active_weights"], result["active_zeros"]) == (active, zeros)
    assert len(result["warnings"]) == 1
    other = json.loads(call("profile", trained, "--json", "-").stdout)
    assert (other["active_weights"], other["active_zeros"], other["warnings"]) == (active, 0, [])


def test_kernels_multiply_by_as_many_weights_as_those_of_the_trained_model(paths):
    options = CompileOptions(threads=1, deterministic=True)  # otherwise onnxruntime may have one of the two, timed
    profiles = [CpuProgram(path, options).profile() for path in paths[:2]]
    densities = [{node.name: node.density for node in profile.nodes} for profile in profiles]
    assert densities[0] == densities[1]


def test_json_of_benchmark_has_the_count_of_each_run(paths):
    untrained, trained, active, zeros = paths
    result = json.loads(call("benchmark", untrained, "--baseline", trained, "--json", "-").stdout)
    assert [(run["active_weights"], run["active_zeros"]) for run in result["runs"]] == [(active, zeros), (active, 0)]
    (warning,) = result["warnings"]
    assert warning.startswith(f"{untrained}: {zeros / active:.1%} of the active weights are zero")


def test_pages_show_the_warning(paths, tmp_path):
    untrained, _, _, _ = paths
    results = [tmp_path / f"{verb}.json" for verb in CALLS]
    for verb, path in zip(CALLS, results, strict=True):
        call(verb, untrained, "--json", path)
    page = tmp_path / "page.html"
    done = CliRunner().invoke(main, ["report", *map(str, results), "--html", str(page)])
    assert done.exit_code == 0, done.output
    assert page.read_text(encoding="utf-8").count("1 layer has only zeros") == 3


def test_zeros_of_a_pruned_file_without_masks_are_no_active_weights(tmp_path):
    net = SparseNet()
    net.output(net.conv(net.input("x", 1, 8, 10, 10), 8, 16, 3, name="conv"))
    onnx.save(net.model(), tmp_path / "m.onnx")
    result = json.loads(call("profile", tmp_path / "m.onnx", "--json", "-").stdout)
    nnz = np.count_nonzero(onnx.numpy_helper.to_array(net.model().graph.initializer[0]))
    assert (result["active_weights"], result["active_zeros"], result["warnings"]) == (nnz, 0, [])
