import json
import re

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from sparse_nets import SparseNet

from sift_onnx.backends.cpu.isa import generates_code, selected_isa
from sift_onnx.backends.cpu.run import opening, trials
from sift_onnx.cli import main


@pytest.fixture(autouse=True)
def nothing_is_timed(monkeypatch):
    for module in (opening, trials):
        monkeypatch.setattr(module, "is_certain", lambda *_: True)


@pytest.fixture
def path(tmp_path):
    net = SparseNet()
    net.density = 0.1
    x = net.conv(net.input("x", 1, 32, 28, 28, declared=["n", 32, 28, 28]), 32, 64, 3, name="conv")
    net.output(net.op("Atan", x, name="atan"))
    onnx.save(net.model(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def run(*arguments):
    return CliRunner().invoke(main, ["profile", *map(str, arguments)])


def test_a_node_has_its_kernel_density_and_rate(path):
    done = run(path, "--batch", 16, "--threads", 1, "--json", "-")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert (result["schema"], result["batch"], result["threads"]) == (1, 16, 1)
    nodes = {node["name"]: node for node in result["nodes"]}
    stored = onnx.numpy_helper.to_array(onnx.load(path).graph.initializer[0])
    assert nodes["conv"]["density"] == pytest.approx(np.count_nonzero(stored) / stored.size)
    algorithm = "generated" if generates_code(selected_isa()) else "single"
    assert nodes["conv"]["kernel"].startswith(f"conv {algorithm} images16")
    flops = 2 * np.count_nonzero(stored) * 16 * 28 * 28
    assert nodes["conv"]["gflops"] == pytest.approx(flops / nodes["conv"]["ms"] / 1e6)
    assert nodes["conv"]["share_of_peak"] == pytest.approx(nodes["conv"]["gflops"] / result["peak_gflops"])
    assert nodes["atan"]["placement"] == "onnxruntime"
    reasons = {placement["name"]: placement["reason"] for placement in result["placements"]}
    assert reasons["atan"] == "no kernel for this operator"


def test_the_table_and_the_reasons(path):
    done = run(path, "--threads", 1, "--reasons")
    assert done.exit_code == 0, done.output
    assert "onnxruntime: atan: no kernel for this operator" in done.stdout
    assert "batch 1, 1 threads" in done.stdout


def test_what_was_timed_is_said_with_the_reasons(path, monkeypatch):
    for module in (opening, trials):
        monkeypatch.setattr(module, "is_certain", lambda *_: False)
    reasons = {
        placement["name"]: placement["reason"]
        for placement in json.loads(run(path, "--threads", 1, "--json", "-").stdout)["placements"]
    }
    # Whoever was faster.
    assert re.search(r"timed: [\d.]+ ms in the kernels against [\d.]+ ms in onnxruntime$", reasons["conv"])


def test_a_trace_is_written(path, tmp_path):
    assert run(path, "--threads", 1, "--trace", tmp_path / "trace.json").exit_code == 0
    assert {event["cat"] for event in json.loads((tmp_path / "trace.json").read_text())} == {"Session", "Part", "Node"}


def test_a_trace_needs_our_back_end(path, tmp_path):
    done = run(path, "--backend", "onnxruntime", "--trace", tmp_path / "trace.json")
    assert done.exit_code == 3
    assert "--trace needs --backend cpu" in done.stderr


def test_a_trace_that_exists_is_kept(path, tmp_path):
    (tmp_path / "trace.json").write_text("mine")
    refused = run(path, "--trace", tmp_path / "trace.json")
    assert refused.exit_code == 2
    assert "use --force to overwrite it" in refused.stderr
    assert (tmp_path / "trace.json").read_text() == "mine"
    assert run(path, "--threads", 1, "--trace", tmp_path / "trace.json", "--force").exit_code == 0
