"""Every verb on a model that looks positions up in a long list of integers, as relative position biases do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from nets import Net
from onnxruntime import InferenceSession

from sift_onnx.cli import main

TOKENS = 96


def biased_attention() -> Net:
    """Attention whose scores get a bias for each pair of tokens, from a table of distances."""
    net = Net(opset=18)
    h = net.op("Relu", net.tokens(16, TOKENS))
    distance = np.arange(TOKENS)[:, None] - np.arange(TOKENS)[None, :] + TOKENS - 1
    index = net.op("Unsqueeze", net.constant(distance.reshape(-1), "index"), net.constant([0]))
    bias = net.op("Gather", net.weight(2 * TOKENS - 1, name="table", fan_in=1), index, axis=0)
    q, k, v = (net.dense(h, 16, 16, name=name) for name in "qkv")
    scores = net.op("Mul", net.op("MatMul", q, net.op("Transpose", k, perm=[0, 2, 1])), net.constant(0.25))
    scores = net.op("Add", scores, net.op("Reshape", bias, net.constant([1, TOKENS, TOKENS])))
    net.tokens_end(net.op("MatMul", net.op("Softmax", scores, axis=-1), v), 16)
    return net


@pytest.fixture(params=["inside", "external"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    proto = biased_attention().model()
    path = tmp_path / "biased.onnx"
    onnx.save(proto, path, save_as_external_data=request.param == "external", size_threshold=1024, location="data")
    return path


def sift(*arguments: object) -> Any:
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result


def test_inspect_knows_every_layer(model: Path) -> None:
    document = json.loads(sift("inspect", model, "--json", "-").stdout)
    names = {layer["name"] for layer in document["layers"]}
    assert names >= {"q.weight", "k.weight", "v.weight", "after.weight", "head.weight"}
    assert document["left_out"] == []


@pytest.mark.parametrize("family", [("--wide", 0.5), ("--parallel", 0.5), ("--factorized", 0.5), ("--doped", 0.5)])
def test_transform_makes_a_model_that_runs(model: Path, family: tuple[str, float]) -> None:
    out = model.with_name("out.onnx")
    sift("transform", model, out, *family)
    session = InferenceSession(out, providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.zeros((1, TOKENS, 4), np.float32)})[0].shape == (1, TOKENS, 2)


def test_prune_check_benchmark_profile_and_simulate_take_it(model: Path) -> None:
    out = model.with_name("out.onnx")
    sift("prune", model, out, "--sparsity", 0.5)
    for path in (model, out):
        sift("check", path)
        sift("simulate", path)
        sift("profile", path, "--threads", 1)
        sift("benchmark", path, "--backend", "cpu", "--threads", 1, "--seconds", 0.01, "--warmup", 0)
