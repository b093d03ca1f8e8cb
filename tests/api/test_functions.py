"""The verbs as functions: records that print as tables, in text and in notebooks."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from quantization.test_quantize import NET, TARGET, X

import sift_onnx
from sift_onnx.cli import main
from sift_onnx.errors import UsageError
from sift_onnx.records.benchmark import BenchmarkReport
from sift_onnx.records.check import CheckReport

FUNCTIONS = ("benchmark", "check", "densify", "evaluate", "inspect", "profile", "prune", "quantize", "simulate")
FAST: dict[str, Any] = {"backend": "onnxruntime", "threads": 1}
SHAPES = {"x": (2, 4, 6, 6)}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("api") / "net.onnx"
    onnx.save(NET, path)
    return path


def test_what_prints_is_what_the_command_line_prints(path: Path) -> None:
    report = sift_onnx.inspect(path)
    printed = CliRunner().invoke(main, ["inspect", str(path)]).stdout.splitlines()
    table = [line for line in printed if "│" in line]
    assert [line.split() for line in str(report).splitlines() if "│" in line] == [line.split() for line in table]
    assert "│" in (report._repr_html_() or "")
    assert (report._repr_html_() or "").startswith("<pre")
    assert repr(report).startswith("CostReport(layers=<4 entries>, totals=<CostTotals>")
    assert "\n" not in repr(report)


def test_a_simulation_prints_as_its_report(path: Path) -> None:
    simulation = sift_onnx.simulate(path)
    assert str(simulation) == str(simulation.report())
    assert "cycles" in str(simulation)
    assert (simulation._repr_html_() or "").startswith("<pre")
    assert repr(simulation).startswith("Simulation(model=")
    assert len(repr(simulation).splitlines()) == 1
    assert len(repr(simulation)) < 200


def test_a_session_is_shown_with_its_names(path: Path) -> None:
    assert repr(sift_onnx.InferenceSession(path, threads=1)) == "InferenceSession(x -> y, threads=1)"


def test_a_check_that_fails_is_a_result_and_no_error(path: Path) -> None:
    assert sift_onnx.check(NET, path).ok
    other = sift_onnx.prune(path, 0.5).model
    found = sift_onnx.check(other, path, atol=0, rtol=0)
    assert isinstance(found, CheckReport)
    assert not found.ok
    assert "FAILED" in str(found)
    with pytest.raises(UsageError, match="no-such"):
        sift_onnx.check("no-such.onnx")


def test_results_do_not_name_files_that_are_gone(path: Path) -> None:
    model = sift_onnx.load(path)
    assert sift_onnx.check(model, path).model == "model.onnx"
    assert sift_onnx.check(path, model).reference == "model-1.onnx"
    assert sift_onnx.check(path).model == str(path)
    assert sift_onnx.profile(model, backend="onnxruntime", threads=1, input_shapes=SHAPES).model == "model.onnx"
    times = sift_onnx.benchmark(model, baseline=path, seconds=0.02, warmup=0, input_shapes=SHAPES, **FAST)
    assert {run.model for run in times.runs} == {"model.onnx", str(path)}


def test_prune_and_densify_give_models_and_tables(path: Path, tmp_path: Path) -> None:
    pruned = sift_onnx.prune(path, 0.75, pattern="block:1x4", only=["body.*"])
    assert {name: float(mask.mean()) for name, mask in sift_onnx.masks(pruned.model).items()} == {"body.weight": 0.25}
    assert "75.00%" in str(pruned)
    assert pruned.report.model == str(path)
    pruned.save(tmp_path / "p.onnx")
    assert not sift_onnx.masks(sift_onnx.densify(tmp_path / "p.onnx").model)
    assert not sift_onnx.masks(path)


def test_benchmark_and_profile_take_models_of_any_kind(path: Path) -> None:
    report = sift_onnx.benchmark(sift_onnx.load(path), baseline=path, batch=2, seconds=0.01, warmup=0, **FAST)
    assert isinstance(report, BenchmarkReport)
    assert [run.batch for run in report.runs] == [2, 2]
    assert "than" in str(report)
    profiled = sift_onnx.profile(NET, input_shapes=SHAPES, **FAST)
    assert profiled.nodes
    assert "Conv" in str(profiled)
    with pytest.raises(UsageError, match="batch"):
        sift_onnx.benchmark(path, batch=0)


def test_evaluate_and_quantize(path: Path) -> None:
    found = sift_onnx.quantize(path, [(X, TARGET)], **FAST)
    assert "live quads" in str(found)
    assert "(baseline)" in str(found)
    report = sift_onnx.evaluate(found.model, [(X, TARGET)], **FAST)
    assert report.runs[0].metrics["top1"] == pytest.approx(float(np.mean(TARGET == TARGET)), abs=0.2)
    assert "top-1" in (report._repr_html_() or "")


def test_results_become_a_page(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    results = [sift_onnx.inspect(path), sift_onnx.check(path), sift_onnx.prune(path, 0.5), sift_onnx.simulate(path)]
    page = sift_onnx.report(results, tmp_path / "page.html")
    assert page.path.read_text(encoding="utf-8").startswith("<!")
    assert page.size == page.path.stat().st_size
    with pytest.raises(UsageError, match="int is not a result"):
        sift_onnx.report([3], tmp_path / "page.html")  # type: ignore[list-item]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_and_results_have_types(name: str) -> None:
    function = getattr(sift_onnx, name)
    signature = inspect.signature(function)
    assert signature.return_annotation not in (inspect.Signature.empty, "Any")
    assert all(param.annotation is not inspect.Parameter.empty for param in signature.parameters.values())
    assert function.__doc__
    for param in signature.parameters:
        assert f"{param}:" in function.__doc__, param
