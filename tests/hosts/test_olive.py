"""Passes as Olive's surgeries: the pass GraphSurgeries runs them, as a workflow does."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from hosts.cases import HOSTS, changed_by, content, network, passes_of

import sift_onnx
from sift_onnx.errors import UsageError
from sift_onnx.passes import Pass


def olive() -> Any:
    """The adapter; Olive is told first to keep to itself what it is used for."""
    os.environ["OLIVE_DISABLE_TELEMETRY"] = os.environ["CI"] = "1"
    return importlib.import_module("sift_onnx.hosts.olive")


def settings_of(pass_: Pass) -> dict[str, str]:
    """As a file of Olive's has them."""
    if pass_.name == "low-rank":
        return {"width": "1"}
    return {"sparsity": str(pass_.sparsity)} if hasattr(pass_, "sparsity") else {}


def run(surgeries: list[dict[str, str]], proto: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    graph_surgeries = olive().GraphSurgeries
    from olive.model import ONNXModelHandler
    from olive.passes.olive_pass import create_pass_from_dict

    config = {"surgeries": surgeries, "remove_duplicate_initializers": False}
    pass_ = create_pass_from_dict(graph_surgeries, config, disable_search=True)
    onnx.save(proto, folder / "in.onnx")
    made = onnx.load(pass_.run(ONNXModelHandler(str(folder / "in.onnx")), str(folder / "out.onnx")).model_path)
    (version,) = [entry for entry in made.metadata_props if entry.key == "olive_version"]
    made.metadata_props.remove(version)
    return made


# In one test, since Olive takes seconds to import and tests are dealt out to several processes.
def test_a_surgery_gives_what_the_pass_gives(tmp_path: Path) -> None:
    proto = network()
    for name in HOSTS["olive"]:
        surgeries = [{"surgeon": f"Sift{type(p).__name__}", **settings_of(p)} for p in passes_of(name)]
        made = run(surgeries, proto, tmp_path)
        assert content(made) == content(changed_by(passes_of(name), proto)), name
    with pytest.raises(UsageError, match="the setting 'sparsity' of wide is None; write a number"):
        run([{"surgeon": "SiftWide", "sparsity": None}], proto, tmp_path)
    with pytest.raises(ValueError, match="Missing parameters for surgery 'siftwide'"):
        run([{"surgeon": "SiftWide"}], proto, tmp_path)


@pytest.mark.full
def test_a_workflow_runs_from_the_command_line(tmp_path: Path) -> None:
    onnx.save(network(), tmp_path / "in.onnx")
    from olive.package_config import OlivePackageConfig

    packages = json.loads(Path(OlivePackageConfig.get_default_config_path()).read_text())
    packages["passes"]["GraphSurgeries"]["module_path"] = "sift_onnx.hosts.olive.GraphSurgeries"
    (tmp_path / "packages.json").write_text(json.dumps(packages))
    workflow = {
        "input_model": {"type": "ONNXModel", "model_path": str(tmp_path / "in.onnx")},
        "passes": {
            "wide": {"type": "GraphSurgeries", "surgeries": [{"surgeon": "SiftWide", "sparsity": "0.75"}]},
            "quantized": {"type": "OnnxDynamicQuantization"},
        },
        "engine": {"output_dir": str(tmp_path / "out"), "cache_dir": str(tmp_path / "cache")},
    }
    (tmp_path / "workflow.json").write_text(json.dumps(workflow))
    command = [sys.executable, "-m", "olive", "run", "--run-config", str(tmp_path / "workflow.json")]
    command += ["--package-config", str(tmp_path / "packages.json"), "--disable_telemetry"]
    environment = {**os.environ, "OLIVE_DISABLE_TELEMETRY": "1", "CI": "1"}
    outcome = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert outcome.returncode == 0, outcome.stdout[-2000:] + outcome.stderr[-2000:]
    (made,) = (tmp_path / "out").rglob("*.onnx")
    assert len(sift_onnx.masks(str(made))) == 3
