"""The verb ``quantize`` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from click.testing import CliRunner
from quantization.test_quantize import NET, TARGET, X

from sift_onnx.cli import main


def call(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, [str(word) for word in words])
    return result.exit_code, result.stdout, result.stderr


def test_prune_quantize_evaluate(tmp_path: Path) -> None:
    onnx.save(NET, tmp_path / "net.onnx")
    np.savez(tmp_path / "d.npz", x=X, target=TARGET)
    pruned, quantized = tmp_path / "p.onnx", tmp_path / "q.onnx"
    assert call("prune", tmp_path / "net.onnx", pruned, "--sparsity", "0.5", "--pattern", "block:1x4", "-q")[0] == 0
    command = ("quantize", pruned, quantized, "--data", tmp_path / "d.npz", "--threads", 1)
    code, out, err = call(*command)
    assert (code, err) == (0, "")
    assert "2 masks kept bit for bit" in out
    assert f"Next: sift-onnx benchmark {quantized}" in out
    assert call(*command)[0] == 2  # it exists
    code, out, _ = call(*command, "--force", "--json", "-")
    document = json.loads(out)
    assert (document["schema"], document["out"], document["format"]) == (1, str(quantized), "qdq")
    assert document["accuracy"]["runs"][0]["model"] == str(quantized)
    assert document["totals"]["bytes_after"] == quantized.stat().st_size
    assert call("check", quantized)[0] == 0


def test_mistakes_are_named_as_options(tmp_path: Path) -> None:
    onnx.save(NET, tmp_path / "net.onnx")
    code, _, err = call("quantize", tmp_path / "net.onnx", tmp_path / "q.onnx")
    assert (code, err.strip()) == (
        2,
        "Error: static quantization needs --data to find ranges of activations; or use --dynamic",
    )
    code, _, err = call("quantize", tmp_path / "net.onnx", tmp_path / "q.onnx", "--dynamic", "--keep-float", "foot*")
    assert (code, err.strip()) == (
        2, "Error: --keep-float foot* matches no weight; sift-onnx inspect lists their names"
    )  # fmt: skip
