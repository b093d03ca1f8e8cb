"""What ``sift-onnx doctor`` finds, and how it says it."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sift_onnx.backends.cpu.isa import generates_code
from sift_onnx.cli.app import main

DISTRIBUTIONS = ["sift-onnx", "onnx", "onnxruntime", "onnx-graphsurgeon", "numpy", "torch"]


@pytest.fixture(autouse=True)
def no_isa_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIFT_ISA", raising=False)
    monkeypatch.delenv("SIFT_JIT", raising=False)


def run_json() -> dict[str, Any]:
    result = CliRunner().invoke(main, ["doctor", "--json", "-"])
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_versions_are_those_of_the_installed_distributions() -> None:
    versions = run_json()["versions"]

    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))
    for name in DISTRIBUTIONS:
        try:
            assert versions[name] == importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            assert versions[name] is None


def test_json_starts_with_the_schema_and_names_host_and_kernels() -> None:
    document = run_json()

    assert next(iter(document.items())) == ("schema", 1)
    assert document["ok"] is True
    assert document["problems"] == []
    assert document["host"]["threads"] >= 1
    assert document["kernels"]["status"] == "present"
    assert document["kernels"]["isa"] in {"avx512", "avx2", "neon", "portable"}
    assert document["kernels"]["selected"] == document["kernels"]["isa"]


def test_json_goes_to_a_file_beside_the_table(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["doctor", "--json", str(tmp_path / "doctor.json")])

    assert result.exit_code == 0
    assert "onnxruntime" in result.stdout
    assert json.loads((tmp_path / "doctor.json").read_text())["schema"] == 1


def test_torch_that_is_missing_is_told_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.metadata.version

    def version(name: str) -> str:
        if name == "torch":
            raise importlib.metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    result = CliRunner().invoke(main, ["doctor"])

    assert result.exit_code == 0
    assert "not installed: pip install 'sift-onnx[train]'" in result.stdout


def test_torch_is_not_imported() -> None:
    script = (
        "import sys; from sift_onnx.cli.verbs.doctor import doctor; doctor(['-q'], standalone_mode=False); "
        "assert 'torch' not in sys.modules"
    )

    subprocess.run([sys.executable, "-I", "-c", script], check=True, capture_output=True)


def test_a_core_part_that_cannot_be_imported_leaves_with_4(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = importlib.import_module

    def import_module(name: str, package: str | None = None) -> Any:
        if name == "onnxruntime":
            raise ImportError("libfoo.so: cannot open shared object file")
        return imported(name, package)

    monkeypatch.setattr(importlib, "import_module", import_module)
    result = CliRunner().invoke(main, ["doctor"])

    assert result.exit_code == 4
    assert "onnx-graphsurgeon" in result.stdout
    assert result.stderr == (
        "Error: onnxruntime cannot be imported (libfoo.so: cannot open shared object file): "
        "pip install --force-reinstall onnxruntime\n"
    )


def test_missing_kernels_are_reported_but_break_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = CliRunner().invoke(main, ["doctor"])

    assert result.exit_code == 0
    assert "missing: the cpu backend is not available" in result.stdout


def test_the_isa_asked_for_is_the_one_selected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIFT_ISA", "portable")

    kernels = run_json()["kernels"]

    assert (kernels["SIFT_ISA"], kernels["selected"]) == ("portable", "portable")


@pytest.mark.parametrize("isa", ["portable", ""])
def test_it_says_whether_layers_become_generated_code(monkeypatch: pytest.MonkeyPatch, isa: str) -> None:
    monkeypatch.setenv("SIFT_ISA", isa)
    monkeypatch.setenv("SIFT_JIT", "1")

    kernels = run_json()["kernels"]

    assert kernels["SIFT_JIT"] == "1"
    assert kernels["generates"] == generates_code(kernels["selected"])


def test_a_sift_jit_that_is_neither_0_nor_1_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIFT_JIT", "off")
    result = CliRunner().invoke(main, ["doctor"])

    assert result.exit_code == 2
    assert result.stderr.startswith("Error: SIFT_JIT is 'off'")


def test_an_isa_that_does_not_exist_is_a_usage_error_after_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIFT_ISA", "sse9")
    result = CliRunner().invoke(main, ["doctor"])

    assert result.exit_code == 2
    assert "onnxruntime" in result.stdout
    assert result.stderr.startswith("Error: unknown instruction set 'sse9' (SIFT_ISA)")
