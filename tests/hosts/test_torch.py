"""Passes on what ``torch.onnx.export`` hands out, before it is written."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("needs torch", allow_module_level=True)

import numpy as np
import onnx
import torch
from hosts.cases import FEEDS, HOSTS, changed_by, content, outputs, passes_of
from torch import nn

import sift_onnx
from sift_onnx.hosts.onnx_ir import SiftPass


@pytest.fixture(scope="module")
def program() -> Any:
    """A normalization that the exporter folds, and fresh ones that it keeps, whose parameters it merges."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    for _ in range(2):
        layers += [nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.ReLU(), nn.BatchNorm2d(8)]
    module = nn.Sequential(*layers, nn.Conv2d(8, 4, 1, bias=False)).eval()
    return torch.onnx.export(module, (torch.from_numpy(FEEDS["x"]),), input_names=["x"], dynamo=True, verbose=False)


@pytest.mark.parametrize("name", HOSTS["torch"])
def test_a_pass_on_an_exported_program(program: Any, name: str, tmp_path: Path) -> None:
    exported = torch.onnx.ONNXProgram(program.model.clone(), program.exported_program)
    proto = exported.model_proto
    ir_model, paths = exported.model, layer_names(exported.model)
    for pass_ in passes_of(name):
        assert SiftPass(pass_)(exported.model).modified
    assert exported.model is ir_model
    exported.save(tmp_path / "out.onnx")
    made = onnx.load(tmp_path / "out.onnx")
    assert content(made) == content(changed_by(passes_of(name), proto))
    onnx.checker.check_model(made, full_check=True)
    assert outputs(made)[0].shape == (1, 4, 8, 8)
    # Layers keep what torch notes of them, in the file and beside it.
    after = layer_names(exported.model)
    assert {key: after[key] for key in after if key in paths} == {key: paths[key] for key in after if key in paths}
    assert len(after.keys() & paths.keys()) > 3
    (computed,) = exported(torch.from_numpy(FEEDS["x"]))
    np.testing.assert_allclose(computed.numpy(), outputs(made)[0], rtol=1e-5, atol=1e-5)
    assert len(sift_onnx.masks(exported.model)) == len(sift_onnx.masks(made))


def layer_names(model: Any) -> dict[str, str]:
    """Where in the module each node comes from, by name of the node."""
    key = "pkg.torch.onnx.name_scopes"
    return {node.name: node.metadata_props[key] for node in model.graph if key in node.metadata_props}
