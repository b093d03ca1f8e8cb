"""``transform --init embed`` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import convolutions
from nets import Net, run

from sift_onnx.cli import main


def call(*args: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main(args=[str(a) for a in args])
    return int(stop.value.code or 0)


def test_the_file_computes_what_the_original_does(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    proto = convolutions()
    onnx.save(proto, tmp_path / "m.onnx")
    wide = tmp_path / "w.onnx"
    assert (
        call("transform", tmp_path / "m.onnx", wide, "--wide", "0.75", "--init", "embed", "--json", tmp_path / "r") == 0
    )
    (value,) = proto.graph.input
    shape = [d.dim_value or 1 for d in value.type.tensor_type.shape.dim]
    feeds = {value.name: np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    name = proto.graph.output[0].name
    expected, found = run(proto, feeds)[name], run(onnx.load(wide), feeds)[name]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    totals = json.loads((tmp_path / "r").read_text())["totals"]
    assert totals["weight_macs_after"] == totals["weight_macs_before"]
    assert "computes what" in capfd.readouterr().out.strip().splitlines()[-1]


def test_what_is_refused_names_the_node_and_the_way_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    net = Net()
    x = net.op("Softmax", net.dense(net.input("x", 1, 5, 4), 4, 8), axis=-1, name="norm")
    net.output(net.dense(net.op("Softmax", net.dense(x, 8, 8), axis=-1), 8, 2))
    onnx.save(net.model(), tmp_path / "m.onnx")
    assert call("transform", tmp_path / "m.onnx", tmp_path / "w.onnx", "--wide", "0.75", "--init", "embed") == 3
    error = capfd.readouterr().err
    assert "node 'norm' (Softmax) normalizes over an axis that grows from 8 to 16" in error
    assert "--init random" in error
    assert not (tmp_path / "w.onnx").exists()
